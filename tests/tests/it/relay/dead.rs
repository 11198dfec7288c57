//! Dead letters on the road: tried again in their place, or given up, with a tombstone in it.

use std::collections::BTreeMap;

use tidings::dead::{self, By, Which};
use tidings_tests::eventually;

use super::SOON;
use super::node::Node;
use super::place::{Place, Stored};

const PENDING: &str = "SELECT count(*) AS number FROM tidings.pending";
const DEAD: &str = "SELECT count(*) AS number FROM tidings.pending WHERE state = 'dead'";
const CONFIRMED: &str = "SELECT count(*) AS number FROM tidings.confirmation";

fn by() -> By {
    By::name("ana").why("a test")
}

/// Four versions, the second of which has a type that makes no subject, and headers that are nobody's business afterwards.
async fn with_a_bad_second(place: &Place) {
    for (id, r#type) in
        [("e-1", "relay.tested"), ("event 2%", "bad type"), ("e-3", "relay.tested"), ("e-4", "relay.tested")]
    {
        place
            .execute(&format!(
                "SELECT tidings.append('{type}', 'secret', id => '{id}', aggregate_type => 'thing',
                        aggregate_id => 'thing-1', correlation_id => 'c', headers => '{{\"tenant\": \"academy\"}}')"
            ))
            .await;
    }
}

/// The versions of each aggregate in the order of the stream, and which of them are tombstones.
fn versions(stored: &[Stored]) -> BTreeMap<&str, Vec<(i64, bool)>> {
    let mut versions: BTreeMap<&str, Vec<(i64, bool)>> = BTreeMap::new();
    for message in stored {
        let version = message.header("ce-aggregateversion").parse().unwrap();
        let tombstone = message.headers.get("ce-tombstone").is_some_and(|mark| mark == "true");
        versions.entry(message.header("ce-aggregateid")).or_default().push((version, tombstone));
    }
    versions
}

#[tokio::test(flavor = "multi_thread")]
async fn a_discarded_version_leaves_a_tombstone_in_its_place() {
    let place = Place::shared(1).await;
    with_a_bad_second(&place).await;
    let _node = Node::start(&place, &[]).await;
    place.becomes(DEAD, 1).await;
    place.becomes(CONFIRMED, 1).await;
    let done = dead::discard(&mut place.connection().await, &Which::all().event_id("event 2%"), &by()).await.unwrap();
    assert_eq!(done.events.len(), 1);
    place.becomes(PENDING, 0).await;
    let stored = place.stored().await;
    assert_eq!(versions(&stored)["thing-1"], [(1, false), (2, true), (3, false), (4, false)]);
    let tombstone = &stored[1];
    assert_eq!(tombstone.subject, format!("{}.0.evt.thing._tombstone", place.source.replace('_', "=5F")));
    assert_eq!((tombstone.bytes, stored[0].bytes), (0, 6));
    assert_eq!(tombstone.header("ce-id"), "event%202%25", "its id, though it has a space in it");
    assert_eq!(tombstone.header("ce-previousversion"), "1");
    assert_eq!(tombstone.header("Nats-Msg-Id"), format!("{}#event%202%25%tombstone", place.source));
    for name in tombstone.headers.keys() {
        assert!(name.starts_with("ce-") || name.starts_with("Nats-"), "{name} is the producer's");
    }
    assert_eq!(tombstone.header("ce-correlationid"), "");
    let states = place
        .words("SELECT state || ' ' || coalesce(discarded_how, '') AS words FROM tidings.event_state ORDER BY seq")
        .await;
    assert_eq!(states, ["confirmed ", "discarded discarded", "confirmed ", "confirmed "]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redriven_event_goes_before_what_waits_behind_it() {
    let place = Place::shared(1).await;
    let _node = Node::start(&place, &[]).await;
    place.append("a", 10, 2).await;
    place.settles().await;
    limit(&place, 2_000).await;
    place
        .execute(
            "SELECT tidings.append('relay.tested', convert_to(repeat('x', 3000), 'UTF8'), aggregate_type => 'thing',
                                   aggregate_id => 'thing-1')",
        )
        .await;
    place.append("b", 40, 4).await;
    place.becomes(DEAD, 1).await;
    place.becomes(CONFIRMED, 40).await;
    limit(&place, -1).await;
    let done = dead::redrive(&mut place.connection().await, &Which::all(), &by()).await.unwrap();
    assert_eq!((done.events.len(), done.stored_after_all.len()), (1, 0));
    place.becomes(PENDING, 0).await;
    let how = place.words("SELECT resolution || ' ' || redriven AS words FROM tidings.dead_letter").await;
    assert_eq!(how, ["redriven 1"]);
    for (aggregate, versions) in versions(&place.stored().await) {
        let expected: Vec<(i64, bool)> = (1..=versions.len() as i64).map(|version| (version, false)).collect();
        assert_eq!(versions, expected, "{aggregate}");
    }
}

/// The broker's refusals stand in the middle of a pipelined run, with other versions of the same aggregates behind them.
#[tokio::test(flavor = "multi_thread")]
async fn where_the_relay_is_told_to_skip_nothing_waits_and_the_order_stands() {
    let place = Place::shared(1).await;
    let _node = Node::start(&place, &[("SKIP", "thing")]).await;
    place.append("a", 10, 10).await;
    place.settles().await;
    limit(&place, 2_000).await;
    // Versions 2 to 11 of ten aggregates: the fourth and the fifth are too large for the stream, the seventh for any.
    place
        .execute(
            "SELECT tidings.append('relay.tested',
                        convert_to(repeat('x', CASE v WHEN 4 THEN 3000 WHEN 5 THEN 3000 WHEN 7 THEN 1200000 ELSE 10 END), 'UTF8'),
                        aggregate_type => 'thing', aggregate_id => 'thing-' || a)
               FROM generate_series(2, 11) v, generate_series(0, 9) a ORDER BY v, a",
        )
        .await;
    place.becomes(PENDING, 0).await;
    let stored = place.stored().await;
    let versions = versions(&stored);
    assert_eq!(versions.len(), 10);
    let expected: Vec<(i64, bool)> = (1..=11).map(|version| (version, matches!(version, 4 | 5 | 7))).collect();
    for (aggregate, versions) in versions {
        assert_eq!(versions, expected, "{aggregate}");
    }
    let recorded = "SELECT count(*) AS number FROM tidings.dead_letter l JOIN tidings.discarded d USING (seq)
                     WHERE l.resolution = 'skipped' AND l.resolved_at IS NOT NULL AND d.how = 'skipped' AND d.by LIKE 'relay %'";
    assert_eq!(place.number(recorded).await, 30);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_type_that_is_not_to_be_skipped_waits() {
    let place = Place::shared(1).await;
    with_a_bad_second(&place).await;
    let node = Node::start(&place, &[("SKIP", "other")]).await;
    place.becomes(DEAD, 1).await;
    node.says("its aggregate waits behind it").await;
    assert_eq!(place.number(PENDING).await, 3);
}

/// What was discarded stays so: a stream that was lost gets the tombstone again, not the event.
#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_lost_its_stream_gets_the_tombstone_again() {
    let place = Place::shared(1).await;
    with_a_bad_second(&place).await;
    let node = Node::start(&place, &[]).await;
    place.becomes(DEAD, 1).await;
    dead::discard(&mut place.connection().await, &Which::all(), &by()).await.unwrap();
    place.becomes(PENDING, 0).await;
    drop(node);
    let jetstream = place.jetstream().await;
    let name = place.streams(&jetstream).await.remove(0).config.name;
    jetstream.delete_stream(name).await.unwrap();
    let node = Node::start(&place, &[]).await;
    node.says("the broker lost what it had confirmed").await;
    place.becomes(PENDING, 0).await;
    place.becomes(CONFIRMED, 4).await;
    assert_eq!(versions(&place.stored().await)["thing-1"], [(1, false), (2, true), (3, false), (4, false)]);
}

