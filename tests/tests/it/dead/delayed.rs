//! Append with a time, and cancel before it.

use chrono::{Duration, Utc};
use diesel_async::async_connection_wrapper::AsyncConnectionWrapper;
use diesel_async::{AnsiTransactionManager, AsyncConnection, AsyncPgConnection, TransactionManager};
use tidings::{Cancelled, NewEvent, Tx, cancel};
use tidings_tests::eventually;

use super::{connect, database, number, run, state, words};
use crate::append::role;

fn of(job: &str, id: &str) -> NewEvent {
    NewEvent::raw("job.progressed", "{}").aggregate("job", job).id(id)
}

fn tomorrow() -> chrono::DateTime<Utc> {
    Utc::now() + Duration::days(1)
}

async fn say(connection: &mut AsyncPgConnection, events: Vec<NewEvent>) {
    tidings::transaction(connection, async |tx| tx.append_all(events).await).await.unwrap();
}

async fn take_back(connection: &mut AsyncPgConnection, id: &str) -> Result<Cancelled, cancel::Error> {
    tidings::transaction(connection, async |tx| tx.cancel(id).await).await
}

#[tokio::test]
async fn a_time_to_come_delays_and_one_that_has_passed_does_not() {
    let (_database, mut conn) = database().await;
    let yesterday = Utc::now() - Duration::days(1);
    say(&mut conn, vec![of("a", "a-1").not_before(tomorrow()), of("a", "a-2"), of("b", "b-1").not_before(yesterday)])
        .await;
    tidings::transaction(&mut conn, async |tx| {
        tx.append(of("c", "c-1").not_before(tomorrow())).await?;
        tx.append(of("c", "c-2").not_before(yesterday)).await?;
        tx.append(of("c", "c-9").version(9).not_before(tomorrow())).await?;
        tx.append(NewEvent::raw("t", "{}").id("n").not_before(tomorrow())).await
    })
    .await
    .unwrap();
    let states = words(
        &mut conn,
        "SELECT e.id || ' ' || p.state || CASE WHEN e.version_given THEN ' given' ELSE '' END AS words
           FROM tidings.pending p JOIN tidings.event e USING (seq)
          WHERE p.next_attempt_at IS NOT DISTINCT FROM CASE p.state WHEN 'delayed' THEN e.not_before END ORDER BY e.id",
    );
    let expected =
        ["a-1 delayed", "a-2 ready", "b-1 ready", "c-1 delayed", "c-2 ready", "c-9 delayed given", "n delayed"];
    assert_eq!(states.await, expected);
}

#[tokio::test]
async fn a_time_that_never_comes_is_refused() {
    let (_database, mut conn) = database().await;
    for sql in [
        "SELECT tidings.append('t', 'x', not_before => 'infinity')",
        "SELECT tidings.append('t', 'x', not_before => '-infinity', version => 3, aggregate_type => 'job', aggregate_id => 'a')",
    ] {
        let error = diesel_async::RunQueryDsl::execute(diesel::sql_query(sql), &mut conn).await.unwrap_err();
        let diesel::result::Error::DatabaseError(_, information) = &error else { panic!("{error:?}") };
        assert_eq!(information.constraint_name(), Some("tidings_not_before"), "{error}");
    }
    let batch = "SELECT tidings.append_batch(ARRAY['b', 'c'], ARRAY['t', 't'], ARRAY['x'::bytea, 'x'], ARRAY[NULL, NULL]::text[],
            ARRAY[NULL, NULL]::text[], ARRAY[NULL, NULL]::bigint[], ARRAY[1, 1], ARRAY[NULL, NULL]::text[], ARRAY['x/y', 'x/y'],
            ARRAY[NULL, NULL]::jsonb[], ARRAY[NULL, NULL]::text[], ARRAY[NULL, NULL]::text[], ARRAY[NULL, NULL]::text[],
            ARRAY[NULL, NULL]::text[], ARRAY[NULL, NULL]::timestamptz[], ARRAY[NULL, 'infinity']::timestamptz[])";
    diesel_async::RunQueryDsl::execute(diesel::sql_query(batch), &mut conn).await.unwrap_err();
    assert_eq!(number(&mut conn, "SELECT count(*) AS n FROM tidings.event").await, 0);
}

