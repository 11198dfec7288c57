//! The consumer's side: every event is applied exactly once, whatever the handler, the processes and the servers do.

mod commands;
mod copies;
mod crash;
mod drain;
mod follows;
mod hosts;
mod locks;
mod outages;
mod panics;
mod settings;
mod transactions;
mod unreadable;

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream::consumer::{Info, pull};
use async_nats::jetstream::{self, Context};
use diesel::sql_types::{BigInt, Nullable, Text};
use diesel_async::{AsyncConnection, AsyncPgConnection, RunQueryDsl, SimpleAsyncConnection};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tidings::broker::{Broker, StreamSpec};
use tidings::consumer::Options;
use tidings::services::{Nats, Postgres};
use tidings::testing::{self, TestDatabase};
use tidings::{Database, JetStream, Tidings, migrate};
use tidings_tests::consumer::{SOURCE, TABLE, options};
use tidings_tests::eventually;

/// How long anything is waited for before the test fails.
const LIMIT: Duration = Duration::from_secs(60);
/// The stream of partition 0 of [`SOURCE`].
const STREAM: &str = "test_consumer_0";
/// Where its events of type `said` go.
const SUBJECT: &str = "test_consumer.0.evt.lane.said";

/// A broker of its own, a database of its own, and a connection to look into it.
struct Bench {
    nats: Nats,
    /// Unless it is one of the shared server's.
    postgres: Option<Postgres>,
    url: String,
    name: String,
    conn: AsyncPgConnection,
    jetstream: Context,
}

impl Bench {
    /// On the shared PostgreSQL, with the stream of the only partition.
    async fn new() -> Bench {
        let bench = Bench::without_stream().await;
        bench.make_stream().await;
        bench
    }

    async fn without_stream() -> Bench {
        let db: TestDatabase = testing::empty_database().await.unwrap();
        Bench::at(db.url().to_owned(), db.source().to_owned(), None).await
    }

    /// On a PostgreSQL of its own, to be stopped and frozen.
    async fn with_own_postgres() -> Bench {
        let postgres = blocking(Postgres::start).await.unwrap();
        let bench = Bench::at(postgres.url(), "postgres".into(), Some(postgres)).await;
        bench.make_stream().await;
        bench
    }

    async fn at(url: String, name: String, postgres: Option<Postgres>) -> Bench {
        migrate(&Database::url(&url).partitions(1)).await.unwrap();
        let nats = blocking(Nats::start).await.unwrap();
        let mut conn = AsyncPgConnection::establish(&url).await.unwrap();
        conn.batch_execute(TABLE).await.unwrap();
        let client = nats.connect_options().connect(nats.url()).await.unwrap();
        Bench { jetstream: jetstream::new(client), nats, postgres, url, name, conn }
    }

    async fn make_stream(&self) {
        let stream = StreamSpec { source: SOURCE.into(), partition: 0, partitions: 1 };
        self.broker().publisher(stream).await.unwrap();
    }

    fn broker(&self) -> JetStream {
        JetStream::url(self.nats.url())
    }

    fn tidings(&self) -> Tidings {
        self.tidings_on(Database::url(&self.url))
    }

    fn tidings_on(&self, database: Database) -> Tidings {
        let _ = tracing_subscriber::fmt().with_env_filter("tidings=info").with_test_writer().try_init();
        Tidings::new(database, self.broker()).source(SOURCE)
    }

    /// Publishes event `n` as a relay would, in a lane of its own.
    async fn say(&self, n: i64) {
        self.publish(SUBJECT, &format!("id-{n}"), &said(n, &format!("lane-{n}")), &data(n)).await;
    }

    /// Publishes a message with headers of its own.
    async fn publish(&self, subject: &str, message_id: &str, headers: &[(&str, String)], data: &str) {
        let mut map = HeaderMap::new();
        map.insert("Nats-Msg-Id", message_id);
        for (name, value) in headers {
            map.insert(*name, value.as_str());
        }
        let publish = self.jetstream.publish_with_headers(subject.to_owned(), map, data.to_owned().into());
        publish.await.unwrap().await.unwrap();
    }

    /// The effects, in order, each as often as it happened.
    async fn heard(&mut self) -> Vec<i64> {
        self.column("SELECT n FROM heard ORDER BY n").await
    }

    /// Waits until exactly these effects are there and nothing is left to do at the broker.
    async fn eventually_heard(&mut self, wanted: &[i64]) {
        eventually("all effects are there", LIMIT, async || (self.heard().await.len() >= wanted.len()).then_some(()))
            .await;
        self.eventually_settled("alpha").await;
        assert_eq!(self.heard().await, wanted);
    }

    async fn eventually_settled(&self, consumer: &str) {
        eventually("all deliveries are settled", LIMIT, async || {
            let info = self.durable(consumer).await?;
            (info.num_pending == 0 && info.num_ack_pending == 0).then_some(())
        })
        .await;
    }

