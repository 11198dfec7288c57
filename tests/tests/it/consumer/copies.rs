//! Several consumers, several processes, several copies.

use futures_util::FutureExt;
use tidings::consumer::HandlerError;
use tidings_tests::consumer::{alpha, beta, hear};
use tidings_tests::eventually;

use super::{Bench, LIMIT, SUBJECT, data, patient, said};

#[tokio::test]
async fn one_consumer_that_fails_does_not_hold_another() {
    let mut bench = Bench::new().await;
    let failing = alpha(|_, _| async { Err(HandlerError::transient("as ever")) }.boxed());
    let other = beta(|event, tx| async move { hear(tx, event.n, "beta").await }.boxed());
    let running =
        bench.tidings().consumer_with(failing, patient()).consumer_with(other, patient()).start().await.unwrap();
    for n in 0..20 {
        bench.say(n).await;
    }
    eventually("the other has them all", LIMIT, async || (bench.heard().await.len() == 20).then_some(())).await;
    bench.eventually_settled("beta").await;
    assert_eq!(bench.heard().await, (0..20).collect::<Vec<_>>());
    assert!(bench.durable("alpha").await.unwrap().num_ack_pending > 0);
    running.drain(LIMIT).await.unwrap();
}

#[tokio::test]
async fn two_processes_share_the_work() {
    let mut bench = Bench::new().await;
    let environment = [("CONCURRENCY", "1"), ("SLEEP_MS", "5")];
    let nodes = [bench.node("first", &environment), bench.node("second", &environment)];
    let [first, second] = nodes;
    let _nodes = [first.started().await, second.started().await];
    eventually("both listen", LIMIT, async || (bench.durable("alpha").await?.num_waiting == 2).then_some(())).await;
    for n in 0..100 {
        bench.say(n).await;
    }
    bench.eventually_heard(&(0..100).collect::<Vec<_>>()).await;
    assert_eq!(bench.number("SELECT count(DISTINCT by) FROM heard").await, 2);
    bench.assert_nothing_counted().await;
}

/// As they come about when the broker's window for duplicates has passed.
#[tokio::test]
async fn copies_are_settled_without_an_effect_and_without_alarm() {
    let mut bench = Bench::new().await;
    for copy in 0..10 {
        for n in 0..10 {
            // Some in one lane, one after the other; some in lanes of their own, at the same time.
            let lane = if n < 5 { format!("lane-{n}") } else { format!("lane-{n}-{copy}") };
            bench.publish(SUBJECT, &format!("id-{n}-{copy}"), &said(n, &lane), &data(n)).await;
        }
    }
    let node = bench.node("alpha", &[]).started().await;
    bench.eventually_heard(&(0..10).collect::<Vec<_>>()).await;
    bench.assert_nothing_counted().await;
    assert_eq!(bench.durable("alpha").await.unwrap().num_redelivered, 0);
    node.terminate();
    let (status, log) = node.ended().await;
    assert!(status.success(), "{log}");
    assert!(!log.contains("ERROR") && !log.contains("WARN"), "{log}");
}
