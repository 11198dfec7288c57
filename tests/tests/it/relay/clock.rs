//! The database's clock is set forward and back: to the tables it looks as if every time in them were moved.

use tidings_tests::eventually;

use super::SOON;
use super::node::Node;
use super::place::Place;

const LEAST_MOST: &str = "SELECT 100 * min(n) + max(n) AS number
     FROM (SELECT count(*) AS n FROM tidings.partition WHERE owner IS NOT NULL GROUP BY owner) shares";
const EPOCHS: &str = "SELECT sum(epoch)::bigint AS number FROM tidings.partition";
/// Leases and heartbeats that are as they should be.
const RIGHT: &str =
    "SELECT (SELECT count(*) FROM tidings.partition WHERE lease_until BETWEEN now() AND now() + lease_ttl)
     + (SELECT count(*) FROM tidings.node WHERE heartbeat_at BETWEEN now() - ttl AND now()) AS number";

/// A clock that is set back by an hour finds times an hour ahead of it.
fn set_back(by: &str) -> String {
    format!(
        "BEGIN; UPDATE tidings.partition SET lease_until = lease_until + interval '{by}'; \
         UPDATE tidings.node SET heartbeat_at = heartbeat_at + interval '{by}'; \
         UPDATE tidings.pending SET next_attempt_at = next_attempt_at + interval '{by}'; COMMIT"
    )
}

async fn two_of_four(place: &Place) -> (Node, Node) {
    let settings = [("LEASE", "3000"), ("BACKOFF_MAX", "1000")];
    let first = Node::start(place, &settings).await;
    let second = Node::start(place, &settings).await;
    place.becomes(LEAST_MOST, 202).await;
    place.becomes(RIGHT, 6).await;
    (first, second)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_jumps_takes_nothing_from_those_that_live() {
    let place = Place::shared(4).await;
    let _nodes = two_of_four(&place).await;
    let epochs = place.number(EPOCHS).await;
    for (round, by) in ["1 hour", "-1 hour", "10 s", "-10 s"].into_iter().enumerate() {
        place.append(&format!("r{round}-"), 40, 20).await;
        place.execute(&set_back(by)).await;
        place.becomes(RIGHT, 6).await;
        assert_eq!(place.number(EPOCHS).await, epochs, "after {by}");
    }
    place.settles().await;
    assert_eq!(place.number(EPOCHS).await, epochs);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_died_before_the_clock_was_set_back_is_followed_within_its_lease() {
    let place = Place::shared(4).await;
    let (first, _second) = two_of_four(&place).await;
    drop(first);
    place.execute(&set_back("1 hour")).await;
    place.append("a", 100, 20).await;
    place.becomes(LEAST_MOST, 404).await;
    place.settles().await;
}

/// Nobody is left who could have seen anything of them.
#[tokio::test(flavor = "multi_thread")]
async fn leases_of_the_dead_that_lie_in_the_future_hold_nobody_up() {
    let place = Place::shared(2).await;
    let node = Node::start(&place, &[]).await;
    place.becomes(LEAST_MOST, 202).await;
    drop(node);
    place.execute(&set_back("1 hour")).await;
    place.append("a", 20, 5).await;
    let _next = Node::start(&place, &[]).await;
    place.settles().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_that_lies_in_the_future_for_ever_is_due() {
    let place = Place::shared(1).await;
    place.append("a", 10, 5).await;
    place.execute("UPDATE tidings.pending SET state = 'retrying', next_attempt_at = now() + interval '10 ms'").await;
    place.execute(&set_back("1 hour")).await;
    let _node = Node::start(&place, &[("BACKOFF_MAX", "1000")]).await;
    eventually("all are stored", SOON, async || (place.stored().await.len() == 10).then_some(())).await;
    place.settles().await;
}
