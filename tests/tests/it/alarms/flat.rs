//! A look costs the same however much waits.

use std::time::Duration;

use diesel::sql_types::BigInt;
use diesel_async::{AsyncConnection, AsyncPgConnection, RunQueryDsl};
use tidings::testing::TestDatabase;
use tidings_tests::eventually;

use super::gauges::near;
use super::{SOON, execute, letter, one_partition, patient, rows, watch};

#[derive(diesel::QueryableByName)]
struct Read {
    #[diesel(sql_type = BigInt)]
    rows: i64,
}

/// How many rows and index entries of the pending events anybody has read so far.
async fn read(database: &TestDatabase) -> i64 {
    let mut conn = AsyncPgConnection::establish(database.url()).await.unwrap();
    let count = "SELECT (t.seq_tup_read + (SELECT sum(i.idx_tup_read) FROM pg_stat_user_indexes i WHERE i.relid = t.relid))::bigint AS rows
                   FROM pg_stat_user_tables t WHERE t.relid = 'tidings.pending'::regclass";
    diesel::sql_query(count).get_result::<Read>(&mut conn).await.unwrap().rows
}

/// Reads with one look. The server writes its counts down when a session has been idle for a moment, or has ended.
async fn one_look(database: &TestDatabase) -> i64 {
    let before = read(database).await;
    let (watching, _) = watch(database.database(), patient().every(Duration::from_secs(3_600))).await;
    near(database.source(), "tidings_pending", 0.0, f64::MAX).await;
    watching.drain(SOON).await.unwrap();
    eventually("the server has counted", SOON, async || Some(read(database).await - before).filter(|rows| *rows > 0))
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn however_much_waits() {
    let database = one_partition().await;
    let source = database.source();
    execute(
        &database,
        &format!("UPDATE tidings.setting SET source = '{source}'; {}", rows(1, 100_000, "g % 1000", "ready")),
    )
    .await;
    execute(&database, "ANALYZE tidings.pending, tidings.event").await;
    let rows = one_look(&database).await;
    assert!(rows <= 10_100, "a look read {rows} rows of 100,000");
}

#[tokio::test(flavor = "multi_thread")]
async fn however_much_is_held_and_dead_and_due_tomorrow() {
    let database = one_partition().await;
    let source = database.source();
    let all = [
        format!("UPDATE tidings.setting SET source = '{source}';"),
        rows(1, 30_000, "g % 3000", "dead"),
        (1..=2_000).map(letter).collect(),
        rows(30_001, 60_000, "g % 3000", "ready"),
        rows(60_001, 100_000, "g", "delayed"),
        "UPDATE tidings.pending SET next_attempt_at = now() + interval '1 day' WHERE state = 'delayed'".into(),
    ];
    execute(&database, &all.concat()).await;
    execute(&database, "ANALYZE tidings.pending, tidings.event, tidings.dead_letter").await;
    let rows = one_look(&database).await;
    assert!(rows <= 25_000, "a look read {rows} rows of 100,000");
}
