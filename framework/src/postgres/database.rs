//! A database: how to reach it, and the pool of its connections.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use diesel::{ConnectionError, ConnectionResult};
use diesel_async::pooled_connection::deadpool::{Object, Pool as Deadpool};
use diesel_async::pooled_connection::{AsyncDieselConnectionManager, ManagerConfig, RecyclingMethod};
use diesel_async::{AsyncPgConnection, RunQueryDsl, SimpleAsyncConnection};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::runtime::Handle;

use super::classify::{Fault, classify};
use super::history::History;
use super::statement::statement;

/// Opens one connection, given the URL: the place for TLS.
///
/// The connection must be driven on the runtime that calls it, which `tokio::spawn` inside the closure does.
pub type Connect = dyn Fn(String) -> BoxFuture<'static, ConnectionResult<AsyncPgConnection>> + Send + Sync;

/// A PostgreSQL database and how to connect to it.
///
/// The URL is a secret: it appears in no log and no error.
///
/// ```
/// use std::time::Duration;
/// use tidings::Database;
///
/// let database = Database::url("postgres://app:secret@127.0.0.1/shop")
///     .pool_size(24)
///     .statement_timeout(Duration::from_secs(30));
/// assert!(!format!("{database:?}").contains("secret"));
/// ```
#[derive(Clone)]
pub struct Database {
    pub(crate) url: String,
    pub(crate) connect: Option<Arc<Connect>>,
    pub(crate) pool_size: usize,
    pub(crate) partitions: Option<u16>,
    pub(crate) statement_timeout: Duration,
    pub(crate) lock_timeout: Duration,
    pub(crate) connect_timeout: Duration,
}

impl Database {
    /// A database by its URL, `postgres://user:password@host:port/name`. Without [`connect_with`](Self::connect_with)
    /// connections are not encrypted.
    pub fn url(url: impl Into<String>) -> Database {
        Database {
            url: url.into(),
            connect: None,
            pool_size: 16,
            partitions: None,
            statement_timeout: Duration::from_secs(30),
            lock_timeout: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(5),
        }
    }

    /// Opens connections with a closure of your own, for TLS. The session settings are made afterwards.
    pub fn connect_with<F>(mut self, connect: F) -> Self
    where
        F: Fn(String) -> BoxFuture<'static, ConnectionResult<AsyncPgConnection>> + Send + Sync + 'static,
    {
        self.connect = Some(Arc::new(connect));
        self
    }

    /// How many connections handlers may use at once, in all consumers of the process; more handlers wait for one. The
    /// relay has its own beside them, see [`Relay::connections`](crate::Relay::connections). Default 16.
    pub fn pool_size(mut self, connections: usize) -> Self {
        self.pool_size = connections.max(1);
        self
    }

    /// How many partitions [`migrate`](crate::migrate) lays out in a new database, 1 to 1,024. Default 4. A database
    /// that has another number already is refused: the number is shared by all that append.
    pub fn partitions(mut self, partitions: u16) -> Self {
        self.partitions = Some(partitions);
        self
    }

    /// How long one statement may take on the server, those of handlers included. Default 30 s.
    pub fn statement_timeout(mut self, timeout: Duration) -> Self {
        self.statement_timeout = timeout;
        self
    }

    /// How long one statement may wait for a lock. Default 10 s.
    pub fn lock_timeout(mut self, timeout: Duration) -> Self {
        self.lock_timeout = timeout;
        self
    }

    /// How long opening a connection may take. Default 5 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Opens a connection on the current runtime and makes the session settings.
    pub(crate) async fn open(&self) -> Result<AsyncPgConnection, Error> {
        let opening = async {
            let mut connection = match &self.connect {
                Some(connect) => connect(self.url.clone()).await,
                None => self.connect_plain().await,
            }
            .map_err(Error::connect)?;
            connection.batch_execute(&self.session_settings()).await.map_err(Error::Query)?;
            Ok(connection)
        };
        // Each host of a URL with several gets its time; the driver gives it to each in turn.
        let hosts = self.url.parse::<tokio_postgres::Config>().map_or(1, |config| config.get_hosts().len().max(1));
        let within = self.connect_timeout * u32::try_from(hosts).unwrap_or(1);
        tokio::time::timeout(within, opening).await.unwrap_or(Err(Error::ConnectTimeout))
    }

