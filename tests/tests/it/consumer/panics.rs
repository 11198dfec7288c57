//! Handlers that panic and handlers that block: an outcome of the event, and nobody else's trouble.

use std::time::Duration;

use futures_util::FutureExt;
use tidings::Relay;
use tidings::consumer::Options;
use tidings_tests::consumer::{alpha, beta, hear};
use tidings_tests::eventually;

use super::{Bench, Count, LIMIT, patient};

#[tokio::test]
async fn a_panic_stops_nothing_and_is_tried_again() {
    let mut bench = Bench::new().await;
    let runs = Count::default();
    let counted = runs.clone();
    let consumer = alpha(move |event, tx| {
        let run = counted.another();
        assert!(run != 1, "before there is a future");
        async move {
            assert!(run != 2, "in the future");
            hear(tx, event.n, "alpha").await?;
            assert!(run != 3, "after a statement");
            Ok(())
        }
        .boxed()
    });
    let one = Options { concurrency: 1, ..patient() };
    let running = bench.tidings().consumer_with(consumer, one).start().await.unwrap();
    bench.say(1).await;
    bench.eventually_heard(&[1]).await;
    assert_eq!(runs.get(), 4);
    for n in 2..10 {
        bench.say(n).await;
    }
    bench.eventually_heard(&(1..10).collect::<Vec<_>>()).await;
    bench.assert_nothing_counted().await;
    running.drain(LIMIT).await.unwrap();
}

#[tokio::test]
async fn one_that_always_panics_is_set_aside_after_its_attempts() {
    let mut bench = Bench::new().await;
    let consumer = alpha(|_, _| panic!("always"));
    let three = Options { attempts: 3, ..patient() };
    let running = bench.tidings().consumer_with(consumer, three).start().await.unwrap();
    bench.say(1).await;
    let (class, reason, attempts) = bench.eventually_dead().await;
    assert_eq!((class.as_str(), reason.as_str(), attempts), ("attempts exhausted", "the handler panicked", 3));
    running.drain(LIMIT).await.unwrap();
}

/// For three times the lease and the time for a sign of life, and for as long as the other consumer takes.
#[tokio::test]
async fn one_that_blocks_its_thread_delays_no_lease_no_sign_of_life_and_no_other_consumer() {
    let mut bench = Bench::new().await;
    let (begun, ended) = (Count::default(), Count::default());
    let (counting, ending) = (begun.clone(), ended.clone());
    let (go, told) = std::sync::mpsc::channel::<()>();
    let told = std::sync::Arc::new(std::sync::Mutex::new(told));
    let blocking = alpha(move |event, tx| {
        counting.another();
        let (ending, told) = (ending.clone(), std::sync::Arc::clone(&told));
        async move {
            let _ = told.lock().map(|told| told.recv());
            hear(tx, event.n, "alpha").await?;
            ending.another();
            Ok(())
        }
        .boxed()
    });
    let other = beta(|event, tx| async move { hear(tx, event.n + 1_000, "beta").await }.boxed());
    let short = Options { ack_wait: BLOCKED / 3, timeout: LIMIT * 2, ..super::options() };
    let running = bench
        .tidings()
        .relay(Relay::default().lease(BLOCKED / 3))
        .engine_threads(1)
        .handler_threads(2)
        .consumer_with(blocking, short)
        .consumer_with(other, short)
        .start()
        .await
        .unwrap();
    let owned = "SELECT count(*) FROM tidings.partition WHERE owner IS NOT NULL";
    eventually("the relay has its partition", LIMIT, async || (bench.number(owned).await == 1).then_some(())).await;
    bench.say(1).await;
    eventually("it blocks", LIMIT, async || (begun.get() == 1).then_some(())).await;
    let since = std::time::Instant::now();
    // All in the lane of the blocked one, so that they wait for it there.
    for n in 2..50 {
        bench.publish(super::SUBJECT, &format!("id-{n}"), &super::said(n, "lane-1"), &super::data(n)).await;
    }
    eventually("the other consumer goes on, and the time is over", LIMIT, async || {
        let heard = bench.number("SELECT count(*) FROM heard WHERE by = 'beta'").await;
        (heard == 49 && since.elapsed() > BLOCKED).then_some(())
    })
    .await;
    assert_eq!(ended.get(), 0, "it still blocks");
    go.send(()).unwrap();
    eventually("it ends", LIMIT, async || (ended.get() == 1).then_some(())).await;
    let delivered_again = bench.durable("alpha").await.unwrap().num_redelivered;
    assert_eq!((begun.get() <= 2, delivered_again), (true, 0));
    assert_eq!(bench.number("SELECT max(epoch) FROM tidings.partition").await, 1);
    drop(running);
}

const BLOCKED: Duration = Duration::from_secs(6);
