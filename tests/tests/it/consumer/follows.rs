//! What follows when an event cannot be applied: restarted, tried again later, or set aside.

use std::sync::Arc;
use std::time::Duration;

use diesel::result::{DatabaseErrorKind, Error as DieselError};
use diesel_async::{RunQueryDsl, SimpleAsyncConnection};
use futures_util::FutureExt;
use tidings::consumer::{HandlerError, Isolation, Options};
use tidings::services::proxy::{Direction, Proxy};
use tidings::{Database, testing};
use tidings_tests::consumer::{alpha, hear, options};
use tidings_tests::eventually;
use tokio::sync::Barrier;

use super::{Bench, Count, LIMIT, patient};

/// Two events that conflict, each writing the row that `row` says after both have read all of them. With a single
/// attempt, a counted failure would be the end.
async fn serialization_failure(isolation: Isolation, row: fn(i64) -> i64, taken: &[i64]) {
    let mut bench = Bench::new().await;
    bench.run("CREATE TABLE seat (n bigint PRIMARY KEY, taken bigint); INSERT INTO seat VALUES (1, 0), (2, 0)").await;
    let (runs, barrier) = (Count::default(), Arc::new(Barrier::new(2)));
    let counted = runs.clone();
    let consumer = alpha(move |event, tx| {
        let (first, barrier) = (counted.another() <= 2, Arc::clone(&barrier));
        let write = format!("UPDATE seat SET taken = taken + 1 WHERE n = {}", row(event.n));
        async move {
            diesel::sql_query("SELECT sum(taken) FROM seat").execute(tx.conn()).await?;
            if first {
                barrier.wait().await;
            }
            diesel::sql_query(write).execute(tx.conn()).await?;
            hear(tx, event.n, "alpha").await
        }
        .boxed()
    });
    let running = bench.tidings().consumer_with(consumer, Options { isolation, ..options() }).start().await.unwrap();
    bench.say(1).await;
    bench.say(2).await;
    bench.eventually_heard(&[1, 2]).await;
    assert_eq!(bench.column("SELECT taken FROM seat ORDER BY n").await, taken);
    assert!(runs.get() >= 3, "one of them was restarted");
    bench.assert_nothing_counted().await;
    running.drain(LIMIT).await.unwrap();
}

/// Each of two reads what the other one writes, which comes out at the commit.
#[tokio::test]
async fn a_serialization_failure_of_a_commit_restarts_and_counts_nothing() {
    serialization_failure(Isolation::Serializable, |n| n, &[1, 1]).await;
}

/// Both write one row, which comes out in the statement.
#[tokio::test]
async fn a_serialization_failure_of_a_statement_restarts_and_counts_nothing() {
    serialization_failure(Isolation::RepeatableRead, |_| 1, &[2, 0]).await;
}

/// The one that loses runs once more; if not even that is of use, it is an ordinary failure.
#[tokio::test]
async fn a_unique_violation_in_the_effect_restarts_once_and_then_counts() {
    let mut bench = Bench::new().await;
    bench.run("CREATE TABLE slot (n bigint PRIMARY KEY); INSERT INTO slot VALUES (0)").await;
    let (lucky, unlucky) = (Count::default(), Count::default());
    let (first, second) = (lucky.clone(), unlucky.clone());
    let consumer = alpha(move |event, tx| {
        let collides = if event.n == 1 { first.another() == 1 } else { second.another() > 0 };
        async move {
            let slot = if collides { 0 } else { event.n };
            diesel::sql_query(format!("INSERT INTO slot VALUES ({slot})")).execute(tx.conn()).await?;
            hear(tx, event.n, "alpha").await
        }
        .boxed()
    });
    let running = bench.tidings().consumer_with(consumer, options()).start().await.unwrap();
    bench.say(1).await;
    bench.eventually_heard(&[1]).await;
    assert_eq!(lucky.get(), 2);
    bench.assert_nothing_counted().await;
    bench.say(2).await;
    let (class, _, attempts) = bench.eventually_dead().await;
    assert_eq!((class.as_str(), attempts, unlucky.get()), ("attempts exhausted", 1, 2));
    assert_eq!(bench.heard().await, [1]);
    running.drain(LIMIT).await.unwrap();
}

