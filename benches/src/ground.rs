//! Where a measurement takes place: servers of its own, and for each run a database and streams of its own.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_nats::jetstream::context::ContextBuilder;
use async_nats::jetstream::stream::{Config, DiscardPolicy, StorageType};
use async_nats::jetstream::{Context, consumer};
use futures_util::StreamExt;
use tidings::host::Running;
use tidings::services::{NatsOptions, PostgresOptions, Services};
use tidings::{Database, JetStream, Relay, Tidings};
use tokio_postgres::{Client, NoTls};

use crate::bare;
use crate::usage::{Processes, Seconds};

pub(crate) use crate::bare::Error;

/// The servers of one scenario.
pub(crate) struct Servers {
    services: Services,
    kind: Kind,
    pub(crate) processes: Processes,
}

/// What differs from scenario to scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Plain,
    /// nats-server writes every message through to the disk before it acknowledges it.
    SyncAlways,
    /// PostgreSQL counts its statements, which costs a little.
    Counting,
}

impl Servers {
    pub(crate) fn start(kind: Kind) -> Result<Servers, Error> {
        let mut postgres = PostgresOptions::new()
            .setting("shared_buffers", "512MB")
            .setting("max_wal_size", "8GB")
            .setting("checkpoint_timeout", "30min");
        let mut nats = NatsOptions::new();
        match kind {
            Kind::Plain => {}
            Kind::SyncAlways => nats = nats.sync_interval("always"),
            Kind::Counting => postgres = postgres.setting("shared_preload_libraries", "pg_stat_statements"),
        }
        let services = Services::start_with(postgres, nats)?;
        let gone = "the server has ended";
        let processes =
            Processes { postmaster: services.postgres.pid().ok_or(gone)?, nats: services.nats.pid().ok_or(gone)? };
        Ok(Servers { services, kind, processes })
    }

    /// A new database with the tables of both sides.
    pub(crate) async fn ground(&self) -> Result<Ground, Error> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let source = format!("bench{}", COUNT.fetch_add(1, Ordering::Relaxed));
        self.services.postgres.create_database(&source)?;
        let url = self.services.postgres.url_of(&source);
        tidings::migrate(&Database::url(url.clone())).await?;
        let admin = connect(&url).await?;
        admin.batch_execute(bare::TABLE).await?;
        let ground = Ground {
            nats_url: self.services.nats.url(),
            // A sync for a batch instead of one for each message: what the option is for.
            atomic_batches: self.kind == Kind::SyncAlways,
            context: self.context().await?,
            processes: self.processes,
            url,
            source,
            admin,
        };
        for partition in 0..PARTITIONS {
            ground.context.create_stream(ground.stream(partition)).await?;
        }
        Ok(ground)
    }

    /// Gives the disk back.
    pub(crate) async fn clear(&self, ground: Ground) -> Result<(), Error> {
        for partition in 0..PARTITIONS {
            ground.context.delete_stream(ground.stream_name(partition)).await?;
        }
        let source = ground.source.clone();
        drop(ground);
        self.services.postgres.drop_database(&source)?;
        Ok(())
    }

    pub(crate) async fn context(&self) -> Result<Context, Error> {
        let address = format!("127.0.0.1:{}", self.services.nats.port());
        Ok(ContextBuilder::new().build(self.services.nats.connect_options().connect(address).await?))
    }
}

/// A database with the tables of both sides, and the streams that both publish to.
pub(crate) struct Ground {
    pub(crate) url: String,
    pub(crate) nats_url: String,
    atomic_batches: bool,
    pub(crate) source: String,
    pub(crate) admin: Client,
    pub(crate) context: Context,
    processes: Processes,
}

/// What had been used at a moment.
pub(crate) struct Before {
    seconds: Seconds,
    log: i64,
}

/// What was used since.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Used {
    pub(crate) seconds: Seconds,
    pub(crate) wal_bytes: f64,
}

impl Ground {
    pub(crate) async fn client(&self) -> Result<Client, Error> {
        connect(&self.url).await
    }

    pub(crate) async fn relay(&self) -> Result<Running, Error> {
        let jetstream = JetStream::url(self.nats_url.clone()).atomic_batches(self.atomic_batches);
        let tidings = Tidings::new(Database::url(self.url.clone()), jetstream);
        Ok(tidings.source(self.source.clone()).relay(Relay::default()).start().await?)
    }

