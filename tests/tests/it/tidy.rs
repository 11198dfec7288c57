//! Rules of the house that a program can check: floors, what `protocol/` may know, and how long a file may be.

use std::fs;
use std::path::{Path, PathBuf};

/// From the bottom up. A file imports only from floors below its own, or from its own.
const FLOORS: &[&[&str]] = &[
    &["protocol", "event", "telemetry", "failpoint"],
    &["envelope"],
    &["postgres", "broker"],
    &["outbox", "dead"],
    &["transaction"],
    &["consumer"],
    &["inbox"],
    &["actors"],
    &["host"],
    &["cli", "signal"],
];

/// Beside the house: they may be used by `testing` and `cli`, and use what they like.
const BESIDE: &[&str] = &["services", "testing", "lib.rs", "main.rs"];

#[test]
fn a_file_imports_only_from_floors_below_its_own() {
    let mut wrong = Vec::new();
    for file in rust_files(&framework()) {
        let Some(own) = floor_of(&file) else { continue };
        for line in source(&file).lines() {
            let Some(module) = line.trim().strip_prefix("use crate::").map(first_word) else { continue };
            let Some(other) = floor(module) else { continue };
            if other > own {
                wrong.push(format!("{}: {}", file.display(), line.trim()));
            }
        }
    }
    assert!(wrong.is_empty(), "imports from a floor above:\n{}", wrong.join("\n"));
}

#[test]
fn every_module_has_a_floor() {
    for file in rust_files(&framework()) {
        let module = module_of(&file);
        assert!(floor(&module).is_some() || BESIDE.contains(&module.as_str()), "{} stands on no floor", file.display());
    }
}

#[test]
fn protocol_does_nothing_but_decide() {
    let forbidden = [
        "async ",
        "tokio",
        "diesel",
        "async_nats",
        "actix",
        "tracing",
        "rand::",
        "Instant::now",
        "SystemTime",
        "metrics",
    ];
    for file in rust_files(&framework().join("protocol")) {
        let code = source(&file);
        let code = code.split("#[cfg(test)]").next().unwrap_or_default();
        for line in code.lines().filter(|line| !line.trim_start().starts_with("//")) {
            let found = forbidden.iter().find(|word| line.contains(**word));
            assert!(found.is_none(), "{}: {line}", file.display());
        }
    }
}

#[test]
fn no_file_is_longer_than_five_hundred_lines() {
    for folder in ["framework/src", "macros/src", "examples", "tests"] {
        for file in rust_files(&root().join(folder)) {
            let lines = source(&file).lines().count();
            assert!(lines <= 500, "{} has {lines} lines: is it still one idea?", file.display());
        }
    }
}

#[test]
fn the_readme_names_the_versions_that_the_manifest_states() {
    let manifest = source(&root().join("Cargo.toml"));
    let version = manifest
        .lines()
        .find_map(|line| line.strip_prefix("rust-version = \""))
        .and_then(|rest| rest.split('"').next());
    let readme = source(&root().join("README.md"));
    assert!(
        readme.contains(&format!("Rust {}", version.unwrap_or("?"))),
        "the README names another Rust than {version:?}"
    );
}

fn floor_of(file: &Path) -> Option<usize> {
    floor(&module_of(file))
}

fn floor(module: &str) -> Option<usize> {
    FLOORS.iter().position(|floor| floor.contains(&module))
}

/// The first part of the path below `framework/src`, without `.rs` where it is a module.
fn module_of(file: &Path) -> String {
    let inside = file.strip_prefix(framework()).unwrap_or(file);
    let first =
        inside.components().next().map(|part| part.as_os_str().to_string_lossy().into_owned()).unwrap_or_default();
    if BESIDE.contains(&first.as_str()) { first } else { first.trim_end_matches(".rs").to_owned() }
}

fn first_word(path: &str) -> &str {
    path.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default()
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())).flatten() {
        let path = entry.path();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}

fn source(file: &Path) -> String {
    fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_path_buf).unwrap_or_default()
}

fn framework() -> PathBuf {
    root().join("framework/src")
}