    async fn connect_plain(&self) -> ConnectionResult<AsyncPgConnection> {
        let mut config: tokio_postgres::Config =
            self.url.parse().map_err(|_| ConnectionError::InvalidConnectionUrl(NOT_A_URL.into()))?;
        config
            .connect_timeout(self.connect_timeout)
            .keepalives_idle(Duration::from_secs(15))
            .keepalives_interval(Duration::from_secs(5))
            .keepalives_retries(3)
            .tcp_user_timeout(Duration::from_secs(30));
        if config.get_application_name().is_none() {
            config.application_name("tidings");
        }
        let (client, connection) = config
            .connect(tokio_postgres::NoTls)
            .await
            .map_err(|error| ConnectionError::BadConnection(told_in_full(&error)))?;
        AsyncPgConnection::try_from_client_and_connection(client, connection).await
    }

    /// READ COMMITTED whatever the server's default: the inbox and the claim look for what others committed meanwhile.
    /// The server checks now and then that we are still there, so that a lost client's locks do not outlive it. No
    /// compiling of plans: a table that was never analysed makes a statement of a millisecond look dear, and compiling it
    /// took five seconds.
    fn session_settings(&self) -> String {
        let (statement, lock) = (self.statement_timeout.as_millis(), self.lock_timeout.as_millis());
        let idle = (self.statement_timeout * 2).as_millis();
        let check = if cfg!(target_os = "linux") { "SET client_connection_check_interval = 5000;" } else { "" };
        format!(
            "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED; \
             SET jit = off; SET statement_timeout = {statement}; SET lock_timeout = {lock}; \
             SET idle_in_transaction_session_timeout = {idle}; {check}"
        )
    }
}

/// The driver says only `db error`; what the server said is behind it.
fn told_in_full(error: &tokio_postgres::Error) -> String {
    let causes = std::iter::successors(std::error::Error::source(error), |cause| cause.source());
    std::iter::once(error.to_string()).chain(causes.map(ToString::to_string)).collect::<Vec<_>>().join(": ")
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Database")
            .field("pool_size", &self.pool_size)
            .field("partitions", &self.partitions)
            .field("statement_timeout", &self.statement_timeout)
            .field("lock_timeout", &self.lock_timeout)
            .finish_non_exhaustive()
    }
}

/// Why the database could not be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No connection.
    #[error("cannot connect to PostgreSQL: {0}")]
    Connect(String),
    /// No connection in time.
    #[error("PostgreSQL did not answer within the connect timeout: is it running, and reachable from here?")]
    ConnectTimeout,
    /// All connections of the pool are in use.
    #[error(
        "no connection of the relay became free in time: does the database answer slowly, or is `Relay::connections` too low?"
    )]
    PoolExhausted,
    /// A statement had no answer, not even that it took too long.
    #[error("PostgreSQL did not answer a statement within its timeout: does the server stand still, or the network?")]
    NoAnswer,
    /// It is not the server that it was, or was started anew: what was known of it has to be compared first.
    #[error("PostgreSQL was restarted, or is another server now")]
    Restarted,
    /// A statement failed.
    #[error("a statement failed: {0}")]
    Query(#[from] diesel::result::Error),
    /// The schema `tidings` is not there, or not what this program needs.
    #[error("{0}")]
    Schema(String),
    /// The engine is shutting down.
    #[error("the engine is stopping")]
    Stopping,
}

impl Error {
    fn connect(error: ConnectionError) -> Error {
        match error {
            ConnectionError::InvalidConnectionUrl(_) => Error::Connect(NOT_A_URL.into()),
            other => Error::Connect(other.to_string()),
        }
    }
}

/// A connection out of the pool; it goes back when dropped, unless it is broken or inside a transaction.
type Connection = Object<AsyncPgConnection>;

/// The shared connections of one database, all opened on the engine.
#[derive(Clone)]
pub(crate) struct Pool {
    inner: Deadpool<AsyncPgConnection>,
    opener: Database,
    engine: Handle,
    wait: Duration,
    answer: Duration,
    history: Arc<History>,
}

impl Pool {
    /// For handlers. All of its connections may be with handlers that take their time, so waiting for one is no failure.
    pub(crate) fn for_handlers(database: &Database, engine: Handle) -> Pool {
        Pool::new(database, engine, database.pool_size, Duration::MAX)
    }

    /// For the relay, whose steps are short, and which no handler may keep waiting.
    pub(crate) fn for_relay(database: &Database, engine: Handle, connections: usize) -> Pool {
        Pool::new(database, engine, connections, database.connect_timeout * 2)
    }