    /// What the broker knows of a consumer.
    async fn durable(&self, consumer: &str) -> Option<Info> {
        let stream = self.jetstream.get_stream(STREAM).await.ok()?;
        let mut durable = stream.get_consumer::<pull::Config>(consumer).await.ok()?;
        durable.info().await.ok().cloned()
    }

    async fn column(&mut self, sql: &str) -> Vec<i64> {
        let rows: Vec<Number> =
            diesel::sql_query(format!("SELECT n FROM ({sql}) AS q (n)")).load(&mut self.conn).await.unwrap();
        rows.into_iter().map(|row| row.n).collect()
    }

    async fn number(&mut self, sql: &str) -> i64 {
        self.column(sql).await[0]
    }

    async fn text(&mut self, sql: &str) -> Option<String> {
        let mut rows: Vec<Words> =
            diesel::sql_query(format!("SELECT t FROM ({sql}) AS q (t)")).load(&mut self.conn).await.unwrap();
        rows.pop().and_then(|row| row.t)
    }

    async fn run(&mut self, sql: &str) {
        self.conn.batch_execute(sql).await.unwrap();
    }

    /// A second session, as somebody at a terminal would have.
    async fn session(&self) -> AsyncPgConnection {
        AsyncPgConnection::establish(&self.url).await.unwrap()
    }

    /// Nothing is dead, and no failed attempt is on record.
    async fn assert_nothing_counted(&mut self) {
        assert_eq!(self.number("SELECT count(*) FROM tidings.attempt").await, 0);
        assert_eq!(self.number("SELECT count(*) FROM tidings.consumer_dead_letter").await, 0);
    }

    /// Waits for the only dead letter, and that its message is settled; returns its class, reason and attempts.
    async fn eventually_dead(&mut self) -> (String, String, i64) {
        eventually("a dead letter", LIMIT, async || {
            (self.number("SELECT count(*) FROM tidings.consumer_dead_letter").await == 1).then_some(())
        })
        .await;
        self.eventually_settled("alpha").await;
        assert_eq!(self.number("SELECT count(*) FROM tidings.inbox WHERE outcome = 'dead'").await, 1);
        assert_eq!(self.number("SELECT count(*) FROM tidings.attempt").await, 0);
        let class = self.text("SELECT class FROM tidings.consumer_dead_letter").await.unwrap();
        let reason = self.text("SELECT reason FROM tidings.consumer_dead_letter").await.unwrap();
        (class, reason, self.number("SELECT attempts::bigint FROM tidings.consumer_dead_letter").await)
    }

    /// A process that consumes.
    fn node(&self, by: &str, environment: &[(&str, &str)]) -> Node {
        let mut command = Command::new(env!("CARGO_BIN_EXE_consumer_node"));
        command.env("DATABASE_URL", &self.url).env("NATS_URL", self.nats.url()).env("BY", by);
        command.envs(environment.iter().copied()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Node(command.spawn().unwrap())
    }
}

/// The headers of event `n` of a lane.
fn said(n: i64, lane: &str) -> Vec<(&'static str, String)> {
    vec![
        ("ce-specversion", "1.0".into()),
        ("ce-id", format!("id-{n}")),
        ("ce-source", SOURCE.into()),
        ("ce-type", "said".into()),
        ("ce-aggregatetype", "lane".into()),
        ("ce-aggregateid", lane.into()),
        ("content-type", "application/json".into()),
    ]
}

fn data(n: i64) -> String {
    format!(r#"{{"lane":"lane-{n}","n":{n}}}"#)
}

/// As many attempts as it takes.
fn patient() -> Options {
    Options { attempts: 20, ..options() }
}

/// Counts from inside a handler.
#[derive(Clone, Default)]
struct Count(Arc<AtomicUsize>);

impl Count {
    /// One more; returns how many there are now.
    fn another(&self) -> usize {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn get(&self) -> usize {
        AtomicUsize::load(&self.0, Ordering::SeqCst)
    }
}

/// A process that is ended with the test.
struct Node(Child);

impl Node {
    /// Waits until it consumes.
    async fn started(mut self) -> Node {
        let output = self.0.stdout.take().unwrap();
        let line = blocking(move || BufReader::new(output).lines().next().and_then(Result::ok)).await;
        assert_eq!(line.as_deref(), Some("started"));
        self
    }

    fn terminate(&self) {
        kill(Pid::from_raw(self.0.id().cast_signed()), Signal::SIGTERM).unwrap();
    }

    /// Waits for its end; returns how it ended and what it logged.
    async fn ended(mut self) -> (std::process::ExitStatus, String) {
        blocking(move || {
            let mut log = String::new();
            self.0.stderr.take().unwrap().read_to_string(&mut log).unwrap();
            (self.0.wait().unwrap(), log)
        })
        .await
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs what blocks on a thread where that does no harm.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}

#[derive(diesel::QueryableByName)]
struct Number {
    #[diesel(sql_type = BigInt)]
    n: i64,
}

#[derive(diesel::QueryableByName)]
struct Words {
    #[diesel(sql_type = Nullable<Text>)]
    t: Option<String>,
}
