//! Content that the broker will never take: set aside with the reason, and nobody else's trouble.

use std::collections::BTreeMap;

use async_nats::jetstream::stream::DiscardPolicy;
use tidings_tests::eventually;

use super::SOON;
use super::node::Node;
use super::place::Place;

const CONFIRMED: &str = "SELECT count(*) AS number FROM tidings.confirmation";
const DEAD: &str = "SELECT count(*) AS number FROM tidings.dead_letter";
/// One event of an aggregate of its own, from a producer that checks nothing.
const BAD: &[(&str, &str)] = &[
    ("large", "type => 'relay.tested', data => convert_to(repeat('x', 1200000), 'UTF8')"),
    ("limit", "type => 'relay.tested', data => convert_to(repeat('x', 1048576 - 100), 'UTF8')"),
    ("wide", r#"type => 'relay.tested', data => 'x', headers => jsonb_build_object('a', repeat('x', 1200000))"#),
    (
        "many",
        r#"type => 'relay.tested', data => 'x',
                headers => (SELECT jsonb_object_agg('a' || g, repeat('x', 4096)) FROM generate_series(1, 17) g)"#,
    ),
    ("type", "type => 'relay tested', data => 'x'"),
    ("segment", "type => 'relay..tested', data => 'x'"),
    ("wildcard", "type => 'relay.>', data => 'x'"),
    ("rollup", r#"type => 'relay.tested', data => 'x', headers => '{"Nats-Rollup": "all"}'"#),
    ("reserved", r#"type => 'relay.tested', data => 'x', headers => '{"ce-id": "another"}'"#),
    ("break", r#"type => 'relay.tested', data => 'x', headers => '{"a": "b\r\nNats-Rollup: all"}'"#),
    ("number", r#"type => 'relay.tested', data => 'x', headers => '{"a": 1e400}'"#),
    ("array", r#"type => 'relay.tested', data => 'x', headers => '["a"]'"#),
    ("media", "type => 'relay.tested', data => 'x', content_type => E'text/plain\\r\\nNats-Rollup: all'"),
    ("cause", "type => 'relay.tested', data => 'x', causation_id => E'a\\nb'"),
    ("correlation", "type => 'relay.tested', data => 'x', correlation_id => E'a\\tb'"),
    ("trace", "type => 'relay.tested', data => 'x', traceparent => E'a\\nb'"),
];

#[tokio::test(flavor = "multi_thread")]
async fn is_set_aside_with_its_reason_and_holds_only_its_own_aggregate() {
    let place = Place::shared(1).await;
    place.append("before-", 20, 5).await;
    for (name, bad) in BAD {
        for sql in [bad, "type => 'relay.tested', data => 'behind'"] {
            place
                .execute(&format!("SELECT tidings.append({sql}, aggregate_type => 'bad', aggregate_id => '{name}')"))
                .await;
        }
    }
    // No word for it in CloudEvents, and no reason to hold anything.
    place.execute("SELECT tidings.append('relay.tested', 'x', id => 'never', occurred_at => 'infinity')").await;
    place.execute("SELECT tidings.append('relay.tested', 'x', id => 'early', occurred_at => '4000-01-01 BC')").await;
    place.append("after-", 20, 5).await;
    let log = "tidings=info,tidings::nats=debug";
    let node = Node::start(&place, &[("LOG", log)]).await;
    place.becomes(CONFIRMED, 42).await;
    place.becomes(DEAD, BAD.len().cast_signed() as i64).await;
    assert_eq!(node.said("disconnected"), 0, "the connection survives all of them");
    let held = "SELECT count(*) AS number FROM tidings.event_state WHERE aggregate_type = 'bad' AND version = 2 AND state = 'ready'";
    assert_eq!(place.number(held).await, BAD.len().cast_signed() as i64);
    let reasons: BTreeMap<String, String> = place
        .words("SELECT e.aggregate_id || '|' || d.reason AS words FROM tidings.dead_letter d JOIN tidings.event e USING (seq)")
        .await
        .into_iter()
        .map(|row| row.split_once('|').map(|(name, reason)| (name.to_owned(), reason.to_owned())).unwrap())
        .collect();
    for (name, _) in BAD {
        let expected = match *name {
            "large" | "limit" | "wide" | "many" => "larger than the broker takes",
            "type" | "segment" | "wildcard" => "no valid subject",
            _ => "a header that the broker cannot carry",
        };
        assert!(reasons[*name].contains(expected), "{name}: {}", reasons[*name]);
    }
}

/// What could never be sent is not even read: its size is for nobody's memory.
#[tokio::test(flavor = "multi_thread")]
async fn the_largest_of_all_is_set_aside_without_being_read() {
    const LARGE: u64 = 64 * 1024 * 1024;
    let place = Place::shared(1).await;
    let node = Node::start(&place, &[]).await;
    place.append("before-", 20, 5).await;
    place.settles().await;
    let before = node.peak_memory();
    let large = format!(
        "SELECT tidings.append('relay.tested', convert_to(repeat('x', {LARGE}), 'UTF8'), id => 'large-' || g)
           FROM generate_series(1, 2) g"
    );
    place.execute(&large).await;
    place.append("after-", 20, 5).await;
    place.becomes(CONFIRMED, 40).await;
    place.becomes(DEAD, 2).await;
    let reasons = place.words("SELECT reason AS words FROM tidings.dead_letter").await;
    assert!(reasons.iter().all(|reason| reason.contains("larger than the broker takes")), "{reasons:?}");
    let grown = node.peak_memory() - before;
    assert!(grown < LARGE / 2, "{grown} bytes more than before");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_that_was_lowered_while_the_relay_runs() {
    let place = Place::shared(1).await;
    let node = Node::start(&place, &[]).await;
    place.append("a", 10, 10).await;
    place.settles().await;
    let jetstream = place.jetstream().await;
    let mut config = place.streams(&jetstream).await.remove(0).config;
    config.max_message_size = 2_000;
    jetstream.update_stream(&config).await.unwrap();
    place.execute("SELECT tidings.append('relay.tested', convert_to(repeat('x', 3000), 'UTF8'))").await;
    place.append("b", 10, 10).await;
    place.becomes(CONFIRMED, 20).await;
    place.becomes(DEAD, 1).await;
    drop(node);
    // One that starts now knows the limit beforehand.
    place.execute("SELECT tidings.append('relay.tested', convert_to(repeat('x', 1990), 'UTF8'))").await;
    let _node = Node::start(&place, &[]).await;
    place.becomes(DEAD, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_stream_is_no_fault_of_the_events() {
    let place = Place::shared(1).await;
    let node = Node::start(&place, &[]).await;
    place.append("a", 10, 10).await;
    place.settles().await;
    let jetstream = place.jetstream().await;
    let mut config = place.streams(&jetstream).await.remove(0).config;
    assert_eq!(config.discard, DiscardPolicy::New);
    config.max_messages = 15;
    jetstream.update_stream(&config).await.unwrap();
    place.append("b", 100, 30).await;
    node.says("the stream is full").await;
    eventually("it is full", SOON, async || (place.stored().await.len() == 15).then_some(())).await;
    let untouched = "SELECT count(*) AS number FROM tidings.pending WHERE state = 'ready' AND attempts = 0";
    place.becomes(untouched, 95).await;
    config.max_messages = -1;
    jetstream.update_stream(&config).await.unwrap();
    place.settles().await;
}
