//! SIGTERM: finish what is in hand, give up the leases, end, whatever the servers do.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tidings_tests::eventually;

use super::SOON;
use super::node::Node;
use super::place::Place;

const CONFIRMED: &str = "SELECT count(*) AS number FROM tidings.confirmation";
const OWNED: &str = "SELECT count(*) AS number FROM tidings.partition WHERE owner IS NOT NULL";

/// A lease that nobody waits for the end of here.
const LONG: &[(&str, &str)] = &[("LEASE", "60000"), ("WINDOW", "200")];

#[tokio::test(flavor = "multi_thread")]
async fn in_the_middle_of_five_thousand() {
    let place = Place::shared(4).await;
    place.append("e", 5_000, 50).await;
    let mut first = Node::start(&place, LONG).await;
    eventually("it is at it", SOON, async || (place.number(CONFIRMED).await > 300).then_some(())).await;
    first.signal(Signal::SIGTERM);
    assert!(first.ended(Duration::from_secs(20)).await.success());
    assert!(place.number(CONFIRMED).await < 5_000, "it was in the middle");
    assert_eq!(place.number(OWNED).await, 0, "the leases are given up");
    assert_eq!(place.number("SELECT count(*) AS number FROM tidings.node").await, 0);
    assert_eq!(place.stored().await.len(), usize::try_from(place.number(CONFIRMED).await).unwrap());
    let second = Instant::now();
    let _second = Node::start(&place, LONG).await;
    place.becomes(OWNED, 4).await;
    assert!(second.elapsed() < Duration::from_secs(20), "it did not wait for the leases to end");
    place.settles().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn again_and_again_while_leases_are_taken() {
    let place = Place::shared(8).await;
    place.append("e", 800, 80).await;
    // Wherever the start is when the signal comes, nothing stays behind.
    for _ in 0..5 {
        let mut node = Node::start(&place, LONG).await;
        node.signal(Signal::SIGTERM);
        assert!(node.ended(Duration::from_secs(20)).await.success());
        assert_eq!(place.number(OWNED).await, 0);
        assert_eq!(place.number("SELECT count(*) AS number FROM tidings.node").await, 0);
    }
    let _node = Node::start(&place, LONG).await;
    place.settles().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn while_nats_stands_still() {
    let (services, place) = Place::private(2).await;
    let mut node = Node::start(&place, &[("DEADLINE", "20000"), ("ACK", "1000")]).await;
    place.append("a", 10, 5).await;
    place.settles().await;
    services.nats.freeze();
    place.append("b", 10, 5).await;
    node.says("nothing of this partition is published for now").await;
    node.signal(Signal::SIGTERM);
    node.ended(Duration::from_secs(22)).await;
    services.nats.thaw();
    let _next = Node::start(&place, &[]).await;
    place.settles().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn while_postgres_stands_still() {
    let (services, place) = Place::private(2).await;
    let mut node = Node::start(&place, &[("DEADLINE", "3000"), ("STATEMENT", "60000")]).await;
    place.append("a", 1_000, 5).await;
    services.postgres.freeze();
    node.signal(Signal::SIGTERM);
    let status = node.ended(Duration::from_secs(10)).await;
    assert_eq!(status.code(), Some(1), "it ended by itself, and said that it left something behind");
    // A connection that could not be opened is an answer sooner than the deadline.
    assert_eq!(node.said("the drain did not end within 3s") + node.said("the leases could not be given up"), 1);
    services.postgres.thaw();
    let _next = Node::start(&place, &[]).await;
    place.settles().await;
}