    pub(crate) async fn bare(&self, batch: i64) -> Result<bare::Loop, Error> {
        bare::Loop::new(self.client().await?, self.context.clone(), &self.source, batch).await
    }

    /// Nothing that was left to do later is done in the time that is measured.
    pub(crate) async fn settle(&self) -> Result<(), Error> {
        self.admin.batch_execute("ANALYZE").await?;
        self.admin.batch_execute("CHECKPOINT").await?;
        Ok(())
    }

    pub(crate) async fn before(&self) -> Result<Before, Error> {
        let log = self.log().await?;
        Ok(Before { seconds: self.processes.seconds(), log })
    }

    pub(crate) async fn used_since(&self, before: &Before) -> Result<Used, Error> {
        let seconds = self.processes.seconds().since(before.seconds);
        Ok(Used { seconds, wal_bytes: (self.log().await? - before.log) as f64 })
    }

    async fn log(&self) -> Result<i64, Error> {
        self.number("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint").await
    }

    pub(crate) async fn number(&self, query: &str) -> Result<i64, Error> {
        Ok(self.admin.query_one(query, &[]).await?.get(0))
    }

    /// How many messages the streams hold.
    pub(crate) async fn stored(&self) -> Result<u64, Error> {
        let mut stored = 0;
        for partition in 0..PARTITIONS {
            stored += self.state(partition).await?.messages;
        }
        Ok(stored)
    }

    /// When the first message was stored, in seconds since 1970.
    pub(crate) async fn first_stored(&self) -> Result<f64, Error> {
        let mut first = f64::INFINITY;
        for partition in 0..PARTITIONS {
            let state = self.state(partition).await?;
            if state.messages > 0 {
                first = first.min(state.first_timestamp.unix_timestamp_nanos() as f64 / 1e9);
            }
        }
        Ok(first)
    }

    /// Waits until a stream holds so many messages. Asks seldom: this program's time is counted too.
    pub(crate) async fn until_stored(&self, partition: i32, messages: u64) -> Result<(), Error> {
        let started = tokio::time::Instant::now();
        loop {
            let stored = self.state(partition).await?.messages;
            if stored >= messages {
                return Ok(());
            }
            if started.elapsed() > PATIENCE {
                return Err(format!("stream {partition} holds {stored} of {messages} messages").into());
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn state(&self, partition: i32) -> Result<async_nats::jetstream::stream::State, Error> {
        let stream = self.context.get_stream_no_info(self.stream_name(partition)).await?;
        Ok(stream.get_info().await?.state)
    }

    /// All messages: the data, and when each was stored, in seconds since 1970.
    pub(crate) async fn messages(&self) -> Result<Vec<(bytes::Bytes, f64)>, Error> {
        let mut messages = Vec::new();
        for partition in 0..PARTITIONS {
            let stream = self.context.get_stream(self.stream_name(partition)).await?;
            let count = usize::try_from(stream.cached_info().state.messages)?;
            let config =
                consumer::pull::OrderedConfig { deliver_policy: consumer::DeliverPolicy::All, ..Default::default() };
            let mut reading = stream.create_consumer(config).await?.messages().await?.take(count);
            while let Some(message) = reading.next().await {
                let message = message?;
                let stored = message.info()?.published.unix_timestamp_nanos() as f64 / 1e9;
                messages.push((message.payload.clone(), stored));
            }
        }
        Ok(messages)
    }

    /// As the relay makes them; both sides find them made.
    fn stream(&self, partition: i32) -> Config {
        Config {
            name: self.stream_name(partition),
            subjects: vec![format!("{}.{partition}.>", self.source)],
            storage: StorageType::File,
            discard: DiscardPolicy::New,
            max_age: Duration::from_secs(7 * 24 * 3600),
            duplicate_window: Duration::from_secs(120),
            allow_direct: true,
            metadata: [
                ("tidings-source", self.source.clone()),
                ("tidings-partition", partition.to_string()),
                ("tidings-partitions", PARTITIONS.to_string()),
            ]
            .map(|(name, value)| (name.to_owned(), value))
            .into(),
            ..Config::default()
        }
    }

    fn stream_name(&self, partition: i32) -> String {
        format!("{}_{partition}", self.source)
    }
}

/// Seconds since 1970: the clock of this machine, which is that of the servers too.
pub(crate) fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}

async fn connect(url: &str) -> Result<Client, Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

pub(crate) const PARTITIONS: i32 = 4;
const LOOK: Duration = Duration::from_millis(10);
const PATIENCE: Duration = Duration::from_secs(900);
