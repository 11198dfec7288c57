//! The host: what of Tidings runs in this process, and how it starts and ends.

mod system;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use actix::Addr;
use diesel_async::AsyncPgConnection;
use futures_util::future::BoxFuture;
use tokio::sync::{Semaphore, watch};

use crate::actors::Drain;
use crate::actors::consumer::Consumer as ConsumerActor;
use crate::actors::node::{Membership, Node, watch_broker};
use crate::actors::partition::Seed;
use crate::actors::supervisor::{Fatal, supervise};
use crate::broker::Broker;
use crate::consumer::{Consumer, Options};
use crate::inbox::deliver::{Limits as InboxLimits, Work, Worker};
use crate::inbox::register::register;
use crate::outbox::lease::{partition_count, settle_source};
use crate::outbox::publish::Limits as RelayLimits;
use crate::postgres::{Database, Engine, Error as DatabaseError, Pool, check_schema};
use crate::protocol::backoff::Backoff;
use crate::protocol::lease::Terms;
use crate::protocol::token::check_token;
use system::Arbiters;

/// What of Tidings runs in this process: a relay, consumers, or both.
///
/// It opens its own connections, on threads of its own, and works under `#[actix::main]`, `#[actix_web::main]` and
/// `#[tokio::main]`.
///
/// ```no_run
/// use std::time::Duration;
/// use tidings::{Database, JetStream, Relay, Tidings};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let database = Database::url("postgres://app:secret@127.0.0.1/exports");
/// tidings::migrate(&database).await?;
/// let running = Tidings::new(database, JetStream::url("nats://app:secret@127.0.0.1"))
///     .source("academy.exports")
///     .relay(Relay::default())
///     .start()
///     .await?;
/// running.drain_on(tidings::signal::terminate(), Duration::from_secs(20)).await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "nothing runs before `start`"]
pub struct Tidings {
    database: Database,
    broker: Arc<dyn Broker>,
    source: Option<String>,
    relay: Option<Relay>,
    consumers: Vec<Registration>,
    start_timeout: Duration,
    engine_threads: usize,
    handler_threads: usize,
}

