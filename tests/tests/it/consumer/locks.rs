//! Waiting for others: deadlocks, lock timeouts, handlers that take too long, and a competitor for the same event.

use std::sync::Arc;
use std::time::{Duration, Instant};

use diesel_async::{RunQueryDsl, SimpleAsyncConnection};
use futures_util::FutureExt;
use tidings::Database;
use tidings::consumer::{Isolation, Options};
use tidings_tests::consumer::{alpha, hear, options};
use tidings_tests::eventually;
use tokio::sync::Barrier;

use super::{Bench, Count, LIMIT, patient};

/// Two events that lock two rows in opposite orders.
async fn deadlock(options: Options) -> Bench {
    let mut bench = Bench::new().await;
    let name = bench.name.clone();
    bench.run(&format!("ALTER DATABASE {name} SET deadlock_timeout = '100ms'")).await;
    bench.run("CREATE TABLE shelf (n bigint PRIMARY KEY, hits bigint); INSERT INTO shelf VALUES (1, 0), (2, 0)").await;
    let (runs, barrier) = (Count::default(), Arc::new(Barrier::new(2)));
    let consumer = alpha(move |event, tx| {
        let (first, barrier) = (runs.another() <= 2, Arc::clone(&barrier));
        async move {
            let hit = |n: i64| diesel::sql_query(format!("UPDATE shelf SET hits = hits + 1 WHERE n = {n}"));
            hit(event.n).execute(tx.conn()).await?;
            if first {
                barrier.wait().await;
            }
            hit(3 - event.n).execute(tx.conn()).await?;
            hear(tx, event.n, "alpha").await
        }
        .boxed()
    });
    let running = bench.tidings().consumer_with(consumer, options).start().await.unwrap();
    bench.say(1).await;
    bench.say(2).await;
    bench.eventually_settled("alpha").await;
    running.drain(LIMIT).await.unwrap();
    bench
}

#[tokio::test]
async fn a_deadlock_is_tried_again() {
    let mut bench = deadlock(patient()).await;
    bench.eventually_heard(&[1, 2]).await;
    assert_eq!(bench.column("SELECT hits FROM shelf").await, [2, 2]);
    bench.assert_nothing_counted().await;
}

#[tokio::test]
async fn a_deadlock_counts() {
    let mut bench = deadlock(options()).await;
    let (class, _, attempts) = bench.eventually_dead().await;
    assert_eq!((class.as_str(), attempts), ("attempts exhausted", 1));
    assert_eq!(bench.heard().await.len(), 1);
    assert_eq!(bench.column("SELECT hits FROM shelf").await, [1, 1]);
}

#[tokio::test]
async fn a_lock_timeout_in_the_effect_counts_and_is_tried_again() {
    let mut bench = Bench::new().await;
    bench.run("CREATE TABLE shelf (n bigint PRIMARY KEY); INSERT INTO shelf VALUES (1)").await;
    let consumer = alpha(|event, tx| {
        async move {
            diesel::sql_query("SELECT 1 FROM shelf FOR UPDATE").execute(tx.conn()).await?;
            hear(tx, event.n, "alpha").await
        }
        .boxed()
    });
    let database = Database::url(&bench.url).lock_timeout(Duration::from_millis(100));
    let running = bench.tidings_on(database).consumer_with(consumer, patient()).start().await.unwrap();
    let mut holder = bench.session().await;
    holder.batch_execute("BEGIN; SELECT 1 FROM shelf FOR UPDATE").await.unwrap();
    bench.say(1).await;
    let counted = "SELECT count(*) FROM tidings.attempt WHERE attempts >= 2";
    eventually("two attempts are on record", LIMIT, async || (bench.number(counted).await == 1).then_some(())).await;
    holder.batch_execute("ROLLBACK").await.unwrap();
    bench.eventually_heard(&[1]).await;
    bench.assert_nothing_counted().await;
    running.drain(LIMIT).await.unwrap();
}

