//! A message in the stream that we did not send: one with the id of an event is that event only if it says the same.

use super::node::Node;
use super::place::Place;

const STOPPED: &str = "holds at sequence 11 a message that this database does not know";
const PENDING: &str = "SELECT count(*) AS number FROM tidings.pending WHERE state = 'ready' AND attempts = 0";

/// Publishes by hand an event of the aggregate `thing` `thing-0`, version 4, as if somebody else had sent it.
async fn publish_by_hand(place: &Place, msg_id: &str, data: &'static str) -> u64 {
    let jetstream = place.jetstream().await;
    let subject = place.streams(&jetstream).await[0].config.subjects[0].replace('>', "evt.thing.by_hand");
    let mut headers = async_nats::HeaderMap::new();
    let message_id = format!("{}#{msg_id}", place.source);
    let all = [
        ("Nats-Msg-Id", message_id.as_str()),
        ("ce-specversion", "1.0"),
        ("ce-source", place.source.as_str()),
        ("ce-id", "x1"),
        ("ce-type", "relay.tested"),
        ("ce-aggregatetype", "thing"),
        ("ce-aggregateid", "thing-0"),
        ("ce-aggregateversion", "4"),
    ];
    all.into_iter().for_each(|(name, value)| headers.insert(name, value));
    let answer = jetstream.publish_with_headers(subject, headers, data.into()).await.unwrap();
    answer.await.unwrap().sequence
}

const X1: &str =
    "SELECT c.stream_seq AS number FROM tidings.confirmation c JOIN tidings.event e USING (seq) WHERE e.id = 'x1'";

#[tokio::test(flavor = "multi_thread")]
async fn that_is_our_event_is_its_confirmation() {
    let place = Place::shared(1).await;
    let _node = Node::start(&place, &[]).await;
    place.append("a", 10, 3).await;
    place.settles().await;
    let seq = publish_by_hand(&place, "x1", "{\"n\": 1}").await;
    place.append("x", 3, 1).await;
    place.settles().await;
    assert_eq!(place.number(X1).await, seq.cast_signed());
    assert_eq!(place.stored().await.len(), 13, "and it was not published again");
}

#[tokio::test(flavor = "multi_thread")]
async fn that_is_not_our_event_stops_the_partition_until_it_is_gone() {
    let place = Place::shared(1).await;
    let node = Node::start(&place, &[("BACKOFF_MAX", "500")]).await;
    place.append("a", 10, 3).await;
    place.settles().await;
    let foreign = publish_by_hand(&place, "another", "something else").await;
    place.append("x", 1, 1).await;
    node.says(STOPPED).await;
    place.append("y", 3, 1).await;
    place.becomes(PENDING, 4).await;
    assert_eq!(place.stored().await.len(), 11);

    let jetstream = place.jetstream().await;
    let name = place.streams(&jetstream).await.remove(0).config.name;
    jetstream.get_stream(name).await.unwrap().delete_message(foreign).await.unwrap();
    place.settles().await;
    assert!(place.number(X1).await > foreign.cast_signed());
}
