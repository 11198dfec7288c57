//! Processes: commands that end in time, and finding and signalling all processes of one server.

use std::fs;
use std::io::{self, Read};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// How often a state is looked at that nothing reports.
pub(super) const LOOK: Duration = Duration::from_millis(5);

/// What a command answered.
pub(super) struct Answer {
    pub(super) status: ExitStatus,
    pub(super) out: String,
    pub(super) err: String,
}

/// Runs a command to its end, or kills it when `limit` has passed.
pub(super) fn run_within(command: &mut Command, limit: Duration) -> io::Result<Answer> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let out = read_all(child.stdout.take());
    let err = read_all(child.stderr.take());
    let deadline = Instant::now() + limit;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() >= deadline {
            child.kill()?;
            child.wait()?;
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("it did not end within {} s and was killed", limit.as_secs()),
            ));
        }
        thread::sleep(LOOK);
    };
    Ok(Answer { status, out: out.join().unwrap_or_default(), err: err.join().unwrap_or_default() })
}

fn read_all(pipe: Option<impl Read + Send + 'static>) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            // What was read before an error is still worth showing.
            let _ = pipe.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Waits until `done` says so; false when `limit` passed first.
pub(super) fn wait_until(limit: Duration, mut done: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + limit;
    loop {
        if done() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        thread::sleep(LOOK);
    }
}

/// The processes of the server whose folder is named `id`.
///
/// The postmaster and nats-server have the folder among their arguments, PostgreSQL's other processes have the cluster's
/// name in their title (each is the leader of a process group of its own, so the group says nothing). The command line
/// is the one thing about a process that everybody may read, also root in a container without the right to trace.
pub(super) fn of_server(id: &str) -> Vec<i32> {
    command_lines().into_iter().filter(|(_, line)| line.contains(id) && is_server(line)).map(|(pid, _)| pid).collect()
}

/// Sends a signal to a process; one that has just ended is no error.
pub(super) fn signal(pid: i32, signal: Signal) {
    let _ = kill(Pid::from_raw(pid), signal);
}

/// Whether the process is stopped by SIGSTOP or gone. Where there is no `/proc` the signal is believed.
pub(super) fn is_stopped(pid: i32) -> bool {
    match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Err(_) => true,
        Ok(stat) => stat
            .rsplit_once(") ")
            .is_none_or(|(_, rest)| matches!(rest.as_bytes().first(), Some(b'T' | b't' | b'Z' | b'X'))),
    }
}

/// Whether the process has ended, though its parent may not have taken note yet.
pub(super) fn is_gone(pid: i32) -> bool {
    match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Err(_) => kill(Pid::from_raw(pid), None).is_err(),
        Ok(stat) => stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['Z', 'X'])),
    }
}

/// Ends all processes of a server that nobody owns any more, frozen ones too; false when some are left.
pub(super) fn end_all(id: &str) -> bool {
    let all = of_server(id);
    for &pid in &all {
        signal(pid, Signal::SIGCONT);
        // A postmaster told so ends its children and gives its shared memory back; the others just end.
        signal(pid, Signal::SIGQUIT);
    }
    if all.is_empty() || wait_until(Duration::from_secs(5), || of_server(id).is_empty()) {
        return true;
    }
    wait_until(Duration::from_secs(5), || {
        let left = of_server(id);
        for &pid in &left {
            signal(pid, Signal::SIGKILL);
        }
        left.is_empty()
    })
}

fn is_server(line: &str) -> bool {
    let program = line.split(['\0', ' ']).next().unwrap_or_default();
    let name = program.rsplit('/').next().unwrap_or_default();
    matches!(name, "postgres" | "postgres:" | "initdb" | "nats-server")
}

#[cfg(target_os = "linux")]
fn command_lines() -> Vec<(i32, String)> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let line = fs::read(entry.path().join("cmdline")).ok()?;
            Some((pid, String::from_utf8_lossy(&line).into_owned()))
        })
        .collect()
}

#[cfg(not(target_os = "linux"))]
fn command_lines() -> Vec<(i32, String)> {
    let Ok(answer) = run_within(Command::new("ps").args(["-Axww", "-o", "pid=,command="]), Duration::from_secs(10))
    else {
        return Vec::new();
    };
    answer
        .out
        .lines()
        .filter_map(|line| {
            let (pid, line) = line.trim_start().split_once(' ')?;
            Some((pid.parse().ok()?, line.trim_start().to_owned()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_servers_count_as_servers() {
        assert!(is_server("/usr/lib/postgresql/15/bin/postgres\0-D\0/tmp/x"));
        assert!(is_server("postgres: tidings-1234: checkpointer "));
        assert!(is_server("/usr/bin/nats-server\0-c\0/tmp/x/nats.conf"));
        assert!(!is_server("tail\0-f\0/tmp/tidings-1234/log"));
        assert!(!is_server(""));
    }

    #[test]
    fn a_command_that_does_not_end_is_killed() {
        let began = Instant::now();
        let answer = run_within(Command::new("sleep").arg("60"), Duration::from_millis(50));
        assert_eq!(answer.err().map(|error| error.kind()), Some(io::ErrorKind::TimedOut));
        assert!(began.elapsed() < Duration::from_secs(30));
    }
}
