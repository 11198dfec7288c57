//! What waits behind a head costs the others nothing.

use std::time::{Duration, Instant};

use super::node::Node;
use super::place::Place;

const CONFIRMED: &str = "SELECT count(*) AS number FROM tidings.confirmation";

#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_waits_or_is_dead_holds_only_its_own_lane() {
    let place = Place::shared(1).await;
    place.append("e", 40, 4).await;
    // Of the four aggregates one waits for its time and one is dead; both have nine events behind.
    place
        .execute(
            "UPDATE tidings.pending p SET state = 'retrying', attempts = 3, next_attempt_at = now() + interval '50 seconds'
               FROM tidings.event e WHERE e.seq = p.seq AND e.aggregate_id = 'thing-1' AND e.version = 1;
             UPDATE tidings.pending p SET state = 'dead'
               FROM tidings.event e WHERE e.seq = p.seq AND e.aggregate_id = 'thing-2' AND e.version = 1",
        )
        .await;
    let _node = Node::start(&place, &[("WINDOW", "5")]).await;
    place.becomes(CONFIRMED, 20).await;
    place.append("later-", 4, 4).await;
    place.becomes(CONFIRMED, 22).await;
    let held = "SELECT count(*) AS number FROM tidings.event_state
                 WHERE aggregate_id IN ('thing-1', 'thing-2') AND state <> 'confirmed'";
    assert_eq!(place.number(held).await, 22);
    // Its time comes, and its lane goes in order.
    place.execute("UPDATE tidings.pending SET next_attempt_at = now() WHERE state = 'retrying'").await;
    place.becomes(CONFIRMED, 33).await;
    place.execute("UPDATE tidings.pending SET state = 'ready' WHERE state = 'dead'").await;
    place.settles().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_beyond_the_ceiling_was_written_before_the_clock_was_set_back() {
    let place = Place::shared(1).await;
    place.append("e", 10, 2).await;
    place
        .execute("UPDATE tidings.pending SET state = 'retrying', attempts = 1, next_attempt_at = now() + interval '10 years'")
        .await;
    let _node = Node::start(&place, &[]).await;
    place.settles().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn more_poison_than_a_window_holds_stands_before_good_events() {
    let place = Place::shared(1).await;
    let poison = "SELECT tidings.append('bad type', 'x', aggregate_type => 'bad', aggregate_id => 'bad-' || g)
                    FROM generate_series(1, 51) g";
    place.execute(poison).await;
    place.append("good-", 100, 10).await;
    let _node = Node::start(&place, &[("WINDOW", "50")]).await;
    let started = Instant::now();
    place.becomes(CONFIRMED, 100).await;
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    assert_eq!(place.number("SELECT count(*) AS number FROM tidings.dead_letter").await, 51);
}

/// The planner knows nothing of how many there are: it takes them for a few.
#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_dead_heads_cost_a_claim_next_to_nothing() {
    let place = Place::shared(1).await;
    place
        .execute(
            "ALTER TABLE tidings.pending SET (autovacuum_enabled = off);
             INSERT INTO tidings.event (id, type, schema_version, kind, aggregate_type, aggregate_id, version, previous,
                                        partition, content_type, data, occurred_at)
             SELECT 'held-' || n || '-' || v, 'relay.tested', 1, 'event', 'held', 'held-' || n, v, nullif(v - 1, 0),
                    0, 'text/plain', 'x', now()
               FROM generate_series(1, 21) v, generate_series(1, 2000) n;
             INSERT INTO tidings.pending (partition, seq, lane, id_hash, state)
             SELECT partition, seq, tidings.lane(aggregate_type, aggregate_id, id), hashtextextended(id, 0),
                    CASE version WHEN 1 THEN 'dead' ELSE 'ready' END::tidings.pending_state
               FROM tidings.event",
        )
        .await;
    place.append("good-", 100, 10).await;
    let node = Node::start(&place, &[("STATEMENT", "1500"), ("WINDOW", "50")]).await;
    place.becomes(CONFIRMED, 100).await;
    assert_eq!(node.said("statement timeout"), 0, "no claim took long");
    assert_eq!(place.number("SELECT count(*) AS number FROM tidings.pending").await, 42_000);
}

/// More of them than the server's memory for a hash is thought to hold, and the planner knows how many there are.
#[tokio::test(flavor = "multi_thread")]
async fn more_dead_lanes_than_the_planner_would_hash_do_not_stop_the_others() {
    let place = Place::shared(1).await;
    place
        .execute(&format!(
            "ALTER DATABASE {} SET work_mem = '64kB';
             INSERT INTO tidings.pending (partition, seq, lane, id_hash, state)
             SELECT 0, -g, hashtextextended('dead-' || g, 0), g, 'dead' FROM generate_series(1, 40000) g;
             ANALYZE tidings.pending",
            place.source
        ))
        .await;
    place.append("good-", 100, 10).await;
    let node = Node::start(&place, &[("STATEMENT", "1500"), ("WINDOW", "50")]).await;
    place.becomes(CONFIRMED, 100).await;
    assert_eq!(node.said("statement timeout"), 0, "no claim took long");
}
