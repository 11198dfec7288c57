//! "Duplicate" from the broker is believed only of our own event.

use super::node::Node;
use super::place::Place;

/// Publishes by hand, with the id of an event that is appended only afterwards.
async fn publish_by_hand(place: &Place, id: &str, ce_id: &str) -> u64 {
    let jetstream = place.jetstream().await;
    let subject = place.streams(&jetstream).await[0].config.subjects[0].replace('>', "evt.thing.by_hand");
    let mut headers = async_nats::HeaderMap::new();
    headers.insert("Nats-Msg-Id", format!("{}#{id}", place.source));
    headers.insert("ce-source", place.source.as_str());
    headers.insert("ce-id", ce_id);
    let answer = jetstream.publish_with_headers(subject, headers, "by hand".into()).await.unwrap();
    answer.await.unwrap().sequence
}

#[tokio::test(flavor = "multi_thread")]
async fn of_our_own_event_it_is_the_acknowledgement() {
    let place = Place::shared(1).await;
    let _node = Node::start(&place, &[]).await;
    place.append("a", 10, 3).await;
    place.settles().await;
    let seq = publish_by_hand(&place, "x1", "x1").await;
    place.append("x", 1, 1).await;
    place.settles().await;
    let evidence =
        "SELECT c.stream_seq AS number FROM tidings.confirmation c JOIN tidings.event e USING (seq) WHERE e.id = 'x1'";
    assert_eq!(place.number(evidence).await, seq.cast_signed());
}

#[tokio::test(flavor = "multi_thread")]
async fn of_something_else_under_our_id_it_is_not_believed() {
    let place = Place::shared(1).await;
    let node = Node::start(&place, &[("DUPLICATE_WINDOW", "3000"), ("BACKOFF_MAX", "500")]).await;
    place.append("a", 10, 3).await;
    place.settles().await;
    let foreign = publish_by_hand(&place, "x1", "another").await;
    place.append("x", 3, 1).await;
    node.says("another message stands there").await;
    // The window passes, and the event goes in for itself; its lane has waited.
    place.becomes("SELECT count(*) AS number FROM tidings.pending", 0).await;
    let stored = place.stored().await;
    let ours: Vec<_> = stored.iter().filter(|message| message.header("ce-id").starts_with('x')).collect();
    assert_eq!(ours.iter().map(|message| message.header("ce-id")).collect::<Vec<_>>(), ["x1", "x2", "x3"]);
    let evidence =
        "SELECT c.stream_seq AS number FROM tidings.confirmation c JOIN tidings.event e USING (seq) WHERE e.id = 'x1'";
    assert_eq!(place.number(evidence).await, ours[0].seq.cast_signed());
    assert!(ours[0].seq > foreign);
}
