//! `tidings::services`: what is started serves, and is gone afterwards, whatever its owner dies of.

mod cli;
mod cluster;
mod endings;
mod nats;
mod postgres;
mod proxy;
mod sources;

use std::future::Future;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long anything is waited for before the test fails.
const LIMIT: Duration = Duration::from_secs(60);
/// How long something must not happen, to be taken as not happening.
const SILENCE: Duration = Duration::from_millis(300);

/// Waits until it is so.
#[track_caller]
fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < deadline, "not within {LIMIT:?}: {what}");
        std::thread::yield_now();
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// Runs a future on a runtime of its own.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    runtime.block_on(future)
}

/// A NATS client. async-nats ignores the credentials in a URL, so they are given to it.
async fn connect_nats(url: &str) -> Result<async_nats::Client, async_nats::ConnectError> {
    let credentials = url.strip_prefix("nats://").and_then(|rest| rest.split_once('@')).map(|(before, _)| before);
    let (user, password) = credentials.and_then(|both| both.split_once(':')).expect("credentials");
    async_nats::ConnectOptions::with_user_and_password(user.to_owned(), password.to_owned()).connect(url).await
}

/// The helper program in a role, with its output to read.
fn role(role: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_services_role"));
    command.args(role).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The state of a process as `/proc` has it; none when it is gone.
fn state(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next().filter(|state| !matches!(state, 'Z' | 'X'))
}

fn is_alive(pid: u32) -> bool {
    state(pid).is_some()
}

/// The processes whose command line has this text in it.
fn processes_with(text: &str) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").expect("/proc");
    entries
        .flatten()
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let line = std::fs::read(entry.path().join("cmdline")).ok()?;
            String::from_utf8_lossy(&line).contains(text).then_some(pid)
        })
        .collect()
}

fn name_of(folder: &Path) -> &str {
    folder.file_name().and_then(|name| name.to_str()).expect("a folder with a name")
}

/// The user a process runs as.
fn user_of(pid: u32) -> u32 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(format!("/proc/{pid}")).expect("the process is there").uid()
}

/// Ends the process if the test did not get to it.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
