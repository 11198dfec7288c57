//! kill -9 of a relay at each step. Whoever takes over brings every event to its stream, once, in order.

use nix::sys::signal::Signal;
use std::os::unix::process::ExitStatusExt;

use super::SOON;
use super::node::Node;
use super::place::Place;

/// Kills a relay at a point with work in hand, lets another one take over, and returns what was found in between: messages
/// in the streams and rows confirmed.
async fn killed_at(point: &str) -> (usize, i64) {
    let place = Place::shared(4).await;
    place.append("before-", 300, 17).await;
    let mut first = Node::spawn(&place, &[("KILL_AT", point)]);
    let status = first.ended(SOON).await;
    assert_eq!(status.signal(), Some(Signal::SIGKILL as i32), "it died at the point");
    let between =
        (place.stored().await.len(), place.number("SELECT count(*) AS number FROM tidings.confirmation").await);
    place.append("after-", 100, 17).await;
    let _second = Node::start(&place, &[]).await;
    place.settles().await;
    between
}

#[tokio::test(flavor = "multi_thread")]
async fn after_the_claim() {
    assert_eq!(killed_at("relay::claimed@1").await, (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn after_the_send_before_the_acknowledgement() {
    let (stored, _) = killed_at("relay::sent@60+100ms").await;
    assert!(stored > 0, "what was sent had arrived");
}

#[tokio::test(flavor = "multi_thread")]
async fn after_the_acknowledgement_before_the_confirmation() {
    let (stored, confirmed) = killed_at("relay::acknowledged@1").await;
    assert!(stored > 0);
    assert_eq!(confirmed, 0, "the broker knew and the database did not");
}

#[tokio::test(flavor = "multi_thread")]
async fn after_the_confirmation() {
    let (stored, confirmed) = killed_at("relay::confirmed@1").await;
    assert!(stored > 0 && confirmed > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn in_the_middle_of_a_batch() {
    let (stored, confirmed) = killed_at("relay::acknowledged@100").await;
    assert!(stored >= 100 && confirmed < 300);
}
