//! kill -9 of a process that consumes: another one goes on, and every effect is there once.

use std::os::unix::process::ExitStatusExt;

use super::{Bench, LIMIT};
use tidings_tests::{KILL_AT, eventually};

/// Kills the first of two processes at a point; `heard` is how many effects are there when it is dead.
async fn killed_at(point: &str, heard: usize) {
    let mut bench = Bench::new().await;
    for n in 0..20 {
        bench.say(n).await;
    }
    let one_at_a_time = ("CONCURRENCY", "1");
    let dying = bench.node("first", &[(KILL_AT, point), one_at_a_time, ("ACK_WAIT_MS", "1000")]);
    let (status, log) = dying.ended().await;
    assert_eq!(status.signal(), Some(9), "{log}");
    eventually("the effects before the death, and no more", LIMIT, async || {
        (bench.heard().await.len() == heard).then_some(())
    })
    .await;

    let next = bench.node("second", &[("ACK_WAIT_MS", "1000")]).started().await;
    bench.eventually_heard(&(0..20).collect::<Vec<_>>()).await;
    bench.assert_nothing_counted().await;
    assert_eq!(bench.number("SELECT count(*) FROM heard WHERE by = 'first'").await, heard as i64);
    drop(next);
}

#[tokio::test]
async fn in_the_handler() {
    killed_at("consumer::handler@4", 3).await;
}

#[tokio::test]
async fn after_the_commit_was_sent() {
    killed_at("consumer::commit-sent@4+2000ms", 4).await;
}

#[tokio::test]
async fn after_the_commit() {
    killed_at("consumer::committed@4", 4).await;
}

#[tokio::test]
async fn before_it_is_settled() {
    killed_at("consumer::settling@4", 4).await;
}