/// Another session has the inbox row of the event and has not committed yet; waiting for it takes longer than the lock
/// timeout, and counts as nothing.
async fn competitor(isolation: Isolation, ends: &str, wanted: &[i64]) {
    let mut bench = Bench::new().await;
    let consumer = alpha(|event, tx| async move { hear(tx, event.n, "alpha").await }.boxed());
    let database = Database::url(&bench.url).lock_timeout(Duration::from_millis(300));
    let options = Options { isolation, ..options() };
    let running = bench.tidings_on(database).consumer_with(consumer, options).start().await.unwrap();
    let mut other = bench.session().await;
    other
        .batch_execute(
            "BEGIN; INSERT INTO tidings.inbox (consumer, generation, source, event_id, outcome)
                    VALUES ('alpha', 1, 'test.consumer', 'id-1', 'applied')",
        )
        .await
        .unwrap();
    bench.say(1).await;
    let waits = "SELECT coalesce(min(pid), 0)::bigint FROM pg_stat_activity WHERE datname = current_database()
                    AND wait_event_type = 'Lock' AND query LIKE '%tidings.inbox%'";
    eventually("it waits", LIMIT, async || (bench.number(waits).await > 0).then_some(())).await;
    eventually("the lock timeout passes", LIMIT, async || (bench.number(waits).await == 0).then_some(())).await;
    eventually("it waits again", LIMIT, async || (bench.number(waits).await > 0).then_some(())).await;
    assert_eq!(bench.durable("alpha").await.unwrap().num_ack_pending, 1, "an uncommitted row is no evidence");
    other.batch_execute(ends).await.unwrap();
    bench.eventually_heard(wanted).await;
    bench.assert_nothing_counted().await;
    running.drain(LIMIT).await.unwrap();
}

#[tokio::test]
async fn a_competitor_that_commits_has_done_it() {
    competitor(Isolation::ReadCommitted, "COMMIT", &[]).await;
}

#[tokio::test]
async fn a_competitor_that_commits_has_done_it_also_above_read_committed() {
    competitor(Isolation::Serializable, "COMMIT", &[]).await;
}

#[tokio::test]
async fn a_competitor_that_rolls_back_has_not() {
    competitor(Isolation::ReadCommitted, "ROLLBACK", &[1]).await;
}

/// A handler that takes too long: its statement is cancelled on the server, and its locks are free at once.
async fn too_long(in_the_database: bool) {
    let mut bench = Bench::new().await;
    bench.run("CREATE TABLE shelf (n bigint PRIMARY KEY); INSERT INTO shelf VALUES (1)").await;
    let runs = Count::default();
    let counted = runs.clone();
    let consumer = alpha(move |event, tx| {
        let first = counted.another() == 1;
        async move {
            diesel::sql_query("SELECT 1 FROM shelf FOR UPDATE").execute(tx.conn()).await?;
            hear(tx, event.n, "alpha").await?;
            if first && in_the_database {
                diesel::sql_query("SELECT pg_sleep(600)").execute(tx.conn()).await?;
            } else if first {
                tokio::time::sleep(LIMIT * 10).await;
            }
            Ok(())
        }
        .boxed()
    });
    let short = Options {
        timeout: Duration::from_millis(700),
        delay_min: Duration::from_secs(3),
        delay_max: Duration::from_secs(3),
        ..patient()
    };
    let running = bench.tidings().consumer_with(consumer, short).start().await.unwrap();
    bench.say(1).await;
    let record = "SELECT attempts || ' ' || last_error FROM tidings.attempt";
    let recorded = eventually("an attempt is on record", LIMIT, async || bench.text(record).await).await;
    assert_eq!(recorded, "1 the handler did not end within its timeout of 700ms");
    let asked = Instant::now();
    bench.run("SET lock_timeout = '20s'; BEGIN; SELECT 1 FROM shelf FOR UPDATE; COMMIT").await;
    assert!(asked.elapsed() < Duration::from_secs(2), "the lock was held for {:?}", asked.elapsed());
    let sleeps =
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE '%pg_sleep(600)'";
    eventually("its session is gone", LIMIT, async || (bench.number(sleeps).await == 0).then_some(())).await;
    bench.eventually_heard(&[1]).await;
    assert_eq!(runs.get(), 2);
    bench.assert_nothing_counted().await;
    running.drain(LIMIT).await.unwrap();
}

