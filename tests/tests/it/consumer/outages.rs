//! PostgreSQL and NATS come and go: everything is applied once, nothing is counted, nothing is dead.

use std::time::Duration;

use futures_util::FutureExt;
use tidings::Database;
use tidings::consumer::{HandlerError, Options};
use tidings_tests::consumer::{alpha, hear, options};
use tidings_tests::eventually;

use super::{Bench, Count, LIMIT, STREAM};

/// Longer than all attempts and their back-offs take: with a single attempt, whatever is counted is dead.
const OUTAGE: Duration = Duration::from_secs(2);

fn few_at_a_time() -> Options {
    Options { concurrency: 4, ack_wait: Duration::from_secs(3), ..options() }
}

#[tokio::test]
async fn nats_and_then_postgres_stop_for_longer_than_all_attempts_take() {
    let mut bench = Bench::with_own_postgres().await;
    let consumer = alpha(|event, tx| {
        async move {
            // An error that says nothing of its cause.
            hear(tx, event.n, "alpha").await.map_err(|error| HandlerError::transient(error.to_string()))?;
            tokio::time::sleep(Duration::from_millis(5)).await;
            Ok(())
        }
        .boxed()
    });
    let running = bench.tidings().consumer_with(consumer, few_at_a_time()).start().await.unwrap();
    for n in 0..300 {
        bench.say(n).await;
    }
    some_heard(&mut bench, 20).await;
    bench.nats.stop().unwrap();
    tokio::time::sleep(OUTAGE).await;
    bench.nats.start_again().unwrap();
    let before = bench.heard().await.len();
    some_heard(&mut bench, before + 20).await;

    let mut postgres = bench.postgres.take().unwrap();
    postgres.stop().unwrap();
    for n in 300..350 {
        bench.say(n).await;
    }
    tokio::time::sleep(OUTAGE).await;
    let waiting = bench.durable("alpha").await.unwrap();
    assert!(waiting.num_pending + waiting.num_ack_pending as u64 >= 50, "something was settled without a database");
    postgres.start_again().unwrap();
    bench.conn = bench.session().await;
    bench.eventually_heard(&(0..350).collect::<Vec<_>>()).await;
    bench.assert_nothing_counted().await;
    running.drain(LIMIT).await.unwrap();
    drop(postgres);
}

/// A handler's own time runs out while the database stands still; that is no fault of the event.
#[tokio::test]
async fn a_database_that_stands_still_for_longer_than_the_timeout_counts_nothing() {
    let mut bench = Bench::with_own_postgres().await;
    let begun = Count::default();
    let counting = begun.clone();
    let consumer = alpha(move |event, tx| {
        let run = counting.another();
        async move {
            hear(tx, event.n, "alpha").await?;
            if run == 1 {
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
            hear(tx, event.n + 1_000, "alpha").await
        }
        .boxed()
    });
    let short = Options { timeout: Duration::from_secs(2), ..options() };
    let running = bench.tidings().consumer_with(consumer, short).start().await.unwrap();
    bench.say(1).await;
    eventually("the handler runs", LIMIT, async || (begun.get() == 1).then_some(())).await;
    let postgres = bench.postgres.take().unwrap();
    postgres.freeze();
    tokio::time::sleep(Duration::from_secs(14)).await;
    postgres.thaw();
    bench.eventually_heard(&[1, 1_001]).await;
    bench.assert_nothing_counted().await;
    running.drain(LIMIT).await.unwrap();
    drop(postgres);
}

/// As after a failover that the old primary survives: it answers everything, and refuses to write. Connections that were
/// opened meanwhile stay read-only for as long as they live.
#[tokio::test]
async fn new_sessions_are_read_only_for_a_while() {
    let mut bench = Bench::new().await;
    let consumer = alpha(|event, tx| async move { hear(tx, event.n, "alpha").await }.boxed());
    // One connection: the one that is refused is the next to be used.
    let one = Database::url(&bench.url).pool_size(1);
    let running = bench.tidings_on(one).consumer_with(consumer, options()).start().await.unwrap();
    bench.say(1).await;
    bench.eventually_heard(&[1]).await;
    let name = bench.name.clone();
    bench.run(&format!("ALTER DATABASE {name} SET default_transaction_read_only = on")).await;
    let others = format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}' AND pid <> pg_backend_pid()"
    );
    bench.run(&others).await;
    // Nobody else is there who could have a transaction rolled back.
    let refused = format!("SELECT xact_rollback FROM pg_stat_database WHERE datname = '{name}'");
    let before = bench.number(&refused).await;
    for n in 2..10 {
        bench.say(n).await;
    }
    eventually("events are refused", LIMIT, async || (bench.number(&refused).await >= before + 3).then_some(())).await;
    assert_eq!(bench.heard().await, [1]);
    bench.assert_nothing_counted().await;
    bench.run(&format!("ALTER DATABASE {name} RESET default_transaction_read_only")).await;
    bench.eventually_heard(&(1..10).collect::<Vec<_>>()).await;
    bench.assert_nothing_counted().await;
    running.drain(LIMIT).await.unwrap();
}

