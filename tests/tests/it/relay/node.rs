//! A relay in a process of its own.

use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tidings_tests::eventually;

use super::SOON;
use super::place::Place;

/// It is killed when dropped, and what it said is printed if the test fails.
pub(crate) struct Node {
    child: Child,
    said: Arc<Mutex<Vec<u8>>>,
}

impl Node {
    /// Starts one; the settings are those of `relay_node.rs`, without their prefix.
    pub(crate) fn spawn(place: &Place, settings: &[(&str, &str)]) -> Node {
        let mut command = Command::new(env!("CARGO_BIN_EXE_relay_node"));
        command
            .env("TIDINGS_TEST_DATABASE", &place.database)
            .env("TIDINGS_TEST_NATS", &place.nats)
            .env("TIDINGS_TEST_SOURCE", &place.source)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        for (name, value) in settings {
            command.env(format!("TIDINGS_TEST_{name}"), value);
        }
        let mut child = command.spawn().expect("the program is built with the tests");
        let said = Arc::default();
        collect(child.stdout.take(), &said);
        collect(child.stderr.take(), &said);
        Node { child, said }
    }

    /// Starts one and waits until it says so.
    pub(crate) async fn start(place: &Place, settings: &[(&str, &str)]) -> Node {
        let node = Node::spawn(place, settings);
        node.says("started").await;
        node
    }

    pub(crate) fn log(&self) -> String {
        String::from_utf8_lossy(&self.said.lock().unwrap()).into_owned()
    }

    /// How often it said something.
    pub(crate) fn said(&self, what: &str) -> usize {
        self.log().matches(what).count()
    }

    /// Waits until it says something.
    pub(crate) async fn says(&self, what: &str) {
        eventually(&format!("it says {what:?}"), SOON, async || (self.said(what) > 0).then_some(())).await;
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).expect("the process is there");
    }

    /// Waits until it has ended.
    pub(crate) async fn ended(&mut self, within: Duration) -> ExitStatus {
        eventually("the process ends", within, async || self.child.try_wait().expect("a child of ours")).await
    }

    /// The most memory it has had so far, in bytes.
    pub(crate) fn peak_memory(&self) -> u64 {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("the process is there");
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("it has a peak");
        peak.trim().trim_end_matches(" kB").parse::<u64>().expect("in kilobytes") * 1024
    }

    /// Whether it stands still.
    pub(crate) fn is_stopped(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- relay {}\n{}", self.child.id(), self.log());
        }
    }
}

/// The `tidings` program, with the URL of the database in its environment; what it said, if it ended so.
pub(super) async fn tidings(place: &Place, arguments: &[&str], code: i32) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_services_role"));
    command.arg("cli").args(arguments).env("TIDINGS_DATABASE_URL", &place.database).stdin(Stdio::null());
    let output = tokio::task::spawn_blocking(move || command.output().expect("it runs")).await.unwrap();
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (said(&output.stdout), said(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{out}{err}");
    out + &err
}

fn collect(pipe: Option<impl Read + Send + 'static>, said: &Arc<Mutex<Vec<u8>>>) {
    let (mut pipe, said) = (pipe.expect("it is piped"), Arc::clone(said));
    std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = pipe.read(&mut bytes) {
            said.lock().unwrap().extend_from_slice(&bytes[..count]);
        }
    });
}
