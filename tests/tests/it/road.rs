//! The whole road of one event: append, claim, publish, confirm, deliver, apply, settle.

use std::time::Duration;

use diesel_async::{AsyncConnection, AsyncPgConnection, RunQueryDsl, SimpleAsyncConnection};
use serde::{Deserialize, Serialize};
use tidings::consumer::HandlerError;
use tidings::{Consumer, Event, Handle, Received, Relay, Tidings, Tx, testing};

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
    let _ = tracing_subscriber::fmt().with_env_filter("tidings=info").with_test_writer().try_init();
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
    let started = std::time::Instant::now();
    loop {
        let totals: Totals = diesel::sql_query(
            "SELECT exports, rows, (SELECT count(*) FROM tidings.pending) AS pending, (SELECT count(*) FROM tidings.inbox WHERE outcome = 'applied') AS inbox FROM totals",
        )
        .get_result(&mut conn)
        .await
        .unwrap();
        if totals == (Totals { exports: 50, rows: (0..50).sum(), pending: 0, inbox: 50 }) {
            break;
        }
        assert!(started.elapsed() < Duration::from_secs(20), "{totals:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    running.drain(Duration::from_secs(10)).await.unwrap();
}
