//! The host: what of Tidings runs in this process, and how it starts and ends.

mod prepare;
mod relay;
mod running;
mod system;

use std::sync::Arc;
use std::time::Duration;

use actix::Addr;
use tokio::sync::Semaphore;

use crate::actors::alarm::{Callback, Post, Watchman, tell};
use crate::actors::consumer::Consumer as ConsumerActor;
use crate::actors::node::{Membership, Node, Reach, watch_broker};
use crate::actors::partition::Seed;
use crate::actors::supervisor::{Fatal, supervise};
use crate::broker::Broker;
use crate::consumer::{Consumer, Options};
use crate::inbox::deliver::{Limits as InboxLimits, Work, Worker};
use crate::outbox::alarms::{Alarm, Alarms};
use crate::outbox::board::Board;
use crate::outbox::look::{Resting, look_for_all};
use crate::outbox::publish::Ground;
use crate::postgres::{Database, Engine, Error as DatabaseError, Pool};
use crate::protocol::lease::Terms;
use crate::protocol::token::check_token;
use crate::telemetry;
use prepare::{Prepared, prepare};
pub use relay::Relay;
pub use running::Running;
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
    alarms: Option<Alarms>,
    on_alarm: Option<Callback>,
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
            .field("alarms", &self.alarms)
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
            alarms: None,
            on_alarm: None,
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

    /// Watches the outbox with limits of your own. A process with a relay watches in any case; one without, which only
    /// appends or consumes, watches if it is told to, and then says it, too, when no relay runs anywhere.
    pub fn alarms(mut self, alarms: Alarms) -> Self {
        self.alarms = Some(alarms);
        self
    }

    /// Calls this when an alarm is raised, and when it is over, beside the log and the metrics. It watches as
    /// [`alarms`](Self::alarms) does.
    ///
    /// It runs on a thread for handlers, one alarm after another; one that blocks delays the next alarms, and handlers,
    /// and nothing else. A panic of it is said in the log.
    pub fn on_alarm(mut self, callback: impl Fn(&Alarm) + Send + Sync + 'static) -> Self {
        self.alarms.get_or_insert_default();
        self.on_alarm = Some(Arc::new(callback));
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
        let pool = Pool::for_handlers(&self.database, engine.handle());
        let connections = self.relay.as_ref().map_or(1, |relay| relay.connections);
        let relay_pool = Pool::for_relay(&self.database, engine.handle(), connections);
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
                return Err(stopping());
            };
            consumers.push(address);
            telemetry::consumer_begins(registration.name);
            tracing::info!(consumer = registration.name, source = registration.source, "consuming");
        }
        let board = Board::default();
        let alarms = self.alarms.or(self.relay.is_some().then(Alarms::default));
        let mut watchman = None;
        if let Some(alarms) = alarms {
            let post = Post {
                engine: engine.handle(),
                pool: relay_pool.clone(),
                board: board.clone(),
                source: self.source.clone(),
                partitions,
                alarms,
                tell: self.on_alarm.map(|callback| tell(&handlers.handle(), callback)),
            };
            let (what, said) = ("the actor of the alarms".to_owned(), fatal.clone());
            let work = arbiters.work();
            let watching = supervise(&work, what, fatal.clone(), move || Watchman::new(post, said));
            watchman = Some(watching.await.ok_or_else(stopping)?);
        }
        let node = match (self.relay, self.source) {
            (Some(relay), Some(source)) => {
                telemetry::relay_begins(partitions);
                let ground = Ground {
                    pool: relay_pool.clone(),
                    broker: Arc::clone(&self.broker),
                    source,
                    partitions,
                    limits: relay.limits(),
                    board,
                };
                let resting = Arc::new(Resting::default());
                let seed = Seed { engine: engine.handle(), ground, resting, fatal: fatal.clone() };
                Some(start_node(&arbiters, seed, self.database, relay).await.ok_or_else(stopping)?)
            }
            _ => None,
        };
        Ok(Running {
            engine,
            handlers,
            pools: [pool, relay_pool],
            broker: self.broker,
            arbiters,
            node,
            consumers,
            watchman,
            failed,
        })
    }

    /// What can be said of the settings before anything is tried.
    pub(crate) fn check(&self) -> Result<(), Error> {
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
        self.broker.check().map_err(Error::Config)?;
        if let Some(relay) = &self.relay {
            relay.check()?;
        }
        if let Some(alarms) = &self.alarms {
            alarms.check().map_err(|wrong| Error::Config(format!("`Alarms::{wrong}`")))?;
        }
        if self.relay.is_none() && self.consumers.is_empty() && self.alarms.is_none() {
            return Err(Error::Config(
                "nothing to run: add `.relay(Relay::default())`, a `.consumer(…)`, or both; or `.alarms(…)`, to watch only"
                    .into(),
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

fn stopping() -> Error {
    Error::Thread(std::io::Error::other("the actix system is stopping"))
}

async fn start_node(arbiters: &Arbiters, seed: Seed, database: Database, relay: Relay) -> Option<Addr<Node>> {
    let reach = Arc::new(Reach::default());
    let terms = Terms::of(relay.lease);
    seed.engine.spawn(watch_broker(seed.clone(), Arc::clone(&reach), terms.renew_every));
    seed.engine.spawn(look_for_all(seed.ground.pool.clone(), Arc::clone(&seed.resting)));
    let name = relay.name.clone();
    let rebuild = move || Membership {
        database: database.clone(),
        id: uuid::Uuid::new_v4(),
        name: name.clone(),
        terms,
        reach: Arc::clone(&reach),
        connection: None,
    };
    let (work, fatal) = (vec![arbiters.work()], seed.fatal.clone());
    supervise(&arbiters.control(), "the actor of the node".into(), fatal, move || Node::new(seed, work, rebuild)).await
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
    /// The drain ended, and the leases could not be given up.
    #[error("the leases could not be given up: PostgreSQL did not take it (the log says why); they end by themselves")]
    LeasesKept,
    /// The drain took longer than allowed.
    #[error("the drain did not end within {}: PostgreSQL or NATS did not answer, or a handler did not return; what was in hand is done again by others", humantime::format_duration(*.0))]
    DrainTimeout(Duration),
}

const PREFETCH_BYTES: usize = 16 * 1024 * 1024;