    fn new(database: &Database, engine: Handle, size: usize, wait: Duration) -> Pool {
        let opener = database.clone();
        let history = Arc::new(History::default());
        let opened = Arc::clone(&history);
        let mut config = ManagerConfig::default();
        // A connection that died is noticed at its next use, and nothing is counted for it: no round trip a checkout.
        config.recycling_method = RecyclingMethod::Fast;
        config.custom_setup = Box::new(move |_| {
            let (opener, opened) = (opener.clone(), Arc::clone(&opened));
            async move {
                let bad = |error: String| ConnectionError::BadConnection(error);
                let mut connection = opener.open().await.map_err(|error| bad(error.to_string()))?;
                opened.opened(&mut connection).await.map_err(|error| bad(error.to_string()))?;
                Ok(connection)
            }
            .boxed()
        });
        let manager = AsyncDieselConnectionManager::new_with_config("opened by the set-up closure", config);
        let inner = Deadpool::builder(manager)
            .max_size(size)
            .build()
            .expect("a pool without timeouts of its own needs no runtime");
        Pool {
            inner,
            opener: database.clone(),
            engine,
            wait,
            answer: database.statement_timeout + ANSWER_MARGIN,
            history,
        }
    }

    /// A connection, from any runtime: it is opened on the engine.
    pub(crate) async fn get(&self) -> Result<Connection, Error> {
        let (inner, wait) = (self.inner.clone(), self.wait);
        let getting = self.engine.spawn(async move { tokio::time::timeout(wait, inner.get()).await });
        match getting.await {
            Ok(Ok(Ok(connection))) => Ok(connection),
            Ok(Ok(Err(error))) => Err(Error::Connect(error.to_string())),
            Ok(Err(_)) => Err(Error::PoolExhausted),
            Err(_) => Err(Error::Stopping),
        }
    }

    /// One step on a connection, bounded on our side too: the time-outs of a server that stands still do not run, and its
    /// kernel goes on acknowledging. The connection is closed then, since the answer may still come to the next user of
    /// it; what was asked may or may not have happened.
    pub(crate) async fn run<T>(
        &self,
        step: impl AsyncFnOnce(&mut AsyncPgConnection) -> diesel::QueryResult<T>,
    ) -> Result<T, Error> {
        let connection = self.get().await?;
        self.bounded(connection, step).await
    }

    /// The same in one life of the database only: a connection may have been opened since to another server, which may not
    /// know what this one was told last.
    ///
    /// # Errors
    /// [`Error::Restarted`] if it is another life by now; nothing was asked then.
    pub(crate) async fn run_in<T>(
        &self,
        history: u64,
        step: impl AsyncFnOnce(&mut AsyncPgConnection) -> diesel::QueryResult<T>,
    ) -> Result<T, Error> {
        let connection = self.get().await?;
        if self.history() != history {
            return Err(Error::Restarted);
        }
        self.bounded(connection, step).await
    }

    async fn bounded<T>(
        &self,
        mut connection: Connection,
        step: impl AsyncFnOnce(&mut AsyncPgConnection) -> diesel::QueryResult<T>,
    ) -> Result<T, Error> {
        match tokio::time::timeout(self.answer, step(&mut connection)).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => {
                // A server that became a standby stays reachable; another connection may find the new primary.
                if classify(&error) == Fault::ReadOnly {
                    drop(Object::take(connection));
                }
                Err(error.into())
            }
            Err(_) => {
                drop(Object::take(connection));
                Err(Error::NoAnswer)
            }
        }
    }

    /// Grows when a connection was opened to another server, another timeline, or one that was started anew.
    pub(crate) fn history(&self) -> u64 {
        self.history.changes()
    }

    /// A connection beside the pool, for what must not wait until one of its own is free.
    pub(crate) async fn aside(&self) -> Result<AsyncPgConnection, Error> {
        let opener = self.opener.clone();
        self.engine.spawn(async move { opener.open().await }).await.unwrap_or(Err(Error::Stopping))
    }

    /// Where its connections live; what runs there outlives whoever asked for it.
    pub(crate) fn engine(&self) -> &Handle {
        &self.engine
    }

    /// Closes idle connections; those in use are closed when they come back.
    pub(crate) fn close(&self) {
        self.inner.close();
    }
}

statement! {
    /// The server process behind a connection, so that it can be ended when a commit's answer was lost.
    pub(crate) struct BackendPid {} -> diesel::sql_types::Integer;
    "SELECT pg_backend_pid()"
}

/// The server process behind a connection.
pub(crate) async fn pid_of(connection: &mut AsyncPgConnection) -> diesel::QueryResult<i32> {
    RunQueryDsl::get_result(BackendPid {}, connection).await
}

/// What the server gets on top of its own timeout to say that a statement took too long.
const ANSWER_MARGIN: Duration = Duration::from_secs(5);
const NOT_A_URL: &str = "the database URL is not of the form postgres://user:password@host:port/name";