#[tokio::test]
async fn a_transient_error_is_tried_again_later_with_its_attempts_on_record_and_nothing_begun() {
    let mut bench = Bench::new().await;
    let runs = Count::default();
    let counted = runs.clone();
    // Several connections lie in the pool, so that the one of the failed attempt is not the next to be taken.
    let together = Arc::new(Barrier::new(4));
    let consumer = alpha(move |event, tx| {
        let run = if event.n == 1 { counted.another() } else { 0 };
        let together = Arc::clone(&together);
        async move {
            hear(tx, event.n, "alpha").await?;
            if run == 0 {
                together.wait().await;
                Ok(())
            } else if run <= 2 {
                Err(HandlerError::transient(format!("failure {run}")))
            } else {
                Ok(())
            }
        }
        .boxed()
    });
    let slow = Options { delay_min: Duration::from_secs(2), delay_max: Duration::from_secs(2), ..patient() };
    let running = bench.tidings().consumer_with(consumer, slow).start().await.unwrap();
    for n in 2..6 {
        bench.say(n).await;
    }
    bench.eventually_heard(&[2, 3, 4, 5]).await;
    bench.say(1).await;
    let record = "SELECT attempts || ' ' || last_error FROM tidings.attempt";
    for wanted in ["1 failure 1", "2 failure 2"] {
        eventually(wanted, LIMIT, async || (bench.text(record).await.as_deref() == Some(wanted)).then_some(())).await;
        let begun = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
                        AND state LIKE 'idle in transaction%'";
        for _ in 0..20 {
            assert_eq!(bench.number(begun).await, 0, "a transaction stays begun while nothing is done");
        }
        assert_eq!(bench.heard().await, [2, 3, 4, 5]);
    }
    bench.eventually_heard(&[1, 2, 3, 4, 5]).await;
    bench.assert_nothing_counted().await;
    running.drain(LIMIT).await.unwrap();
}

#[tokio::test]
async fn a_permanent_error_is_a_dead_letter_at_once() {
    let mut bench = Bench::new().await;
    let runs = Count::default();
    let counted = runs.clone();
    let consumer = alpha(move |event, tx| {
        counted.another();
        async move {
            hear(tx, event.n, "alpha").await?;
            Err(HandlerError::permanent("no such lane"))
        }
        .boxed()
    });
    let running = bench.tidings().consumer_with(consumer, patient()).start().await.unwrap();
    bench.say(1).await;
    let (class, reason, attempts) = bench.eventually_dead().await;
    assert_eq!((class.as_str(), reason.as_str(), attempts, runs.get()), ("permanent", "no such lane", 1, 1));
    assert!(bench.heard().await.is_empty());
    let kept =
        "SELECT subject || ' ' || stream || ' ' || stream_seq || ' ' || event_id FROM tidings.consumer_dead_letter";
    assert_eq!(bench.text(kept).await.as_deref(), Some("test_consumer.0.evt.lane.said test_consumer_0 1 id-1"));
    running.drain(LIMIT).await.unwrap();
}

#[tokio::test]
async fn the_last_attempt_is_the_last_across_processes() {
    let mut bench = Bench::new().await;
    let runs = Count::default();
    let mut running = Vec::new();
    for _ in 0..2 {
        let counted = runs.clone();
        let failing = alpha(move |_, _| {
            counted.another();
            async { Err(HandlerError::transient("as ever")) }.boxed()
        });
        let three = Options { attempts: 3, ..options() };
        running.push(bench.tidings().consumer_with(failing, three).start().await.unwrap());
    }
    bench.say(1).await;
    let (class, reason, attempts) = bench.eventually_dead().await;
    assert_eq!((class.as_str(), reason.as_str(), attempts, runs.get()), ("attempts exhausted", "as ever", 3, 3));
    for running in running {
        running.drain(LIMIT).await.unwrap();
    }
}

/// The handler does `what` before it passes on an error of another connection of its own; the one that was lent is fine.
async fn failure_elsewhere(kind: fn() -> DatabaseErrorKind, what: &'static str) {
    let mut bench = Bench::new().await;
    let runs = Count::default();
    let counted = runs.clone();
    let consumer = alpha(move |event, tx| {
        counted.another();
        async move {
            hear(tx, event.n, "alpha").await?;
            tx.conn().batch_execute(what).await?;
            let elsewhere = Box::new("said by another server".to_string());
            Err(DieselError::DatabaseError(kind(), elsewhere).into())
        }
        .boxed()
    });
    let three = Options { attempts: 3, ..options() };
    let running = bench.tidings().consumer_with(consumer, three).start().await.unwrap();
    bench.say(1).await;
    let (class, _, attempts) = bench.eventually_dead().await;
    assert_eq!((class.as_str(), attempts, runs.get()), ("attempts exhausted", 3, 3));
    assert!(bench.heard().await.is_empty());
    running.drain(LIMIT).await.unwrap();
}

/// Or the driver could not send what it was given.
#[tokio::test]
async fn a_connection_lost_elsewhere_is_a_failed_attempt() {
    failure_elsewhere(|| DatabaseErrorKind::UnableToSendCommand, "SELECT 1").await;
}

#[tokio::test]
async fn a_standby_elsewhere_is_a_failed_attempt() {
    failure_elsewhere(|| DatabaseErrorKind::ReadOnlyTransaction, "SELECT 1").await;
}

#[tokio::test]
async fn a_transaction_that_the_handler_made_read_only_is_a_failed_attempt() {
    let writes = "SET TRANSACTION READ ONLY; INSERT INTO heard VALUES (1, 'alpha')";
    failure_elsewhere(|| DatabaseErrorKind::ReadOnlyTransaction, writes).await;
}

