//! The relay processes of a schedule, each behind proxies of its own.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tidings::services::proxy::Proxy;
use tokio::process::{Child, Command};
use tokio::sync::Mutex;

use super::plan::{At, Settings};

/// One of the relays: a process, and another one after it when it is gone.
#[derive(Debug)]
pub struct Relay {
    /// To the servers of the broker.
    pub nats: Vec<Proxy>,
    /// To the database.
    pub postgres: Proxy,
    number: usize,
    environment: Vec<(String, String)>,
    log: PathBuf,
    child: Option<Child>,
    began: Instant,
    still_since: Option<Instant>,
    lease: Duration,
}

/// All of them. A fault that has one away keeps it locked.
pub type Relays = Arc<Vec<Mutex<Relay>>>;

impl Relay {
    /// One that is not started yet.
    pub fn new(
        number: usize,
        (nats, nats_url): (Vec<Proxy>, String),
        (postgres, database_url): (Proxy, String),
        source: &str,
        (settings, replicas): (&Settings, usize),
        folder: &Path,
    ) -> Relay {
        let millis = |time: Duration| time.as_millis().to_string();
        let environment = [
            ("DATABASE", database_url),
            ("NATS", nats_url),
            ("SOURCE", source.to_owned()),
            ("LEASE", millis(settings.lease)),
            ("ACK", millis(settings.ack)),
            ("STATEMENT", "2000".to_owned()),
            ("DUPLICATE_WINDOW", millis(settings.duplicate_window)),
            ("WINDOW", settings.window.to_string()),
            ("IN_FLIGHT", settings.in_flight.to_string()),
            ("CONNECTIONS", settings.connections.to_string()),
            ("BACKOFF_MAX", "1000".to_owned()),
            ("REPLICAS", replicas.to_string()),
            ("BATCHES", u8::from(settings.batches).to_string()),
        ];
        Relay {
            nats,
            postgres,
            number,
            environment: environment.map(|(name, value)| (format!("TIDINGS_TEST_{name}"), value)).to_vec(),
            log: folder.join(format!("relay-{number}.log")),
            child: None,
            began: Instant::now(),
            still_since: None,
            lease: settings.lease,
        }
    }

    /// Something that all processes of this relay are told.
    pub fn tell(&mut self, name: &str, value: &str) {
        self.environment.push((format!("TIDINGS_TEST_{name}"), value.to_owned()));
    }

    /// Starts a process if there is none.
    ///
    /// # Errors
    /// When it cannot be run.
    pub fn start(&mut self) -> io::Result<()> {
        self.start_told(None)
    }

    /// Starts a process that is told to do something at a point, if there is none.
    ///
    /// # Errors
    /// When it cannot be run.
    pub fn start_told(&mut self, told: Option<(At, &str, usize)>) -> io::Result<()> {
        if self.child.is_some() {
            return Ok(());
        }
        let log = File::options().create(true).append(true).open(&self.log)?;
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(super::NODE).envs(self.environment.clone());
        match told {
            Some((At::Kill, point, count)) => command.env("TIDINGS_TEST_KILL_AT", format!("{point}@{count}")),
            Some((At::Stand, point, _)) => command.env("TIDINGS_TEST_STOP_AT", point),
            None => &mut command,
        };
        // It ends when its standard input does, so none outlives this program, whatever that dies of.
        command.stdin(Stdio::piped()).stdout(log.try_clone()?).stderr(log).kill_on_drop(true);
        self.child = Some(command.spawn()?);
        self.began = Instant::now();
        self.still_since = None;
        Ok(())
    }

    /// A signal to the process, if there is one.
    pub fn signal(&self, signal: Signal) {
        if let Some(pid) = self.child.as_ref().and_then(Child::id).and_then(|pid| i32::try_from(pid).ok()) {
            let _ = kill(Pid::from_raw(pid), signal);
        }
    }

    /// `kill -9`; returns when it is gone.
    pub async fn kill(&mut self) {
        self.signal(Signal::SIGKILL);
        self.gone(Duration::from_secs(30)).await;
    }

    /// Waits until the process has ended; it is killed when it has not in this time.
    pub async fn gone(&mut self, within: Duration) {
        let Some(mut child) = self.child.take() else { return };
        if tokio::time::timeout(within, child.wait()).await.is_err() {
            let _ = child.kill().await;
        }
    }

    /// Starts it again if it ended by itself, and lets it go on if it stood still past its lease.
    fn keep(&mut self) -> io::Result<()> {
        if let Some(child) = &mut self.child
            && child.try_wait()?.is_some()
        {
            self.child = None;
        }
        if self.child.is_none() {
            // One that finds no database ends at once; not too often.
            return if self.began.elapsed() > Duration::from_millis(300) { self.start() } else { Ok(()) };
        }
        match self.still_since {
            None if self.is_still() => self.still_since = Some(Instant::now()),
            Some(since) if since.elapsed() > self.lease + self.lease / 3 => {
                self.signal(Signal::SIGCONT);
                self.still_since = None;
            }
            None | Some(_) => {}
        }
        Ok(())
    }

    fn is_still(&self) -> bool {
        let Some(pid) = self.child.as_ref().and_then(Child::id) else { return false };
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    }

    /// Everything as it should be: what was held is passed on, what stood still goes on.
    pub fn heal(&self) {
        for proxy in self.nats.iter().chain([&self.postgres]) {
            proxy.thaw();
            proxy.refuse(false);
        }
        self.signal(Signal::SIGCONT);
    }

    /// What its processes said that none may ever say.
    pub fn complaints(&self) -> Vec<String> {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let panics = log.lines().filter(|line| line.contains("panicked at"));
        panics.map(|line| format!("relay {}: {line}", self.number)).take(3).collect()
    }
}

/// Looks after the relays until it is dropped: a supervisor such as every service has.
pub async fn keep(relays: Relays) {
    loop {
        for relay in relays.iter() {
            if let Ok(mut relay) = relay.try_lock()
                && let Err(error) = relay.keep()
            {
                eprintln!("a relay cannot be started: {error}");
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
