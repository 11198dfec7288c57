//! A relay in a process of its own: what it does in there, and how the main process starts it, awaits its death and
//! ends it.

use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tidings::services::{DATABASE_URL, NATS_URL, Provided};
use tidings::{Database, JetStream, Relay, Tidings};
use tokio::process::{Child, ChildStdin, Command};

use crate::Error;
use crate::crash::{Crash, Witness};
use crate::journal::{self, Entry};

/// The arguments of the relay process. The URLs come in the environment, since others can read a command line.
#[derive(Debug, Clone, clap::Args)]
pub struct Arguments {
    /// Where to write what was published
    #[arg(long)]
    journal: PathBuf,
    /// Where to die: `acknowledged:<count>` or `sent:<partition>:<messages>`
    #[arg(long)]
    crash: Option<Crash>,
}

/// The relay process: publishes until it dies as told, is asked to end, or its parent is gone.
///
/// # Errors
/// Those of the framework.
pub async fn run(source: &str, broker: fn(String) -> JetStream, arguments: Arguments) -> Result<(), Error> {
    let database = Database::url(std::env::var(DATABASE_URL)?);
    let journal = journal::Writer::create(&arguments.journal)?;
    let broker = Witness::new(broker(std::env::var(NATS_URL)?), journal, arguments.crash);
    // A short lease: the next process may take over two seconds after this one died.
    let relay = Relay::default().lease(Duration::from_secs(2));
    let running = Tidings::new(database, broker).source(source).relay(relay).start().await?;
    let asked = async {
        tokio::select! {
            () = tidings::signal::terminate() => {}
            () = parent_lets_go() => {}
        }
    };
    Ok(running.drain_on(asked, Duration::from_secs(10)).await?)
}

/// The main process holds the other end of our stdin, for as long as it lives and wants us.
async fn parent_lets_go() {
    let (gone, wait) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        let _ = gone.send(());
    });
    let _ = wait.await;
}

/// A relay process, from outside. Dropping it kills it.
#[derive(Debug)]
pub struct RelayProcess {
    child: Child,
    /// Kept apart: waiting for a child closes the stdin it has.
    stdin: Option<ChildStdin>,
    journal: PathBuf,
}

impl RelayProcess {
    /// Starts this program again, as a relay.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(services: &Provided, journal: &Path, crash: Option<Crash>) -> Result<RelayProcess, Error> {
        let mut command = std::process::Command::new(std::env::current_exe()?);
        command.arg("relay").arg("--journal").arg(journal);
        if let Some(crash) = crash {
            command.arg("--crash").arg(crash.to_string());
        }
        command
            .env(DATABASE_URL, services.database_url())
            .env(NATS_URL, services.nats_url())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            // The terminal's Ctrl-C is for the main process, which ends this one in good order.
            .process_group(0);
        let mut child = Command::from(command).kill_on_drop(true).spawn()?;
        let stdin = child.stdin.take();
        Ok(RelayProcess { child, stdin, journal: journal.to_owned() })
    }

    /// Waits for it to die by SIGKILL, and reads what it has written until then.
    ///
    /// # Errors
    /// If it ends in another way, or lives on.
    pub async fn killed(mut self) -> Result<Vec<Entry>, Error> {
        let status = tokio::time::timeout(DIES_WITHIN, self.child.wait())
            .await
            .map_err(|_| format!("the relay process should have died within {DIES_WITHIN:?}, and lives"))??;
        if status.signal() != Some(nix::libc::SIGKILL) {
            return Err(format!("the relay process should have died by SIGKILL; it ended with {status}").into());
        }
        Ok(journal::read(&self.journal)?)
    }

    /// Asks it to drain, waits for its end, and reads what it has written.
    ///
    /// # Errors
    /// If it does not end well.
    pub async fn end(mut self) -> Result<Vec<Entry>, Error> {
        drop(self.stdin.take());
        let status = tokio::time::timeout(DIES_WITHIN, self.child.wait())
            .await
            .map_err(|_| format!("the relay process was asked to end and has not within {DIES_WITHIN:?}"))??;
        if !status.success() {
            return Err(format!("the relay process did not end well: {status}").into());
        }
        Ok(journal::read(&self.journal)?)
    }
}

const DIES_WITHIN: Duration = Duration::from_secs(60);