#[tokio::test]
async fn nats_is_stopped_and_killed_again_and_again() {
    let mut bench = Bench::new().await;
    for n in 0..400 {
        bench.say(n).await;
    }
    let consumer = alpha(|event, tx| {
        async move {
            hear(tx, event.n, "alpha").await?;
            tokio::time::sleep(Duration::from_millis(10)).await;
            Ok(())
        }
        .boxed()
    });
    let running = bench.tidings().consumer_with(consumer, few_at_a_time()).start().await.unwrap();
    for round in 1..=5 {
        // Wherever it happens to be by then.
        some_heard(&mut bench, round * 50 + usize::from(rand_byte()) % 30).await;
        if round % 2 == 0 {
            bench.nats.kill()
        } else {
            bench.nats.stop().unwrap()
        }
        bench.nats.start_again().unwrap();
    }
    bench.eventually_heard(&(0..400).collect::<Vec<_>>()).await;
    bench.assert_nothing_counted().await;
    running.drain(LIMIT).await.unwrap();
}

/// With signs of life more often than the pause before the next try, which grows while there is nothing to subscribe to.
#[tokio::test]
async fn a_subscription_is_remade_beside_frequent_signs_of_life() {
    let mut bench = Bench::new().await;
    let consumer = alpha(|event, tx| async move { hear(tx, event.n, "alpha").await }.boxed());
    let lively = Options { ack_wait: Duration::from_millis(300), ..options() };
    let running = bench.tidings().consumer_with(consumer, lively).start().await.unwrap();
    bench.say(1).await;
    bench.eventually_heard(&[1]).await;
    bench.jetstream.delete_stream(STREAM).await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    bench.make_stream().await;
    bench.say(2).await;
    bench.eventually_heard(&[1, 2]).await;
    running.drain(LIMIT).await.unwrap();
}

#[tokio::test]
async fn a_durable_that_is_deleted_is_made_again_and_nothing_is_applied_twice() {
    let mut bench = Bench::new().await;
    let consumer = alpha(|event, tx| async move { hear(tx, event.n, "alpha").await }.boxed());
    let running = bench.tidings().consumer_with(consumer, options()).start().await.unwrap();
    for n in 0..50 {
        bench.say(n).await;
    }
    some_heard(&mut bench, 10).await;
    bench.jetstream.get_stream(STREAM).await.unwrap().delete_consumer("alpha").await.unwrap();
    for n in 50..100 {
        bench.say(n).await;
    }
    bench.eventually_heard(&(0..100).collect::<Vec<_>>()).await;
    bench.assert_nothing_counted().await;
    running.drain(LIMIT).await.unwrap();
}

#[tokio::test]
async fn a_consumer_may_be_there_before_its_stream() {
    let mut bench = Bench::without_stream().await;
    let consumer = alpha(|event, tx| async move { hear(tx, event.n, "alpha").await }.boxed());
    let running = bench.tidings().consumer_with(consumer, options()).start().await.unwrap();
    bench.make_stream().await;
    bench.say(1).await;
    bench.eventually_heard(&[1]).await;
    running.drain(LIMIT).await.unwrap();
}

/// Neither server is there when the process starts.
#[tokio::test]
async fn a_process_may_be_there_before_its_servers() {
    let mut bench = Bench::with_own_postgres().await;
    bench.say(1).await;
    bench.nats.stop().unwrap();
    let mut postgres = bench.postgres.take().unwrap();
    postgres.stop().unwrap();
    let consumer = alpha(|event, tx| async move { hear(tx, event.n, "alpha").await }.boxed());
    let starting = tokio::spawn(bench.tidings().consumer_with(consumer, options()).start());
    tokio::time::sleep(Duration::from_millis(300)).await;
    postgres.start_again().unwrap();
    let running = starting.await.unwrap().unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    bench.nats.start_again().unwrap();
    bench.conn = bench.session().await;
    bench.eventually_heard(&[1]).await;
    running.drain(LIMIT).await.unwrap();
    drop(postgres);
}

async fn some_heard(bench: &mut Bench, wanted: usize) {
    eventually("some effects are there", LIMIT, async || (bench.heard().await.len() >= wanted).then_some(())).await;
}

fn rand_byte() -> u8 {
    uuid::Uuid::new_v4().into_bytes()[0]
}