impl std::fmt::Debug for Tidings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tidings")
            .field("database", &self.database)
            .field("source", &self.source)
            .field("relay", &self.relay)
            .field("consumers", &self.consumers.iter().map(|c| c.name).collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

struct Registration {
    name: &'static str,
    options: Options,
    source: &'static str,
    make: Box<dyn FnOnce(Parts, i32) -> Arc<dyn Work> + Send>,
}

/// What a consumer is made of, beside itself.
struct Parts {
    pool: Pool,
    broker: Arc<dyn Broker>,
    handlers: tokio::runtime::Handle,
}

impl Tidings {
    /// A service with this database and this broker.
    pub fn new(database: Database, broker: impl Broker) -> Tidings {
        Tidings {
            database,
            broker: Arc::new(broker),
            source: None,
            relay: None,
            consumers: Vec::new(),
            start_timeout: Duration::from_secs(60),
            engine_threads: 2,
            handler_threads: std::thread::available_parallelism().map_or(2, |cores| cores.get().clamp(2, 8)),
        }
    }

    /// The CloudEvents source of the database, for example `academy.exports`: required with a relay, the same in every
    /// process of the service, for ever.
    pub fn source(mut self, source: impl Into<String>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Publishes the events of the database from this process, beside whatever others do so.
    pub fn relay(mut self, relay: Relay) -> Self {
        self.relay = Some(relay);
        self
    }

    /// Runs a consumer in this process, beside whatever others run it.
    pub fn consumer<C: Consumer>(self, consumer: C) -> Self {
        self.consumer_with(consumer, C::options())
    }

    /// The same with settings that differ from those of the attribute.
    pub fn consumer_with<C: Consumer>(mut self, consumer: C, options: Options) -> Self {
        let make = move |parts: Parts, generation| -> Arc<dyn Work> {
            Arc::new(Worker {
                consumer,
                options,
                limits: InboxLimits {
                    ack_wait: options.ack_wait,
                    prefetch: options.concurrency.saturating_mul(4),
                    prefetch_bytes: PREFETCH_BYTES,
                },
                generation,
                pool: parts.pool,
                broker: parts.broker,
                handlers: parts.handlers,
                slots: Arc::new(Semaphore::new(options.concurrency.max(1))),
            })
        };
        self.consumers.push(Registration { name: C::NAME, options, source: C::SOURCE, make: Box::new(make) });
        self
    }

    /// How long [`start`](Self::start) waits for a database that does not answer. Default 1 min. The broker is not waited
    /// for: what needs it starts when it is there.
    pub fn start_timeout(mut self, timeout: Duration) -> Self {
        self.start_timeout = timeout;
        self
    }

    /// Threads for connections and for the steps of the relay. Default 2.
    pub fn engine_threads(mut self, threads: usize) -> Self {
        self.engine_threads = threads.max(1);
        self
    }

    /// Threads for handlers. Default the number of cores, from 2 to 8.
    pub fn handler_threads(mut self, threads: usize) -> Self {
        self.handler_threads = threads.max(1);
        self
    }

    /// Starts it.
    ///
    /// # Errors
    /// [`Error::Config`] for settings that cannot work, [`Error::Database`] if the database does not answer in time, or its
    /// schema is not what this program needs.
    pub async fn start(self) -> Result<Running, Error> {
        self.check()?;
        let engine = Engine::new("tidings-engine", self.engine_threads).map_err(Error::Thread)?;
        let handlers = Engine::new("tidings-handler", self.handler_threads).map_err(Error::Thread)?;
        let pool = Pool::new(&self.database, engine.handle());
        let names: Vec<(&'static str, &'static str)> = self.consumers.iter().map(|c| (c.name, c.source)).collect();
        let source = self.relay.as_ref().and(self.source.clone());
        let preparing = engine.spawn(prepare(self.database.clone(), source, names, self.start_timeout));
        let Prepared { partitions, generations } =
            preparing.await.map_err(|_| Error::Database(DatabaseError::Stopping))??;

        let arbiters = Arbiters::start().await.map_err(Error::Thread)?;
        let (fatal, failed) = Fatal::new();
        let mut consumers = Vec::new();
        for (registration, generation) in self.consumers.into_iter().zip(generations) {
            let parts = Parts { pool: pool.clone(), broker: Arc::clone(&self.broker), handlers: handlers.handle() };
            let work = (registration.make)(parts, generation);
            let (handle, broker, fatal) = (engine.handle(), Arc::clone(&self.broker), fatal.clone());
            let what = format!("the actor of consumer {}", registration.name);
            let make = {
                let fatal = fatal.clone();
                move || ConsumerActor::new(handle, broker, work, fatal)
            };
            let Some(address) = supervise(&arbiters.work(), what, fatal, make).await else {
                return Err(Error::Thread(std::io::Error::other("the actix system is stopping")));
            };
            consumers.push(address);
            tracing::info!(consumer = registration.name, source = registration.source, "consuming");
        }
        let node = match (self.relay, self.source) {
            (Some(relay), Some(source)) => {
                let seed = Seed {
                    engine: engine.handle(),
                    pool: pool.clone(),
                    broker: Arc::clone(&self.broker),
                    source,
                    partitions,
                    limits: relay.limits(),
                    fatal: fatal.clone(),
                };
                start_node(&arbiters, seed, self.database, relay).await
            }
            _ => None,
        };
        Ok(Running { engine, handlers, pool, broker: self.broker, arbiters, node, consumers, failed })
    }

    fn check(&self) -> Result<(), Error> {
        match (&self.relay, &self.source) {
            (Some(_), None) => {
                return Err(Error::Config(
                    "a relay needs a source: add `.source(\"…\")`, for example \"academy.exports\"".into(),
                ));
            }
            (_, Some(source)) => {
                check_token(source).map_err(|unfit| Error::Config(format!("the source {source:?} {unfit}")))?;
                if source.contains('#') {
                    return Err(Error::Config(format!(
                        "the source {source:?} contains `#`, which separates it from the id of an event"
                    )));
                }
            }
            (None, None) => {}
        }
        if let Some(relay) = &self.relay {
            relay.check()?;
        }
        if self.relay.is_none() && self.consumers.is_empty() {
            return Err(Error::Config(
                "nothing to run: add `.relay(Relay::default())`, a `.consumer(…)`, or both".into(),
            ));
        }
        for (place, registration) in self.consumers.iter().enumerate() {
            check_token(registration.name)
                .map_err(|unfit| Error::Config(format!("the consumer name {:?} {unfit}", registration.name)))?;
            registration
                .options
                .check()
                .map_err(|wrong| Error::Config(format!("consumer {:?}: `Options::{wrong}", registration.name)))?;
            if self.consumers[..place].iter().any(|other| other.name == registration.name) {
                return Err(Error::Config(format!(
                    "two consumers are named {:?}: they would share one inbox and hide events from each other",
                    registration.name
                )));
            }
        }
        Ok(())
    }
}

async fn start_node(arbiters: &Arbiters, seed: Seed, database: Database, relay: Relay) -> Option<Addr<Node>> {
    let able = Arc::new(AtomicBool::new(false));
    let terms = Terms::of(relay.lease);
    seed.engine.spawn(watch_broker(seed.clone(), Arc::clone(&able), terms.renew_every));
    let name = relay.name.clone();
    let rebuild = move || Membership {
        database: database.clone(),
        id: uuid::Uuid::new_v4(),
        name: name.clone(),
        terms,
        able: Arc::clone(&able),
        connection: None,
    };
    let (work, fatal) = (vec![arbiters.work()], seed.fatal.clone());
    supervise(&arbiters.control(), "the actor of the node".into(), fatal, move || Node::new(seed, work, rebuild)).await
}

struct Prepared {
    partitions: i32,
    generations: Vec<i32>,
}

/// What must be right before anything runs. Only a missing connection is waited for.
async fn prepare(
    database: Database,
    source: Option<String>,
    consumers: Vec<(&'static str, &'static str)>,
    within: Duration,
) -> Result<Prepared, Error> {
    let waiting = async {
        let mut failures = 0;
        loop {
            match database.open().await {
                Ok(connection) => return connection,
                Err(error) => {
                    failures += 1;
                    tracing::warn!(%error, "waiting for the database");
                    tokio::time::sleep(CONNECT.delay(failures, rand::random())).await;
                }
            }
        }
    };
    let mut connection: AsyncPgConnection = match tokio::time::timeout(within, waiting).await {
        Ok(connection) => connection,
        Err(_) => return Err(Error::Database(database.open().await.err().unwrap_or(DatabaseError::ConnectTimeout))),
    };
    check_schema(&mut connection).await?;
    if let Some(source) = source {
        let settled = settle_source(&mut connection, &source).await.map_err(DatabaseError::from)?;
        if settled != source {
            return Err(Error::Config(format!(
                "the database is the source {settled:?} and this process says {source:?}: a database is one source, for ever; consumers know its events by it"
            )));
        }
    }
    let mut generations = Vec::new();
    for (name, source) in consumers {
        let (generation, registered) = register(&mut connection, name, source).await.map_err(DatabaseError::from)?;
        if registered != source {
            return Err(Error::Config(format!(
                "consumer {name:?} is registered for the source {registered:?} and this process says {source:?}: give it another name"
            )));
        }
        generations.push(generation);
    }
    let partitions = partition_count(&mut connection).await.map_err(DatabaseError::from)?;
    Ok(Prepared { partitions, generations })
}

/// The relay's settings.
///
/// ```
/// use std::time::Duration;
/// use tidings::Relay;
///
/// let relay = Relay::default().lease(Duration::from_secs(15)).name("exports-1");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Relay {
    lease: Duration,
    window: usize,
    window_bytes: usize,
    in_flight: usize,
    backoff: Backoff,
    name: String,
}

impl Default for Relay {
    fn default() -> Self {
        Relay {
            lease: Duration::from_secs(15),
            window: 1_000,
            window_bytes: 16 * 1024 * 1024,
            in_flight: 256,
            backoff: Backoff { min: Duration::from_millis(200), max: Duration::from_secs(60) },
            name: format!("process {}", std::process::id()),
        }
    }
}

impl Relay {
    /// How long a partition stays with a process that does not renew it: the time a takeover takes. Default 15 s.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Events claimed at once, per partition. Default 1,000.
    pub fn window(mut self, events: usize) -> Self {
        self.window = events;
        self
    }

    /// Bytes of data claimed at once, per partition; one event is always taken. Default 16 MiB.
    pub fn window_bytes(mut self, bytes: usize) -> Self {
        self.window_bytes = bytes;
        self
    }

    /// Messages without an acknowledgement at once, per partition; at most one of each aggregate. Default 256.
    pub fn in_flight(mut self, messages: usize) -> Self {
        self.in_flight = messages;
        self
    }

    /// The wait after a failed attempt of an event, and its ceiling. Default 200 ms and 1 min.
    pub fn backoff(mut self, min: Duration, max: Duration) -> Self {
        self.backoff = Backoff { min, max };
        self
    }

    /// What operators see in `tidings.node`. Default `process` and its number.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    fn limits(&self) -> RelayLimits {
        RelayLimits {
            window: self.window,
            window_bytes: self.window_bytes,
            in_flight: self.in_flight,
            backoff: self.backoff,
        }
    }

    fn check(&self) -> Result<(), Error> {
        let wrong = |what: &str| Err(Error::Config(format!("`Relay::{what}`")));
        match self {
            _ if self.lease < Duration::from_millis(500) => {
                wrong("lease is under 500 ms: renewals would come too late under load")
            }
            _ if self.window == 0 => wrong("window is 0: nothing would be published"),
            _ if self.window_bytes == 0 => wrong("window_bytes is 0: nothing would be published"),
            _ if self.in_flight == 0 => wrong("in_flight is 0: nothing would be published"),
            _ if self.backoff.min.is_zero() || self.backoff.max < self.backoff.min => {
                wrong("backoff has a first wait of 0 or above its ceiling")
            }
            _ => Ok(()),
        }
    }
}

