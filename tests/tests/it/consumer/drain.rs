//! A drain: what is in hand is finished or given back at once, and it ends whatever the servers do.

use std::time::{Duration, Instant};

use futures_util::FutureExt;
use tidings::consumer::Options;
use tidings::host::Error;
use tidings_tests::consumer::{alpha, hear};
use tidings_tests::eventually;

use super::{Bench, Count, LIMIT, patient};

/// Ended in the middle of its work, with a time for signs of life that is longer than the test may take.
#[tokio::test]
async fn at_sigterm_another_process_goes_on_at_once() {
    let mut bench = Bench::new().await;
    for n in 0..400 {
        bench.say(n).await;
    }
    let environment = [("CONCURRENCY", "2"), ("SLEEP_MS", "5"), ("ACK_WAIT_MS", "600000")];
    for process in 0..6 {
        let node = bench.node(&format!("process {process}"), &environment).started().await;
        let before = bench.heard().await.len();
        eventually("it works", LIMIT, async || (bench.heard().await.len() >= before + 20).then_some(())).await;
        node.terminate();
        let (status, log) = node.ended().await;
        assert!(status.success(), "{log}");
    }
    let _last = bench.node("last", &environment).started().await;
    bench.eventually_heard(&(0..400).collect::<Vec<_>>()).await;
    bench.assert_nothing_counted().await;
}

/// Neither what waits for a slot nor what waits in a lane is begun any more.
#[tokio::test]
async fn what_was_not_begun_is_not_begun() {
    let mut bench = Bench::new().await;
    let begun = Count::default();
    let (counting, gate) = (begun.clone(), std::sync::Arc::new(tokio::sync::Semaphore::new(0)));
    let opens = std::sync::Arc::clone(&gate);
    let consumer = alpha(move |event, tx| {
        counting.another();
        let gate = std::sync::Arc::clone(&gate);
        async move {
            hear(tx, event.n, "alpha").await?;
            let _ = gate.acquire().await;
            Ok(())
        }
        .boxed()
    });
    let one = Options { concurrency: 1, ack_wait: LIMIT * 10, ..patient() };
    let running = bench.tidings().consumer_with(consumer, one).start().await.unwrap();
    for n in 0..10 {
        bench.say(n).await;
    }
    eventually("the first runs, the prefetch is full", LIMIT, async || {
        (begun.get() == 1 && bench.durable("alpha").await?.num_ack_pending == 4).then_some(())
    })
    .await;
    let draining = tokio::spawn(running.drain(LIMIT));
    let consumer = alpha(|event, tx| async move { hear(tx, event.n, "another").await }.boxed());
    let another = bench.tidings().consumer_with(consumer, one).start().await.unwrap();
    eventually("another has the rest", LIMIT, async || (bench.heard().await.len() == 9).then_some(())).await;
    assert!(!draining.is_finished());
    opens.add_permits(1);
    draining.await.unwrap().unwrap();
    bench.eventually_heard(&(0..10).collect::<Vec<_>>()).await;
    assert_eq!(begun.get(), 1);
    another.drain(LIMIT).await.unwrap();
}

#[tokio::test]
async fn it_ends_at_its_deadline_while_postgres_stands_still() {
    let mut bench = Bench::with_own_postgres().await;
    let begun = Count::default();
    let counting = begun.clone();
    let consumer = alpha(move |event, tx| {
        counting.another();
        async move {
            hear(tx, event.n, "alpha").await?;
            tokio::time::sleep(Duration::from_millis(200)).await;
            Ok(())
        }
        .boxed()
    });
    let running = bench.tidings().consumer_with(consumer, patient()).start().await.unwrap();
    bench.say(1).await;
    eventually("it runs", LIMIT, async || (begun.get() == 1).then_some(())).await;
    bench.postgres.as_ref().unwrap().freeze();
    let asked = Instant::now();
    let ended = running.drain(Duration::from_secs(1)).await;
    assert!(matches!(ended, Err(Error::DrainTimeout(_))), "{ended:?}");
    assert!(asked.elapsed() < Duration::from_secs(5), "it took {:?}", asked.elapsed());
    bench.postgres.as_ref().unwrap().thaw();
    // Nothing is lost by that: another process does it again, or finds it done.
    let consumer = alpha(|event, tx| async move { hear(tx, event.n, "alpha").await }.boxed());
    let short = Options { ack_wait: Duration::from_secs(1), ..patient() };
    let running = bench.tidings().consumer_with(consumer, short).start().await.unwrap();
    bench.eventually_heard(&[1]).await;
    running.drain(LIMIT).await.unwrap();
}

#[tokio::test]
async fn it_ends_while_nats_stands_still() {
    let mut bench = Bench::new().await;
    let consumer = alpha(|event, tx| async move { hear(tx, event.n, "alpha").await }.boxed());
    let running = bench.tidings().consumer_with(consumer, patient()).start().await.unwrap();
    bench.say(1).await;
    bench.eventually_heard(&[1]).await;
    bench.nats.freeze();
    let asked = Instant::now();
    let _ = running.drain(Duration::from_secs(20)).await;
    assert!(asked.elapsed() < Duration::from_secs(25), "it took {:?}", asked.elapsed());
    bench.nats.thaw();
}