/// It writes at the commit, in a transaction that the handler has made read-only.
#[tokio::test]
async fn a_commit_refused_for_what_the_handler_made_read_only_is_a_failed_attempt() {
    let mut bench = Bench::new().await;
    bench.run(&at_commit("CREATE TABLE late (n bigint)")).await;
    let runs = Count::default();
    let counted = runs.clone();
    let consumer = alpha(move |event, tx| {
        counted.another();
        async move { hear(tx, event.n, "alpha").await }.boxed()
    });
    let running = bench.tidings().consumer_with(consumer, options()).start().await.unwrap();
    bench.run("ALTER FUNCTION at_commit() SET transaction_read_only = on").await;
    bench.say(1).await;
    let (class, _, attempts) = bench.eventually_dead().await;
    assert_eq!((class.as_str(), attempts, runs.get()), ("attempts exhausted", 1, 1));
    running.drain(LIMIT).await.unwrap();
}

/// The database says no at the commit itself, and says so: an ordinary failure.
#[tokio::test]
async fn a_refused_commit_is_a_failed_attempt() {
    let mut bench = Bench::new().await;
    bench.run(&at_commit("RAISE EXCEPTION 'not now'")).await;
    let consumer = alpha(|event, tx| async move { hear(tx, event.n, "alpha").await }.boxed());
    let running = bench.tidings().consumer_with(consumer, patient()).start().await.unwrap();
    bench.say(1).await;
    eventually("it is on record", LIMIT, async || bench.text("SELECT last_error FROM tidings.attempt").await).await;
    bench.run("DROP TRIGGER at_commit ON heard").await;
    bench.eventually_heard(&[1]).await;
    bench.assert_nothing_counted().await;
    running.drain(LIMIT).await.unwrap();
}

/// The session dies while it commits; nobody knows how that ended, and the inbox decides.
#[tokio::test]
async fn a_session_that_dies_in_its_commit_counts_nothing() {
    let mut bench = Bench::new().await;
    bench.run("CREATE SEQUENCE commits").await;
    let dies = "IF nextval('commits') <= 3 THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF";
    bench.run(&at_commit(dies)).await;
    let consumer = alpha(|event, tx| async move { hear(tx, event.n, "alpha").await }.boxed());
    let running = bench.tidings().consumer_with(consumer, options()).start().await.unwrap();
    bench.say(1).await;
    bench.eventually_heard(&[1]).await;
    assert_eq!(bench.number("SELECT last_value FROM commits").await, 4);
    bench.assert_nothing_counted().await;
    running.drain(LIMIT).await.unwrap();
}

/// The connection is cut while the server commits. `done`: the server gets through with it, and nobody hears of it;
/// otherwise it is still at it.
async fn cut_in_the_commit(done: bool) {
    let mut bench = Bench::new().await;
    bench.run(&at_commit("PERFORM pg_advisory_xact_lock(42)")).await;
    let proxy = Proxy::start(testing::servers().postgres.port()).unwrap();
    let through = testing::servers().postgres.url_through(&proxy, &bench.name);
    let runs = Count::default();
    let counted = runs.clone();
    let consumer = alpha(move |event, tx| {
        counted.another();
        async move { hear(tx, event.n, "alpha").await }.boxed()
    });
    let running = bench.tidings_on(Database::url(through)).consumer_with(consumer, options()).start().await.unwrap();
    let mut holder = bench.session().await;
    holder.batch_execute("SELECT pg_advisory_lock(42)").await.unwrap();
    bench.say(1).await;
    let waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
                    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    eventually("it commits", LIMIT, async || (bench.number(waits).await == 1).then_some(())).await;
    if done {
        proxy.freeze_only(Direction::ToClient);
        holder.batch_execute("SELECT pg_advisory_unlock(42)").await.unwrap();
        eventually("it is committed", LIMIT, async || (bench.heard().await == [1]).then_some(())).await;
        proxy.cut();
        proxy.thaw();
    } else {
        proxy.cut();
        // The lock stays taken until the abandoned session is ended, or it would commit after all.
        eventually("it is ended", LIMIT, async || (bench.number(waits).await != 1 || runs.get() > 1).then_some(()))
            .await;
        holder.batch_execute("SELECT pg_advisory_unlock(42)").await.unwrap();
    }
    bench.eventually_heard(&[1]).await;
    assert_eq!(runs.get(), if done { 1 } else { 2 });
    bench.assert_nothing_counted().await;
    running.drain(LIMIT).await.unwrap();
}

#[tokio::test]
async fn a_commit_whose_answer_is_lost_happened_once() {
    cut_in_the_commit(true).await;
}

#[tokio::test]
async fn a_commit_that_is_cut_off_is_ended_and_begun_anew() {
    cut_in_the_commit(false).await;
}

/// A trigger that does something while a transaction commits that wrote to `heard`.
fn at_commit(statement: &str) -> String {
    format!(
        "CREATE FUNCTION at_commit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {statement}; RETURN NULL; END $$;
         CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT ON heard DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW EXECUTE FUNCTION at_commit()"
    )
}