/// Tidings at work in this process.
///
/// Dropped without a drain it stops at once, as if the process had died: leases end by themselves, messages in hand are
/// delivered again, and nothing is lost.
#[must_use = "dropping it stops everything"]
pub struct Running {
    engine: Engine,
    #[expect(dead_code, reason = "kept so that the handlers run until the end")]
    handlers: Engine,
    pool: Pool,
    broker: Arc<dyn Broker>,
    arbiters: Arbiters,
    node: Option<Addr<Node>>,
    consumers: Vec<Addr<ConsumerActor>>,
    failed: watch::Receiver<Option<String>>,
}

impl std::fmt::Debug for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Running")
            .field("relay", &self.node.is_some())
            .field("consumers", &self.consumers.len())
            .finish_non_exhaustive()
    }
}

impl Running {
    /// Waits for the signal, then drains. If a part of it cannot go on before that, drains at once and says so.
    ///
    /// # Errors
    /// [`Error::Failed`] if a part could not go on: the process should end and be started again.
    /// [`Error::DrainTimeout`] if the drain did not end in time; nothing is lost by that.
    pub async fn drain_on(self, signal: impl Future<Output = ()>, deadline: Duration) -> Result<(), Error> {
        let mut failed = self.failed.clone();
        tokio::select! {
            () = signal => self.drain(deadline).await,
            what = async { failed.wait_for(Option::is_some).await.ok().and_then(|what| what.clone()) } => {
                let drained = self.drain(deadline).await;
                match what {
                    Some(what) => Err(Error::Failed(what)),
                    None => drained,
                }
            }
        }
    }

