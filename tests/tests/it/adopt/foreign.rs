//! Messages that are not ours, or contradict the database: nothing is adopted over them.

use super::{back_up, complained, is_whole, restore, said, tables, tidings};
use crate::relay::node::Node;
use crate::relay::place::Place;

/// Publishes by hand, with these headers beside those of every event of the source; returns its sequence.
async fn publish(place: &Place, headers: &[(&str, &str)], data: &'static str) -> u64 {
    let jetstream = place.jetstream().await;
    let subject = place.streams(&jetstream).await[0].config.subjects[0].replace('>', "evt.thing.by_hand");
    let mut map = async_nats::HeaderMap::new();
    let usual = [("ce-specversion", "1.0"), ("ce-source", place.source.as_str()), ("ce-type", "relay.tested")];
    usual.iter().chain(headers).for_each(|(name, value)| map.insert(*name, *value));
    jetstream.publish_with_headers(subject, map, data.into()).await.unwrap().await.unwrap().sequence
}

#[tokio::test(flavor = "multi_thread")]
async fn they_are_listed_and_nothing_is_done_until_they_are_gone() {
    let place = Place::shared(1).await;
    let node = Node::start(&place, &[]).await;
    place.append("a", 3, 3).await;
    place.settles().await;
    back_up(&place).await;
    place.append("b", 3, 3).await;
    place.settles().await;
    drop(node);
    restore(&place).await;
    place.append("c", 3, 3).await;

    const ALL: [(&str, &str); 3] =
        [("ce-aggregatetype", "thing"), ("ce-aggregateid", "thing-1"), ("ce-aggregateversion", "1")];
    let [r#type, id, version] = ALL;
    let wrong = [
        ("it is no CloudEvent of ours", publish(&place, &[], "no id").await),
        ("its source is another one", publish(&place, &[("ce-id", "s"), ("ce-source", "another")], "x").await),
        ("its aggregate, version and recipient", publish(&place, &[("ce-id", "v"), r#type, id], "x").await),
        (
            "its aggregate, version and recipient",
            publish(&place, &[("ce-id", "n"), ("ce-tombstone", "true"), ("tenant", "a")], "").await,
        ),
        ("with other data", publish(&place, &[("ce-id", "a1"), r#type, id, version], "x").await),
        (
            "with another version",
            publish(&place, &[("ce-id", "a1"), r#type, id, ("ce-aggregateversion", "7")], "{\"n\": 1}").await,
        ),
        (
            "of another aggregate",
            publish(&place, &[("ce-id", "a1"), r#type, ("ce-aggregateid", "thing-2"), version], "{\"n\": 1}").await,
        ),
        ("is not above the last", publish(&place, &[("ce-id", "w"), r#type, id, version], "x").await),
        (
            "with other content",
            publish(&place, &[("ce-id", "b1"), r#type, id, ("ce-aggregateversion", "2")], "x").await,
        ),
        ("under another id", publish(&place, &[("ce-id", "u"), r#type, id, ("ce-aggregateversion", "2")], "x").await),
        ("too large", publish(&place, &[("ce-id", "l"), ("ce-schemaversion", "3000000000")], "x").await),
        ("could not have been published from here", publish(&place, &[("ce-id", "t"), ("ce-type", "a..b")], "x").await),
    ];
    let before = tables(&place).await;
    let (out, err) = complained(tidings(&place, &["adopt", "--yes"]), 1);
    assert!(err.contains("have messages in the way, and nothing of them was adopted"), "{err}");
    assert!(out.contains(&format!("3 that are not, {} that are in the way", wrong.len())), "{out}");
    for (why, seq) in &wrong {
        let line = out.lines().find(|line| line.contains(&format!("in the way {seq}: "))).unwrap_or_default();
        assert!(line.contains(why), "{seq} {why}: {out}");
    }
    assert_eq!(tables(&place).await, before, "nothing was done");

    let jetstream = place.jetstream().await;
    let stream = jetstream.get_stream(&place.streams(&jetstream).await[0].config.name).await.unwrap();
    for (_, seq) in wrong {
        stream.delete_message(seq).await.unwrap();
    }
    assert!(said(tidings(&place, &["adopt", "--yes"])).contains("renumbered c1: version 2 is 3 now"));
    let _node = Node::start(&place, &[]).await;
    place.settles().await;
    is_whole(&place).await;
}

/// A foreign message had taken a place in the stream, so what was under way behind it stands before one that came earlier.
#[tokio::test(flavor = "multi_thread")]
async fn versions_that_stand_the_other_way_round_are_adopted_in_their_order() {
    let place = Place::shared(1).await;
    let node = Node::start(&place, &[]).await;
    place.append("a", 3, 3).await;
    place.settles().await;
    drop(node);
    for (id, version, previous) in [("four", "4", "3"), ("two", "2", "1"), ("three", "3", "2")] {
        let of = [("ce-aggregatetype", "thing"), ("ce-aggregateid", "thing-1")];
        let headers = [("ce-id", id), of[0], of[1], ("ce-aggregateversion", version), ("ce-previousversion", previous)];
        publish(&place, &headers, "x").await;
    }
    assert!(said(tidings(&place, &["adopt", "--yes"])).contains("3 that are not, 0 that are in the way"));
    let order = "SELECT id AS words FROM tidings.event WHERE aggregate_id = 'thing-1' ORDER BY seq";
    assert_eq!(
        place.words(order).await,
        ["a1", "two", "three", "four"],
        "the lane has them in order, should they go again"
    );
    assert_eq!(place.number("SELECT head_version AS number FROM tidings.aggregate WHERE id = 'thing-1'").await, 4);
    let _node = Node::start(&place, &[]).await;
    place.append("b", 3, 3).await;
    place.becomes("SELECT count(*) AS number FROM tidings.pending", 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_is_another_one_is_for_the_relay_to_judge_first() {
    let place = Place::shared(1).await;
    let (_, err) = complained(tidings(&place, &["adopt"]), 1);
    assert!(err.contains("no relay has ever run"), "{err}");
    let node = Node::start(&place, &[]).await;
    place.append("a", 3, 3).await;
    place.settles().await;
    drop(node);
    let (_, err) = complained(tidings(&place, &["adopt", "--partition", "1"]), 1);
    assert!(err.contains("there is no partition 1"), "{err}");
    place.execute("UPDATE tidings.partition SET anchor_stream_seq = 7").await;
    let (_, err) = complained(tidings(&place, &["adopt", "--yes"]), 1);
    assert!(err.contains("is not as it was when the last confirmation was recorded"), "{err}");
    let (_, err) = complained(tidings(&place, &["adopt", "--partition", "one"]), 2);
    assert!(err.contains("--help") && !err.contains(&place.database), "{err}");
}