/// A program that knows version 1 gives its arguments by place, and no time.
#[tokio::test]
async fn older_programs_append_as_before() {
    let (_database, mut conn) = database().await;
    run(
        &mut conn,
        "SELECT tidings.append('t', 'x', 'a', 'job', 'job-1', NULL, 1, NULL, 'text/plain', NULL, NULL, NULL, NULL, NULL, now());
         SELECT tidings.append_batch(ARRAY['b', 'c'], ARRAY['t', 't'], ARRAY['x'::bytea, 'x'], ARRAY['job', 'job'],
                ARRAY['job-1', 'job-2'], ARRAY[NULL, 7]::bigint[], ARRAY[1, 1], ARRAY[NULL, NULL]::text[], ARRAY['text/plain', 'text/plain'],
                ARRAY[NULL, NULL]::jsonb[], ARRAY[NULL, NULL]::text[], ARRAY[NULL, NULL]::text[], ARRAY[NULL, NULL]::text[],
                ARRAY[NULL, NULL]::text[], ARRAY[NULL, NULL]::timestamptz[])",
    )
    .await;
    let told = words(
        &mut conn,
        "SELECT concat_ws(' ', e.id, e.version, e.version_given, p.state) AS words
           FROM tidings.event e JOIN tidings.pending p USING (seq) ORDER BY e.id",
    );
    assert_eq!(told.await, ["a 1 f ready", "b 2 f ready", "c 7 t ready"]);
}

#[tokio::test]
async fn a_cancel_in_time_is_one_with_its_transaction() {
    let (_database, mut conn) = database().await;
    let events = vec![of("a", "a-1").not_before(tomorrow()), NewEvent::raw("t", "{}").id("n").not_before(tomorrow())];
    say(&mut conn, events).await;
    let rolled_back = tidings::transaction(&mut conn, async |tx| {
        assert_eq!(tx.cancel("a-1").await.unwrap(), Cancelled::Cancelled);
        assert_eq!(tx.cancel("a-1").await.unwrap(), Cancelled::AlreadyCancelled);
        Err::<(), _>(diesel::result::Error::RollbackTransaction)
    });
    rolled_back.await.unwrap_err();
    assert_eq!(state(&mut conn, "a-1").await, "delayed pending");
    for (id, after) in [("a-1", "tombstone pending"), ("n", "discarded")] {
        assert_eq!(take_back(&mut conn, id).await.unwrap(), Cancelled::Cancelled);
        assert_eq!(take_back(&mut conn, id).await.unwrap(), Cancelled::AlreadyCancelled);
        assert_eq!(state(&mut conn, id).await, after);
    }
    let record = words(
        &mut conn,
        "SELECT event_id || ' ' || how AS words FROM tidings.discarded WHERE by = session_user ORDER BY seq",
    );
    assert_eq!(record.await, ["a-1 cancelled", "n cancelled"]);
}

#[tokio::test]
async fn what_does_not_wait_is_not_cancelled_and_the_transaction_goes_on() {
    let (_database, mut conn) = database().await;
    say(&mut conn, vec![of("a", "a-1"), of("a", "a-2").not_before(tomorrow())]).await;
    for (found, sql) in [
        ("ready", "SELECT 1"),
        ("retrying", "UPDATE tidings.pending SET state = 'retrying' WHERE state = 'ready'"),
        ("dead", "UPDATE tidings.pending SET state = 'dead' WHERE state = 'retrying'"),
        (
            "confirmed",
            "INSERT INTO tidings.confirmation (seq, partition, incarnation, stream_seq, epoch) SELECT seq, partition, 1, 1, 1 FROM tidings.pending WHERE state = 'dead'; DELETE FROM tidings.pending WHERE state = 'dead'",
        ),
    ] {
        run(&mut conn, sql).await;
        tidings::transaction(&mut conn, async |tx| {
            let error = tx.cancel("a-1").await.unwrap_err();
            assert!(matches!(&error, cancel::Error::TooLate { state, .. } if state == found), "{found}: {error}");
            assert!(matches!(tx.cancel("nobody").await, Err(cancel::Error::Unknown(id)) if id == "nobody"));
            tx.append(NewEvent::raw("t", "{}").id(format!("after {found}").replace(' ', "-"))).await
        })
        .await
        .unwrap();
    }
    assert_eq!(number(&mut conn, "SELECT count(*) AS n FROM tidings.event").await, 6);
}