    /// Takes no more, finishes what is in hand, records it, gives up the leases, and closes. Ends at the deadline, whatever
    /// PostgreSQL or NATS do.
    ///
    /// # Errors
    /// [`Error::DrainTimeout`] if it did not end in time; nothing is lost by that.
    pub async fn drain(self, deadline: Duration) -> Result<(), Error> {
        let node = self.node.clone();
        let consumers = self.consumers.clone();
        let draining: BoxFuture<'static, ()> = Box::pin(async move {
            let consumers = futures_util::future::join_all(consumers.into_iter().map(|consumer| consumer.send(Drain)));
            let relay = async {
                if let Some(node) = node {
                    let _ = node.send(Drain).await;
                }
            };
            tokio::join!(consumers, relay);
        });
        let broker = Arc::clone(&self.broker);
        let all = self.engine.spawn(async move {
            tokio::time::timeout(deadline, async {
                draining.await;
                broker.flush().await;
            })
            .await
        });
        let in_time = matches!(all.await, Ok(Ok(())));
        self.pool.close();
        self.arbiters.stop();
        if in_time { Ok(()) } else { Err(Error::DrainTimeout(deadline)) }
    }
}

/// Why Tidings did not start, or did not end well.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Settings that cannot work.
    #[error("{0}")]
    Config(String),
    /// The database cannot be used.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// The system gave us no thread.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] std::io::Error),
    /// A part could not go on.
    #[error("{0}: end the process and start it again; the log says what went wrong each time")]
    Failed(String),
    /// The drain took longer than allowed.
    #[error("the drain did not end within {}: PostgreSQL or NATS did not answer, or a handler did not return; what was in hand is done again by others", humantime::format_duration(*.0))]
    DrainTimeout(Duration),
}

const PREFETCH_BYTES: usize = 16 * 1024 * 1024;
const CONNECT: Backoff = Backoff { min: Duration::from_millis(100), max: Duration::from_secs(3) };
