//! Whatever the owner dies of, its servers and their folders go.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tidings::services::{Nats, Services};

use super::{Ended, eventually, is_alive, name_of, processes_with, role, state};

/// A process that owns both servers.
struct Owner {
    process: Ended,
    servers: [u32; 2],
    folders: [PathBuf; 2],
}

impl Owner {
    fn start(what: &str) -> Owner {
        let mut process = Ended(role(&[what]).spawn().expect("the helper starts"));
        let mut line = String::new();
        let output = process.0.stdout.take().expect("its output");
        BufReader::new(output).read_line(&mut line).expect("a line");
        let words: Vec<&str> = line.split_whitespace().collect();
        let [postgres, nats, postgres_folder, nats_folder] = words[..] else { panic!("it said {line:?}") };
        Owner {
            process,
            servers: [postgres, nats].map(|pid| pid.parse().expect("a process id")),
            folders: [postgres_folder, nats_folder].map(PathBuf::from),
        }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.process.0.id().cast_signed()), signal).expect("it is there");
    }

    /// The shells that watch it: its children that are no servers.
    fn watchdogs(&self) -> Vec<u32> {
        processes_with("tidings-watchdog").into_iter().filter(|&pid| self.is_parent_of(pid)).collect()
    }

    fn is_parent_of(&self, pid: u32) -> bool {
        parent_of(pid) == Some(self.process.0.id())
    }

    /// Everything that bears the name of one of its folders.
    fn processes(&self) -> Vec<u32> {
        self.folders.iter().flat_map(|folder| processes_with(name_of(folder))).collect()
    }

    fn is_cleaned_up(&self) -> bool {
        self.folders.iter().all(|folder| !folder.exists()) && self.processes().is_empty()
    }
}

fn parent_of(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

#[test]
fn an_owner_that_is_killed_while_it_starts_leaves_nothing() {
    let mut owner = Ended(role(&["own"]).spawn().expect("the helper starts"));
    let mut initdb = None;
    eventually("initdb runs", || {
        initdb = processes_with("initdb\0-D").into_iter().find(|&pid| parent_of(pid) == Some(owner.0.id()));
        initdb.is_some()
    });
    let line = std::fs::read_to_string(format!("/proc/{}/cmdline", initdb.expect("it runs"))).expect("it runs");
    let data = PathBuf::from(line.split('\0').nth(2).expect("a data folder"));
    let folder = data.parent().expect("a folder");
    owner.0.kill().expect("it is there");
    owner.0.wait().expect("it ends");
    eventually("initdb and the folder are gone", || !folder.exists() && processes_with(name_of(folder)).is_empty());
}

#[test]
fn dropping_ends_both() {
    let services = Services::start().expect("both start");
    let folders = [services.postgres.folder().to_owned(), services.nats.folder().to_owned()];
    drop(services);
    for folder in folders {
        assert!(!folder.exists());
        assert!(processes_with(name_of(&folder)).is_empty());
    }
}

#[test]
fn a_panic_an_abort_and_an_exit_end_both() {
    for what in ["own-and-panic", "own-and-abort", "own-and-exit"] {
        let owner = Owner::start(what);
        eventually(what, || owner.is_cleaned_up());
    }
}

#[test]
fn ctrl_c_and_kill_9_end_both() {
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGKILL] {
        let owner = Owner::start("own");
        assert!(owner.servers.iter().all(|&pid| is_alive(pid)));
        owner.signal(signal);
        eventually(signal.as_str(), || owner.is_cleaned_up());
    }
}

#[test]
fn frozen_servers_of_a_killed_owner_end_too() {
    let owner = Owner::start("own");
    for pid in owner.processes() {
        kill(Pid::from_raw(pid.cast_signed()), Signal::SIGSTOP).expect("it is there");
    }
    owner.signal(Signal::SIGKILL);
    eventually("the watchdog thaws and ends them", || owner.is_cleaned_up());
}

#[test]
fn what_an_owner_leaves_whose_watchdog_is_killed_too_the_next_start_removes() {
    let mut owner = Owner::start("own");
    let watchdogs = owner.watchdogs();
    assert_eq!(watchdogs.len(), 2);
    for pid in watchdogs {
        kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL).expect("it is there");
    }
    // One of the servers is frozen, as a debugger may leave it.
    kill(Pid::from_raw(owner.servers[0].cast_signed()), Signal::SIGSTOP).expect("it is there");
    eventually("it stands still", || state(owner.servers[0]) == Some('T'));
    owner.process.0.kill().expect("it is there");
    owner.process.0.wait().expect("it ends");

    let next = Nats::start().expect("it starts");
    // Another test's start may be at it in this moment, but not after ours has had its turn.
    assert!(owner.is_cleaned_up(), "{:?}", owner.processes());
    drop(next);
}

#[test]
fn a_start_leaves_the_servers_of_living_owners_alone() {
    let owner = Owner::start("own");
    let _next = Nats::start().expect("it starts");
    assert!(owner.servers.iter().all(|&pid| is_alive(pid)));
    assert!(owner.folders.iter().all(|folder| folder.exists()));
}
