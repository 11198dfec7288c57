//! What the relay finds out by itself: a stream that lost its end, one that has forgotten its beginning, and evidence that
//! was lost with the last commits.

use tidings::services::Services;

use super::{copy, is_whole};
use crate::relay::node::Node;
use crate::relay::place::Place;

const LOST: &str = "the broker lost what it had confirmed";
const FOUND: &str = "found stored events that were not recorded";

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_lost_its_end_gets_it_again_in_order() {
    let (mut services, place): (Services, Place) = Place::private(2).await;
    let node = Node::start(&place, &[("BACKOFF_MAX", "500")]).await;
    place.append("a", 60, 6).await;
    place.settles().await;
    let store = services.nats.folder().join("jetstream");
    let aside = services.nats.folder().join("aside");
    services.nats.stop().unwrap();
    copy(&store, &aside);
    services.nats.start_again().unwrap();
    place.append("b", 60, 6).await;
    place.settles().await;
    services.nats.stop().unwrap();
    std::fs::remove_dir_all(&store).unwrap();
    std::fs::rename(&aside, &store).unwrap();
    services.nats.start_again().unwrap();
    place.append("c", 60, 6).await;
    node.says(LOST).await;
    place.becomes("SELECT count(*) AS number FROM tidings.confirmation", 180).await;
    place.settles().await;
    is_whole(&place).await;
    assert_eq!(node.said(LOST), 2, "once a partition");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_has_forgotten_its_beginning_has_lost_nothing() {
    let place = Place::shared(1).await;
    let node = Node::start(&place, &[]).await;
    place.append("a", 20, 4).await;
    place.settles().await;
    drop(node);
    let jetstream = place.jetstream().await;
    let stream = jetstream.get_stream(&place.streams(&jetstream).await[0].config.name).await.unwrap();
    stream.purge().await.unwrap();
    let node = Node::start(&place, &[]).await;
    place.append("b", 20, 4).await;
    place.becomes("SELECT count(*) AS number FROM tidings.pending", 0).await;
    let stored = place.stored().await;
    assert_eq!(stored.len(), 20);
    assert!(stored.iter().all(|message| message.header("ce-id").starts_with('b')), "{stored:?}");
    assert_eq!(node.said(LOST), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn confirmations_that_a_restart_of_the_database_lost_are_found_in_the_stream() {
    let place = Place::shared(1).await;
    let node = Node::start(&place, &[]).await;
    place.append("a", 20, 4).await;
    place.settles().await;
    place.execute("CREATE TABLE before AS TABLE tidings.partition").await;
    place.append("b", 20, 4).await;
    place.settles().await;
    drop(node);
    // The last commits were asynchronous: the rows are pending again, and the anchor is where it was.
    place
        .execute(
            "DELETE FROM tidings.confirmation c USING tidings.event e WHERE e.seq = c.seq AND e.id LIKE 'b%';
             INSERT INTO tidings.pending (partition, seq, lane, id_hash)
             SELECT partition, seq, tidings.lane(aggregate_type, aggregate_id, id), hashtextextended(id, 0)
               FROM tidings.event WHERE id LIKE 'b%';
             UPDATE tidings.partition p SET anchor_stream_seq = b.anchor_stream_seq, anchor_id_hash = b.anchor_id_hash
               FROM before b WHERE b.id = p.id",
        )
        .await;
    place.append("c", 20, 4).await;
    let node = Node::start(&place, &[]).await;
    place.settles().await;
    is_whole(&place).await;
    node.says(FOUND).await;
    assert_eq!(place.stored().await.len(), 60, "and none of them was sent again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_was_made_anew_gets_what_is_young_again_in_order() {
    let place = Place::shared(1).await;
    let node = Node::start(&place, &[("BACKOFF_MAX", "500")]).await;
    place.append("a", 20, 4).await;
    place.settles().await;
    place.append("b", 40, 4).await;
    place
        .execute(
            "SELECT tidings.append('relay.tested', 'x', id => 'gone', aggregate_type => 'thing', aggregate_id => 'thing-1',
                                   not_before => now() + interval '1 hour');
             SELECT tidings.append('relay.tested', 'x', id => 'behind', aggregate_type => 'thing', aggregate_id => 'thing-1');
             SELECT tidings.cancel('gone')",
        )
        .await;
    place.becomes("SELECT count(*) AS number FROM tidings.pending", 0).await;
    // Long on the broker's disk by then.
    place
        .execute(
            "UPDATE tidings.confirmation c SET confirmed_at = now() - interval '1 hour'
               FROM tidings.event e WHERE e.seq = c.seq AND e.id LIKE 'a%'",
        )
        .await;
    let jetstream = place.jetstream().await;
    let name = place.streams(&jetstream).await[0].config.name.clone();
    jetstream.delete_stream(&name).await.unwrap();
    place.append("c", 4, 4).await;
    node.says(LOST).await;
    let young = "SELECT count(*) AS number FROM tidings.confirmation c JOIN tidings.partition p ON p.anchor_incarnation = c.incarnation";
    place.becomes(young, 46).await;
    place.becomes("SELECT count(*) AS number FROM tidings.pending", 0).await;
    assert!(node.log().contains("opened=42"), "the alarm says how many");
    let stored = place.stored().await;
    assert_eq!(stored.len(), 46, "what is old is not said again");
    for aggregate in 0..4 {
        let aggregate = format!("thing-{aggregate}");
        let versions: Vec<i64> = stored
            .iter()
            .filter(|message| message.header("ce-aggregateid") == aggregate)
            .map(|message| message.header("ce-aggregateversion").parse().unwrap())
            .collect();
        let last = if aggregate == "thing-1" { 18 } else { 16 };
        assert_eq!(versions, (6..=last).collect::<Vec<i64>>(), "{aggregate}");
    }
    let gone: Vec<_> = stored.iter().filter(|message| message.header("ce-id") == "gone").collect();
    assert_eq!((gone.len(), gone[0].header("ce-tombstone")), (1, "true"));
    assert_eq!(node.said(LOST), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_that_the_database_lost_is_known_by_its_tombstone() {
    let place = Place::shared(1).await;
    let node = Node::start(&place, &[]).await;
    place.append("a", 3, 3).await;
    place
        .execute(
            "SELECT tidings.append('relay.tested', 'x', id => 'gone', aggregate_type => 'thing', aggregate_id => 'thing-1',
                                   not_before => now() + interval '1 hour')",
        )
        .await;
    place.becomes("SELECT count(*) AS number FROM tidings.pending", 1).await;
    place
        .execute("CREATE TABLE before AS TABLE tidings.partition; CREATE TABLE waits AS TABLE tidings.pending; SELECT tidings.cancel('gone')")
        .await;
    place.becomes("SELECT count(*) AS number FROM tidings.pending", 0).await;
    drop(node);
    place
        .execute(
            "DELETE FROM tidings.confirmation c USING waits w WHERE w.seq = c.seq;
             DELETE FROM tidings.discarded;
             INSERT INTO tidings.pending TABLE waits;
             UPDATE tidings.partition p SET anchor_stream_seq = b.anchor_stream_seq, anchor_id_hash = b.anchor_id_hash
               FROM before b WHERE b.id = p.id",
        )
        .await;
    let node = Node::start(&place, &[]).await;
    node.says(FOUND).await;
    let state = "SELECT concat_ws(' ', s.state, d.how, d.reason) AS words FROM tidings.event_state s
                   LEFT JOIN tidings.discarded d USING (seq) WHERE s.id = 'gone'";
    assert_eq!(place.words(state).await, ["discarded discarded the stream holds its tombstone"]);
    is_whole(&place).await;
}