#[tokio::test]
async fn a_handler_that_waits_too_long_for_the_database_is_cancelled_there() {
    too_long(true).await;
}

#[tokio::test]
async fn a_handler_that_waits_too_long_elsewhere_leaves_no_lock() {
    too_long(false).await;
}

/// It cannot be stopped, but what it did in the time that was not its own does not count.
#[tokio::test]
async fn a_handler_that_blocks_past_its_timeout_has_failed() {
    let mut bench = Bench::new().await;
    let consumer = alpha(|event, tx| {
        async move {
            hear(tx, event.n, "alpha").await?;
            std::thread::sleep(Duration::from_millis(300));
            Ok(())
        }
        .boxed()
    });
    let short = Options { timeout: Duration::from_millis(100), ..options() };
    let running = bench.tidings().consumer_with(consumer, short).start().await.unwrap();
    bench.say(1).await;
    let (class, reason, _) = bench.eventually_dead().await;
    assert_eq!(class, "attempts exhausted");
    assert_eq!(reason, "the handler did not end within its timeout of 100ms");
    assert!(bench.heard().await.is_empty());
    running.drain(LIMIT).await.unwrap();
}

/// However short the limits of other sessions are.
#[tokio::test]
async fn a_handler_may_be_idle_for_as_long_as_its_timeout() {
    let mut bench = Bench::new().await;
    let runs = Count::default();
    let counted = runs.clone();
    let consumer = alpha(move |event, tx| {
        counted.another();
        async move {
            hear(tx, event.n, "alpha").await?;
            tokio::time::sleep(Duration::from_millis(1_500)).await;
            Ok(())
        }
        .boxed()
    });
    let database = Database::url(&bench.url).statement_timeout(Duration::from_millis(300));
    let running = bench.tidings_on(database).consumer_with(consumer, options()).start().await.unwrap();
    bench.say(1).await;
    bench.eventually_heard(&[1]).await;
    assert_eq!(runs.get(), 1);
    running.drain(LIMIT).await.unwrap();
}

/// They hold the whole pool, and more wait for it than its sessions could be ended in time if that had to wait too.
#[tokio::test]
async fn handlers_that_hang_and_hold_the_whole_pool_are_set_aside_one_after_the_other() {
    const EVENTS: i64 = 24;
    let mut bench = Bench::new().await;
    let begun = Count::default();
    let counted = begun.clone();
    let consumer = alpha(move |event, tx| {
        counted.another();
        async move {
            hear(tx, event.n, "alpha").await?;
            std::future::pending().await
        }
        .boxed()
    });
    let hanging = Options { timeout: Duration::from_secs(1), concurrency: EVENTS as usize, ..options() };
    let small = Database::url(&bench.url).pool_size(2);
    let running = bench.tidings_on(small).consumer_with(consumer, hanging).start().await.unwrap();
    for n in 0..EVENTS {
        bench.say(n).await;
    }
    let dead = "SELECT count(*) FROM tidings.consumer_dead_letter WHERE class = 'attempts exhausted' AND attempts = 1";
    eventually("all are dead", LIMIT, async || (bench.number(dead).await == EVENTS).then_some(())).await;
    bench.eventually_settled("alpha").await;
    assert_eq!(begun.get(), EVENTS as usize, "each of them ran once, and was counted");
    assert!(bench.heard().await.is_empty());
    running.drain(LIMIT).await.unwrap();
}
