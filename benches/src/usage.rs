//! What was used: processor time of processes, and the write-ahead log.

use std::fs;

/// The processes whose time is counted: this program, PostgreSQL with all its sessions, and nats-server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Processes {
    pub(crate) postmaster: u32,
    pub(crate) nats: u32,
}

/// Seconds of processor time.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Seconds {
    pub(crate) program: f64,
    pub(crate) postgres: f64,
    pub(crate) nats: f64,
}

impl Seconds {
    pub(crate) fn all(self) -> f64 {
        self.program + self.servers()
    }

    pub(crate) fn servers(self) -> f64 {
        self.postgres + self.nats
    }

    pub(crate) fn since(self, before: Seconds) -> Seconds {
        Seconds {
            program: self.program - before.program,
            postgres: self.postgres - before.postgres,
            nats: self.nats - before.nats,
        }
    }
}

impl Processes {
    /// What they have used since they were started.
    pub(crate) fn seconds(self) -> Seconds {
        let postgres = ticks(self.postmaster, Children::Reaped)
            + children_of(self.postmaster).into_iter().map(|pid| ticks(pid, Children::Apart)).sum::<u64>();
        let seconds = |ticks: u64| ticks as f64 / TICKS_PER_SECOND;
        Seconds {
            program: seconds(ticks(std::process::id(), Children::Apart)),
            postgres: seconds(postgres),
            nats: seconds(ticks(self.nats, Children::Apart)),
        }
    }
}

/// The most memory that a process had resident, in MB.
pub(crate) fn peak_memory(pid: u32) -> Option<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    let kib: f64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024.0 / 1e6)
}

/// Whether the time of children that have ended is counted: the sessions of PostgreSQL are such.
enum Children {
    Reaped,
    Apart,
}

fn ticks(pid: u32, children: Children) -> u64 {
    let fields = stat(pid);
    let field = |n: usize| fields.get(n).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
    let own = field(UTIME) + field(UTIME + 1);
    match children {
        Children::Reaped => own + field(UTIME + 2) + field(UTIME + 3),
        Children::Apart => own,
    }
}

fn children_of(parent: u32) -> Vec<u32> {
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| stat(*pid).get(PARENT).is_some_and(|field| *field == parent.to_string())).collect()
}

/// The fields after the name, which may hold spaces.
fn stat(pid: u32) -> Vec<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let after = stat.rsplit_once(')').map_or("", |(_, after)| after);
    after.split_whitespace().map(str::to_owned).collect()
}

/// `USER_HZ`, which is 100 on every Linux that we know of.
const TICKS_PER_SECOND: f64 = 100.0;
const PARENT: usize = 1;
const UTIME: usize = 11;