/// The lock of the row decides: the relay, which moves what is due under that lock, was first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_waits_for_whoever_has_the_row() {
    let (database, mut conn) = database().await;
    say(&mut conn, vec![of("a", "a-1").not_before(tomorrow())]).await;
    AnsiTransactionManager::begin_transaction(&mut conn).await.unwrap();
    run(&mut conn, "UPDATE tidings.pending SET state = 'ready'").await;
    let mut other = connect(&database).await;
    let cancelling = tokio::spawn(async move { take_back(&mut other, "a-1").await });
    let mut watcher = connect(&database).await;
    eventually("it waits for the row", std::time::Duration::from_secs(60), async || {
        let waiting = "SELECT count(*) AS n FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
        (number(&mut watcher, waiting).await == 1).then_some(())
    })
    .await;
    AnsiTransactionManager::commit_transaction(&mut conn).await.unwrap();
    let late = cancelling.await.unwrap().unwrap_err();
    assert!(matches!(&late, cancel::Error::TooLate { state, .. } if state == "ready"), "{late}");
}

#[tokio::test]
async fn the_sync_twin_and_a_joined_transaction_cancel_too() {
    let (database, mut conn) = database().await;
    say(&mut conn, vec![of("a", "a-1").not_before(tomorrow()), of("a", "a-2").not_before(tomorrow())]).await;
    let joined: Result<Cancelled, diesel::result::Error> =
        conn.transaction(async |conn| Ok(Tx::join(conn).unwrap().cancel("a-1").await.unwrap())).await;
    assert_eq!(joined.unwrap(), Cancelled::Cancelled);
    let url = database.url().to_owned();
    let cancelled = tokio::task::spawn_blocking(move || {
        let mut conn = <AsyncConnectionWrapper<AsyncPgConnection> as diesel::Connection>::establish(&url).unwrap();
        tidings::sync::transaction(&mut conn, |tx| {
            assert!(matches!(tx.cancel("nobody"), Err(cancel::Error::Unknown(_))));
            tx.cancel("a-2")
        })
    });
    assert_eq!(cancelled.await.unwrap().unwrap(), Cancelled::Cancelled);
}

#[tokio::test]
async fn the_grants_in_the_readme_are_enough_to_cancel() {
    let (database, mut conn) = database().await;
    say(
        &mut conn,
        vec![of("a", "a-1").not_before(tomorrow()), NewEvent::raw("t", "{}").id("n").not_before(tomorrow())],
    )
    .await;
    say(&mut conn, vec![of("b", "b-1")]).await;
    let url = role(&database, &mut conn, "canceller").await;
    let mut canceller = AsyncPgConnection::establish(&url).await.unwrap();
    for id in ["a-1", "n"] {
        assert_eq!(take_back(&mut canceller, id).await.unwrap(), Cancelled::Cancelled);
        assert_eq!(take_back(&mut canceller, id).await.unwrap(), Cancelled::AlreadyCancelled);
    }
    assert!(matches!(take_back(&mut canceller, "b-1").await, Err(cancel::Error::TooLate { .. })));
    run(&mut conn, "DELETE FROM tidings.pending").await;
    assert!(matches!(take_back(&mut canceller, "b-1").await, Err(cancel::Error::TooLate { .. })));
}
