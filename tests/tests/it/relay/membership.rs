//! Nodes that come, go, lag and lie: who takes their partitions, and how soon.

use std::time::{Duration, Instant};

use diesel_async::SimpleAsyncConnection;
use nix::sys::signal::Signal;
use tidings_tests::eventually;

use super::SOON;
use super::node::Node;
use super::place::Place;

const OWNED: &str = "SELECT count(*) AS number FROM tidings.partition WHERE owner IS NOT NULL";
const LEAST_MOST: &str = "SELECT 100 * min(n) + max(n) AS number
     FROM (SELECT count(*) AS n FROM tidings.partition WHERE owner IS NOT NULL GROUP BY owner) shares";
const EPOCHS: &str = "SELECT sum(epoch)::bigint AS number FROM tidings.partition";

/// Nothing here waits for the end of a lease, or for a heartbeat, which comes every twenty seconds.
const LONG: &[(&str, &str)] = &[("LEASE", "60000")];
/// Far less than that, and far more than a busy machine adds.
const AT_ONCE: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread")]
async fn who_comes_and_who_goes_is_noticed_long_before_the_next_heartbeat() {
    let place = Place::shared(4).await;
    let mut first = Node::start(&place, LONG).await;
    place.becomes(LEAST_MOST, 404).await;
    let came = Instant::now();
    let second = Node::start(&place, LONG).await;
    place.becomes(LEAST_MOST, 202).await;
    assert!(came.elapsed() < AT_ONCE, "its share came after {:?}", came.elapsed());
    place.append("a", 100, 20).await;
    first.signal(Signal::SIGTERM);
    let went = Instant::now();
    place.append("b", 100, 20).await;
    place.settles().await;
    assert!(went.elapsed() < AT_ONCE, "all was published after {:?}", went.elapsed());
    place.becomes(LEAST_MOST, 404).await;
    assert!(first.ended(SOON).await.success());
    drop(second);
}

/// The node that has no partition of its own, since there is only one, is as quick.
#[tokio::test(flavor = "multi_thread")]
async fn one_that_owns_nothing_follows_one_that_leaves() {
    let place = Place::shared(1).await;
    let mut first = Node::start(&place, LONG).await;
    place.becomes(OWNED, 1).await;
    let _second = Node::start(&place, LONG).await;
    place.becomes("SELECT count(*) AS number FROM tidings.node WHERE able", 2).await;
    first.signal(Signal::SIGTERM);
    assert!(first.ended(SOON).await.success());
    let went = Instant::now();
    place.append("a", 10, 2).await;
    place.settles().await;
    assert!(went.elapsed() < AT_ONCE, "published after {:?}", went.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_judges_another_by_the_lease_of_that_other() {
    let place = Place::shared(4).await;
    let _slow = Node::start(&place, LONG).await;
    let _quick = Node::start(&place, &[("LEASE", "1000")]).await;
    place.becomes(LEAST_MOST, 202).await;
    place.becomes("SELECT count(*) AS number FROM tidings.partition WHERE owner IS NULL", 0).await;
    let epochs = place.number(EPOCHS).await;
    // By then the quick one would have given the slow one up, twice over.
    let silent = "SELECT count(*) AS number FROM tidings.node \
                  WHERE ttl > interval '10 s' AND heartbeat_at < now() - interval '2500 ms'";
    place.becomes(silent, 1).await;
    assert_eq!(place.number(EPOCHS).await, epochs, "nothing changed places");
}

/// Its heart beats, for an hour, and it takes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_hung_node_leaves_is_taken_above_the_share() {
    let place = Place::shared(4).await;
    place
        .execute("INSERT INTO tidings.node (id, name, able, ttl) VALUES (gen_random_uuid(), 'hung', true, '1 hour')")
        .await;
    let _node = Node::start(&place, &[("LEASE", "1000")]).await;
    place.becomes(OWNED, 2).await;
    place.append("a", 100, 20).await;
    place.becomes(OWNED, 4).await;
    place.settles().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_an_operator_holds_or_deletes_are_survived() {
    let place = Place::shared(2).await;
    let node = Node::start(&place, &[("LEASE", "1500")]).await;
    place.becomes(OWNED, 2).await;
    let mut operator = place.connection().await;
    operator.batch_execute("BEGIN; SELECT FROM tidings.partition WHERE id = 0 FOR UPDATE").await.unwrap();
    eventually("heartbeats fail", SOON, async || (node.said("could not be renewed") > 2).then_some(())).await;
    operator.batch_execute("ROLLBACK").await.unwrap();
    place.append("a", 50, 10).await;
    place.settles().await;
    place.execute("DELETE FROM tidings.node").await;
    place.becomes("SELECT count(*) AS number FROM tidings.node WHERE able", 1).await;
    place.append("b", 50, 10).await;
    place.settles().await;
    place.becomes(OWNED, 2).await;
}
