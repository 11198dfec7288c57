//! What must be right before a relay runs, and what it waits for.

use std::time::Duration;

use super::SOON;
use super::node::Node;
use super::place::Place;

#[tokio::test(flavor = "multi_thread")]
async fn without_nats_it_comes_up_later() {
    let (mut services, place) = Place::private(2).await;
    services.nats.stop().unwrap();
    place.append("e", 50, 5).await;
    let node = Node::start(&place, &[]).await;
    place.becomes("SELECT count(*) AS number FROM tidings.node WHERE NOT able", 1).await;
    services.nats.start_again().unwrap();
    place.settles().await;
    assert_eq!(node.said("ERROR"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_postgres_it_waits() {
    let (mut services, place) = Place::private(2).await;
    place.append("e", 50, 5).await;
    services.postgres.stop().unwrap();
    let node = Node::spawn(&place, &[]);
    node.says("waiting for the database").await;
    assert_eq!(node.said("started"), 0);
    services.postgres.start_again().unwrap();
    node.says("started").await;
    place.settles().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn under_another_source_it_is_refused() {
    let place = Place::shared(1).await;
    place.execute("UPDATE tidings.setting SET source = 'what.it.was'").await;
    refused(&place, "the database is the source \"what.it.was\"").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn under_a_schema_that_is_missing_or_too_old_it_is_refused() {
    let place = Place::shared(1).await;
    place.execute("DELETE FROM tidings.migration").await;
    refused(&place, "the schema `tidings` is at version 0 and this program needs").await;
    place.execute("DROP SCHEMA tidings CASCADE").await;
    refused(&place, "call `tidings::migrate(&database)` before `start`").await;
}

async fn refused(place: &Place, what: &str) {
    let mut node = Node::spawn(place, &[]);
    assert_eq!(node.ended(Duration::from_secs(30)).await.code(), Some(1));
    tidings_tests::eventually("it says why", SOON, async || (node.said(what) > 0).then_some(())).await;
    assert_eq!(node.said("started"), 0);
}
