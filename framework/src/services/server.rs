//! What PostgreSQL and nats-server have in common: a process in a folder, watched.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;

use super::folder::Folder;
use super::watchdog::Watchdog;
use super::{Error, process};

/// A server that runs, or is stopped and can be started again on its port and data.
///
/// Dropping it ends the server at once and removes its data.
#[derive(Debug)]
pub(super) struct Server {
    program: &'static str,
    child: Option<Child>,
    // The order matters: the watchdog goes before the folder whose loss it would otherwise clean up after.
    _watchdog: Watchdog,
    folder: Folder,
}

impl Server {
    pub(super) fn new(program: &'static str, folder: Folder) -> Result<Server, Error> {
        let watchdog = Watchdog::start(folder.path())?;
        Ok(Server { program, child: None, _watchdog: watchdog, folder })
    }

    pub(super) fn folder(&self) -> &Folder {
        &self.folder
    }

    pub(super) fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    pub(super) fn is_running(&mut self) -> bool {
        match self.child.as_mut().map(Child::try_wait) {
            None => false,
            Some(Ok(None)) => true,
            Some(Ok(Some(_)) | Err(_)) => {
                self.child = None;
                false
            }
        }
    }

    /// Starts the process and waits until `ready` says of its id that it serves.
    pub(super) fn start(&mut self, mut command: Command, mut ready: impl FnMut(u32) -> bool) -> Result<(), Error> {
        let log = self.folder.log()?;
        let child = command
            .current_dir(self.folder.path())
            .env("HOME", self.folder.path())
            // The terminal's Ctrl-C is for the host program, which may want to drain first.
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(log.try_clone().map_err(Error::file("open the log in", self.folder.path()))?)
            .stderr(log)
            .spawn()
            .map_err(|error| self.failed(format!("its program cannot be run: {error}")))?;
        let pid = child.id();
        self.child = Some(child);

        let mut ended = None;
        let in_time = process::wait_until(START_LIMIT, || {
            ended = self.child.as_mut().and_then(|child| child.try_wait().ok().flatten());
            ended.is_some() || ready(pid)
        });
        if let Some(status) = ended {
            self.child = None;
            return Err(self.failed(format!("it ended at once ({status})")));
        }
        if !in_time {
            let error = self.failed(format!("it was not ready within {} s and was ended", START_LIMIT.as_secs()));
            self.kill();
            return Err(error);
        }
        Ok(())
    }

    /// Asks the server to end by a signal and waits. A frozen one is thawed first.
    pub(super) fn stop(&mut self, signal: Signal) -> Result<(), Error> {
        if !self.is_running() {
            return Ok(());
        }
        self.thaw();
        let Some(pid) = self.pid() else { return Ok(()) };
        process::signal(pid.cast_signed(), signal);
        if process::wait_until(STOP_LIMIT, || !self.is_running()) {
            return Ok(());
        }
        Err(Error::Stop { program: self.program, pid, seconds: STOP_LIMIT.as_secs() })
    }

    /// `kill -9` of all its processes at once. Returns when none is left.
    pub(super) fn kill(&mut self) {
        // Stopped ones start no others and notice nobody's death, so all of them die of the signal.
        self.freeze();
        let mut killed = Vec::new();
        let gone = process::wait_until(KILL_LIMIT, || {
            let left = self.processes();
            for &pid in &left {
                process::signal(pid, Signal::SIGKILL);
            }
            killed.extend(left.iter().filter(|pid| !killed.contains(*pid)).copied().collect::<Vec<_>>());
            // One that is just ending has lost its command line and still has its files and memory.
            left.is_empty() && killed.iter().all(|&pid| process::is_gone(pid))
        });
        if !gone {
            tracing::warn!(program = self.program, port = self.folder.port(), "some of its processes outlive kill -9");
        }
        if let Some(mut child) = self.child.take() {
            // Only a process in an uninterruptible wait would make this take long.
            let _ = child.wait();
        }
    }

    /// SIGSTOP to all its processes. Returns when all stand still.
    pub(super) fn freeze(&self) {
        let mut stopped = Vec::new();
        let still = process::wait_until(FREEZE_LIMIT, || {
            let all = self.processes();
            let news: Vec<i32> = all.into_iter().filter(|pid| !stopped.contains(pid)).collect();
            for &pid in &news {
                process::signal(pid, Signal::SIGSTOP);
            }
            stopped.extend(&news);
            news.is_empty() && stopped.iter().all(|&pid| process::is_stopped(pid))
        });
        if !still {
            tracing::warn!(
                program = self.program,
                port = self.folder.port(),
                "some of its processes do not stand still"
            );
        }
    }

    /// SIGCONT to all its processes.
    pub(super) fn thaw(&self) {
        for pid in self.processes() {
            process::signal(pid, Signal::SIGCONT);
        }
    }

    pub(super) fn failed(&self, why: String) -> Error {
        Error::Start { program: self.program, port: self.folder.port(), why, log: self.folder.end_of_log() }
    }

    /// Our own child first: a postmaster that stands still starts no more processes.
    fn processes(&self) -> Vec<i32> {
        let child = self.pid().map(u32::cast_signed);
        let others = process::of_server(self.folder.id()).into_iter().filter(|pid| Some(*pid) != child);
        let alive = child.filter(|&pid| !process::is_gone(pid));
        alive.into_iter().chain(others).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.is_running() {
            self.thaw();
            if let Some(pid) = self.pid() {
                // PostgreSQL gives its shared memory back on this one; nats-server simply ends.
                process::signal(pid.cast_signed(), Signal::SIGQUIT);
            }
            process::wait_until(KILL_LIMIT, || !self.is_running());
        }
        if self.is_running() || !process::of_server(self.folder.id()).is_empty() {
            self.kill();
        }
    }
}

const START_LIMIT: Duration = Duration::from_secs(60);
const STOP_LIMIT: Duration = Duration::from_secs(60);
const KILL_LIMIT: Duration = Duration::from_secs(10);
const FREEZE_LIMIT: Duration = Duration::from_secs(10);
