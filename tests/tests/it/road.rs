//! The whole road of one event: append, claim, publish, confirm, deliver, apply, settle.

use std::time::Duration;

use diesel_async::{AsyncConnection, AsyncPgConnection, RunQueryDsl, SimpleAsyncConnection};
use serde::{Deserialize, Serialize};
use tidings::{Consumer, Event, Handle, HandlerError, Received, Relay, Tidings, Tx, testing};
use tidings_tests::eventually;

#[derive(Event, Serialize, Deserialize)]
#[event(type = "exports.completed", aggregate = "job", key = job)]
struct ExportCompleted {
    job: String,
    rows: i64,
}

#[derive(Consumer)]
#[consumer(name = "statistics", source = "test.road", events(ExportCompleted))]
struct Statistics;

impl Handle<ExportCompleted> for Statistics {
    async fn handle(&self, event: Received<ExportCompleted>, tx: &mut Tx<'_>) -> Result<(), HandlerError> {
        diesel::sql_query("UPDATE totals SET exports = exports + 1, rows = rows + $1")
            .bind::<diesel::sql_types::BigInt, _>(event.rows)
            .execute(tx.conn())
            .await?;
        Ok(())
    }
}

#[derive(diesel::QueryableByName, Debug, PartialEq)]
struct Totals {
    #[diesel(sql_type = diesel::sql_types::BigInt)]
    exports: i64,
    #[diesel(sql_type = diesel::sql_types::BigInt)]
    rows: i64,
    #[diesel(sql_type = diesel::sql_types::BigInt)]
    pending: i64,
    #[diesel(sql_type = diesel::sql_types::BigInt)]
    inbox: i64,
}

#[tokio::test]
async fn an_event_said_is_heard_once() {
    let db = testing::database().await.unwrap();
    let mut conn = AsyncPgConnection::establish(db.url()).await.unwrap();
    conn.batch_execute(
        "CREATE TABLE totals (exports bigint not null, rows bigint not null); INSERT INTO totals VALUES (0, 0)",
    )
    .await
    .unwrap();
    let running = Tidings::new(db.database(), testing::jetstream())
        .source("test.road")
        .relay(Relay::default())
        .consumer(Statistics)
        .start()
        .await
        .unwrap();
    for n in 0..50 {
        tidings::transaction(&mut conn, async |tx| {
            tx.append(&ExportCompleted { job: format!("job-{}", n % 7), rows: n }).await?;
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
        })
        .await
        .unwrap();
    }
    let wanted = Totals { exports: 50, rows: (0..50).sum(), pending: 0, inbox: 50 };
    eventually("everything is published and applied", Duration::from_secs(20), async || {
        let totals: Totals = diesel::sql_query(
            "SELECT exports, rows, (SELECT count(*) FROM tidings.pending) AS pending, \
             (SELECT count(*) FROM tidings.inbox WHERE outcome = 'applied') AS inbox FROM totals",
        )
        .get_result(&mut conn)
        .await
        .unwrap();
        (totals == wanted).then_some(())
    })
    .await;
    running.drain(Duration::from_secs(10)).await.unwrap();
}

#[derive(Event, Serialize, Deserialize)]
#[event(type = "slow.asked")]
struct SlowAsked;

/// Holds its connection until it is told to go on.
#[derive(Consumer)]
#[consumer(name = "slow", source = "test.busy", events(SlowAsked), concurrency = 4, timeout = "60s")]
struct Slow(tokio::sync::watch::Receiver<bool>);

impl Handle<SlowAsked> for Slow {
    async fn handle(&self, _: Received<SlowAsked>, _: &mut Tx<'_>) -> Result<(), HandlerError> {
        self.0.clone().wait_for(|go| *go).await?;
        Ok(())
    }
}

#[tokio::test]
async fn handlers_that_hold_every_connection_keep_no_event_from_being_published() {
    let db = testing::database().await.unwrap();
    let mut conn = AsyncPgConnection::establish(db.url()).await.unwrap();
    let (go, told) = tokio::sync::watch::channel(false);
    let running = Tidings::new(db.database().pool_size(2), testing::jetstream())
        .source("test.busy")
        .relay(Relay::default())
        .consumer(Slow(told))
        .start()
        .await
        .unwrap();
    let append = async |conn: &mut AsyncPgConnection| {
        tidings::transaction(conn, async |tx| {
            tx.append(&SlowAsked).await?;
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
        })
        .await
        .unwrap();
    };
    for _ in 0..4 {
        append(&mut conn).await;
    }
    let busy = "pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'";
    eventually("both connections are with handlers", Duration::from_secs(20), async || {
        (rows(&mut conn, busy).await == 2).then_some(())
    })
    .await;
    append(&mut conn).await;
    eventually("the fifth event is confirmed", Duration::from_secs(20), async || {
        (rows(&mut conn, "tidings.confirmation").await == 5).then_some(())
    })
    .await;
    assert_eq!(rows(&mut conn, "tidings.inbox").await, 0, "no handler has ended yet");
    go.send_replace(true);
    eventually("all five are applied", Duration::from_secs(20), async || {
        (rows(&mut conn, "tidings.inbox WHERE outcome = 'applied'").await == 5).then_some(())
    })
    .await;
    running.drain(Duration::from_secs(10)).await.unwrap();
}

/// A web server that handles the signal by itself stops the whole actix system of its host, before the drain.
#[test]
fn a_drain_gives_the_leases_up_though_the_hosts_system_has_been_stopped() {
    actix::System::new().block_on(async {
        let db = testing::database().await.unwrap();
        let mut conn = AsyncPgConnection::establish(db.url()).await.unwrap();
        let running = Tidings::new(db.database(), testing::jetstream())
            .source(db.source())
            .relay(Relay::default())
            .start()
            .await
            .unwrap();
        eventually("all partitions are owned", Duration::from_secs(20), async || {
            (rows(&mut conn, "tidings.partition WHERE owner IS NOT NULL").await == 4).then_some(())
        })
        .await;
        actix::System::current().stop();
        running.drain(Duration::from_secs(10)).await.unwrap();
        assert_eq!(rows(&mut conn, "tidings.partition WHERE owner IS NOT NULL").await, 0);
        assert_eq!(rows(&mut conn, "tidings.node").await, 0);
    });
}

#[tokio::test]
async fn a_url_that_is_none_is_said_at_the_start() {
    let db = testing::database().await.unwrap();
    let starting = Tidings::new(db.database(), tidings::JetStream::url("nonsense://h o s t"))
        .source("test.url")
        .relay(Relay::default())
        .start();
    let error = starting.await.map(drop).expect_err("it is no URL").to_string();
    assert!(error.contains("nats://user:password@host:port"), "{error}");
}

async fn rows(conn: &mut AsyncPgConnection, of: &str) -> i64 {
    #[derive(diesel::QueryableByName)]
    struct Count {
        #[diesel(sql_type = diesel::sql_types::BigInt)]
        n: i64,
    }
    let count: Count = diesel::sql_query(format!("SELECT count(*) AS n FROM {of}")).get_result(conn).await.unwrap();
    count.n
}