/// A failure of its own makes it wait; what it stands for stays discarded.
#[tokio::test(flavor = "multi_thread")]
async fn a_tombstone_that_finds_no_way_stays_one() {
    let place = Place::shared(1).await;
    with_a_bad_second(&place).await;
    let _node = Node::start(&place, &[]).await;
    place.becomes(DEAD, 1).await;
    place.becomes(CONFIRMED, 1).await;
    let jetstream = place.jetstream().await;
    let mut config = place.streams(&jetstream).await.remove(0).config;
    let all = std::mem::replace(
        &mut config.subjects,
        vec![format!("{}.0.evt.thing.relay_tested", place.source.replace('_', "=5F"))],
    );
    jetstream.update_stream(&config).await.unwrap();
    dead::discard(&mut place.connection().await, &Which::all(), &by()).await.unwrap();
    let failed = "SELECT count(*) AS number FROM tidings.pending WHERE state IN ('tombstone', 'retrying')
                     AND last_error LIKE '%takes no message with this subject%'";
    place.becomes(failed, 1).await;
    config.subjects = all;
    jetstream.update_stream(&config).await.unwrap();
    place.becomes(PENDING, 0).await;
    assert_eq!(versions(&place.stored().await)["thing-1"], [(1, false), (2, true), (3, false), (4, false)]);
}

/// An earlier try, whose answer was lost, was stored: then it was not discarded, whatever was decided.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_stored_after_all_is_not_discarded() {
    let place = Place::shared(1).await;
    place.append("e", 1, 1).await;
    Node::spawn(&place, &[("KILL_AT", "relay::acknowledged@1")]).ended(SOON).await;
    assert_eq!((place.stored().await.len(), place.number(PENDING).await), (1, 1));
    place
        .execute(
            "UPDATE tidings.pending SET state = 'dead';
             INSERT INTO tidings.dead_letter (seq, partition, event_id, reason, attempts, epoch) SELECT seq, partition, id, 'a test', 1, 1 FROM tidings.event",
        )
        .await;
    let done = dead::discard(&mut place.connection().await, &Which::all(), &by()).await.unwrap();
    assert_eq!(done.events.len(), 1, "nobody knows yet");
    let _node = Node::start(&place, &[]).await;
    place.becomes(PENDING, 0).await;
    let told = "SELECT count(*) AS number FROM tidings.dead_letter WHERE resolution = 'stored after all'";
    place.becomes(told, 1).await;
    place.append("f", 1, 1).await;
    eventually("the next is stored", SOON, async || (place.stored().await.len() == 2).then_some(())).await;
    place.becomes(PENDING, 0).await;
    assert_eq!(versions(&place.stored().await)["thing-0"], [(1, false), (2, false)]);
    let states = place.words("SELECT state AS words FROM tidings.event_state").await;
    assert_eq!(states, ["confirmed", "confirmed"]);
}

async fn limit(place: &Place, bytes: i32) {
    let jetstream = place.jetstream().await;
    let mut config = place.streams(&jetstream).await.remove(0).config;
    config.max_message_size = bytes;
    jetstream.update_stream(&config).await.unwrap();
}
