//! A database that was restored from a backup, under a stream that holds more.

use tidings::dead::{self, By, Which};

use super::{back_up, is_whole, restore, said, tables, tidings};
use crate::relay::node::Node;
use crate::relay::place::Place;

/// What the relay is to find again byte for byte: with everything that an event may have, a command, and a tombstone.
const PECULIAR: &str = r#"
    SELECT tidings.append('relay.tested', '\x00ff0d0a', id => 'full', aggregate_type => 'thing', aggregate_id => 'thing-ü',
                          schema_version => 3, content_type => 'application/octet-stream', headers => '{"tenant": "acme 1%"}',
                          correlation_id => 'corr', causation_id => 'cause',
                          traceparent => '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01', tracestate => 'a=b',
                          occurred_at => '2020-01-01 12:00:00.123456+00');
    SELECT tidings.append('relay.ask', 'x', id => 'command', recipient => 'worker');
    SELECT tidings.append('relay.tested', 'x', id => 'gone', aggregate_type => 'other', aggregate_id => '1',
                          not_before => now() + interval '1 hour');
    SELECT tidings.append('relay.tested', 'x', id => 'after', aggregate_type => 'other', aggregate_id => '1');
    SELECT tidings.cancel('gone')"#;

/// Appended after the restore, as the database now numbers it. `thing-0` and `thing-1` collide and were numbered; in `thing-2` the
/// producer had chosen; `b1` is said once more, and `b3` is said again where it stands in the stream.
const SINCE: &str = "
    SELECT tidings.append('relay.tested', convert_to('{\"n\": 3}', 'UTF8'), id => 'b3', aggregate_type => 'thing', aggregate_id => 'thing-0');
    SELECT tidings.append('relay.tested', 'c', id => 'c' || g, aggregate_type => 'thing', aggregate_id => 'thing-' || g % 2)
      FROM generate_series(1, 6) g;
    SELECT tidings.append('relay.tested', convert_to('{\"n\": 1}', 'UTF8'), id => 'b1', aggregate_type => 'thing', aggregate_id => 'thing-1');
    SELECT tidings.append('relay.tested', 'c', id => 'far', aggregate_type => 'thing', aggregate_id => 'thing-1', version => 100);
    SELECT tidings.append('relay.tested', 'c', id => 'farther', aggregate_type => 'thing', aggregate_id => 'thing-1');
    SELECT tidings.append('relay.tested', 'c', id => 'chosen', aggregate_type => 'thing', aggregate_id => 'thing-2', version => 12);
    SELECT tidings.append('relay.tested', 'c', id => 'behind', aggregate_type => 'thing', aggregate_id => 'thing-2');
    SELECT tidings.append('relay.tested', 'c', id => 'elsewhere', aggregate_type => 'thing', aggregate_id => 'new');
    SELECT tidings.append('relay.tested', 'c', id => 'unordered')";

/// Everything of what was adopted is as it was, but for the place in the outbox.
const CHANGED: &str = "
    SELECT count(*) AS number FROM backup.lost l LEFT JOIN tidings.event e ON e.id = l.id AND NOT EXISTS (
           SELECT FROM tidings.discarded d WHERE d.seq = e.seq)
     WHERE l.id NOT IN ('gone', 'b3')
       AND (l.type, l.schema_version, l.kind, l.recipient, l.aggregate_type, l.aggregate_id, l.version, l.previous, l.partition,
            l.content_type, l.data, l.headers, l.correlation_id, l.causation_id, l.traceparent, l.tracestate, l.occurred_at)
           IS DISTINCT FROM
           (e.type, e.schema_version, e.kind, e.recipient, e.aggregate_type, e.aggregate_id, e.version, e.previous, e.partition,
            e.content_type, e.data, e.headers, e.correlation_id, e.causation_id, e.traceparent, e.tracestate, e.occurred_at)";
const RECORDED_OTHERWISE: &str = "SELECT count(*) AS number FROM backup.lost l JOIN tidings.event e ON e.id = l.id
     WHERE l.created_at <> e.created_at AND l.id <> 'b3'";

#[tokio::test(flavor = "multi_thread")]
async fn what_it_lost_is_adopted_and_what_came_since_goes_behind_it() {
    let place = Place::shared(1).await;
    let node = Node::start(&place, &[]).await;
    place.append("a", 30, 3).await;
    place.settles().await;
    back_up(&place).await;
    place.append("b", 12, 3).await;
    place.execute(PECULIAR).await;
    place.becomes("SELECT count(*) AS number FROM tidings.pending", 0).await;
    drop(node);
    restore(&place).await;
    place.execute(SINCE).await;
    let stored = place.stored().await.len();
    assert_eq!(stored, 46);

    let node = Node::start(&place, &[]).await;
    node.says("holds at sequence 31 a message that this database does not know").await;
    let before = tables(&place).await;
    let listed = said(tidings(&place, &["adopt"]));
    assert!(listed.contains("beyond sequence 30") && listed.contains("1 messages that are known"), "{listed}");
    assert!(listed.contains("15 that are not, 0 that are in the way"), "{listed}");
    assert!(listed.contains("unknown 31  relay.tested  thing/thing-1 v11  b1\n"), "{listed}");
    assert!(listed.contains("nothing was done: say --yes"), "{listed}");
    assert_eq!(tables(&place).await, before, "looking changes nothing");
    assert_eq!(place.stored().await.len(), stored, "nothing was published on top of it");

    let adopted = said(tidings(&place, &["adopt", "--partition", "0", "--yes", "--by", "bo"]));
    assert!(adopted.contains("adopted 31 ") && adopted.contains("renumbered c2: version 12 is 15 now\n"), "{adopted}");
    assert!(adopted.contains("renumbered chosen: version 12 is 15 now, and is dead"), "{adopted}");
    assert_eq!(place.number(CHANGED).await, 0);
    assert_eq!(place.number(RECORDED_OTHERWISE).await, 0);
    let decided = place.words("SELECT concat_ws(' ', event_id, how, by) AS words FROM tidings.discarded").await;
    assert_eq!(decided, ["gone discarded bo"]);

    // The relay goes on by itself; the lane of the dead one is held.
    place.becomes("SELECT count(*) AS number FROM tidings.pending", 2).await;
    let letters = dead::list(&mut place.connection().await, &Which::all()).await.unwrap();
    assert_eq!(letters.len(), 1);
    assert_eq!((letters[0].event_id.as_str(), letters[0].version.map(|version| version.0)), ("chosen", Some(15)));
    assert!(letters[0].reason.contains("its version 12 was given by its producer"), "{}", letters[0].reason);
    dead::redrive(&mut place.connection().await, &Which::all(), &By::name("ana")).await.unwrap();
    place.becomes("SELECT count(*) AS number FROM tidings.pending", 0).await;
    is_whole(&place).await;
    let versions = place
        .words(
            "SELECT id || ' ' || version AS words FROM tidings.event
              WHERE aggregate_id IN ('thing-0', 'thing-1', 'thing-2') AND version > 14 ORDER BY aggregate_id, version",
        )
        .await;
    let expected =
        ["c2 15", "c4 16", "c6 17", "c1 15", "c3 16", "c5 17", "far 100", "farther 101", "chosen 15", "behind 16"];
    assert_eq!(versions, expected);
    // 46 were there, and these came: 10 above, `elsewhere` and `unordered`.
    assert_eq!(place.stored().await.len(), 58);
    assert!(said(tidings(&place, &["adopt", "--yes"])).contains("0 that are not, 0 that are in the way"));

    // And the next appends count on from there.
    place.append("d", 9, 3).await;
    place.becomes("SELECT count(*) AS number FROM tidings.pending", 0).await;
    is_whole(&place).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_delayed_and_cancelled_ones_keep_what_was_decided_about_them() {
    let place = Place::shared(1).await;
    let node = Node::start(&place, &[]).await;
    place.append("a", 3, 3).await;
    place.settles().await;
    back_up(&place).await;
    place.append("b", 3, 3).await;
    place.settles().await;
    drop(node);
    restore(&place).await;
    place
        .execute(
            "SELECT tidings.append('bad type', 'x', id => 'dead', aggregate_type => 'thing', aggregate_id => 'thing-0');
             SELECT tidings.append('relay.tested', 'x', id => 'later', aggregate_type => 'thing', aggregate_id => 'thing-1',
                                   not_before => now() + interval '1 hour');
             SELECT tidings.append('relay.tested', 'x', id => 'never', aggregate_type => 'thing', aggregate_id => 'thing-2',
                                   not_before => now() + interval '1 hour', version => 2);
             SELECT tidings.cancel('never', 'ana');
             UPDATE tidings.pending p SET state = 'dead', last_error = 'a name' FROM tidings.event e WHERE e.id = 'dead' AND p.seq = e.seq;
             INSERT INTO tidings.dead_letter (seq, partition, event_id, reason, attempts, epoch)
             SELECT seq, partition, id, 'a name', 1, 1 FROM tidings.event WHERE id = 'dead'",
        )
        .await;
    said(tidings(&place, &["adopt", "--yes"]));
    let states = "SELECT concat_ws(' ', s.id, s.version, s.state, s.discarded_how, d.reason) AS words
                    FROM tidings.event_state s LEFT JOIN tidings.dead_letter d ON d.seq = s.seq
                   WHERE s.version > 2 ORDER BY s.id";
    assert_eq!(
        place.words(states).await,
        ["dead 3 dead a name", "later 3 delayed", "never 3 tombstone cancelled"],
        "one whose version was given and that was cancelled dies no more"
    );
    let _node = Node::start(&place, &[]).await;
    place.becomes("SELECT count(*) AS number FROM tidings.pending", 2).await;
    dead::discard(&mut place.connection().await, &Which::all(), &By::name("ana")).await.unwrap();
    place.execute("SELECT tidings.cancel('later')").await;
    place.becomes("SELECT count(*) AS number FROM tidings.pending", 0).await;
    is_whole(&place).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_head_stays_above_the_last_version() {
    let place = Place::shared(1).await;
    let node = Node::start(&place, &[]).await;
    place.append("a", 3, 3).await;
    place.settles().await;
    back_up(&place).await;
    place.append("b", 3, 3).await;
    place.settles().await;
    drop(node);
    restore(&place).await;
    // Said again, under a version of the producer's: the one in the stream takes its place, and 50 will never be.
    place
        .execute(
            "SELECT tidings.append('relay.tested', convert_to('{\"n\": 1}', 'UTF8'), id => 'b1', aggregate_type => 'thing',
                                   aggregate_id => 'thing-1', version => 50)",
        )
        .await;
    said(tidings(&place, &["adopt", "--yes"]));
    let _node = Node::start(&place, &[]).await;
    place.append("c", 3, 3).await;
    place.becomes("SELECT count(*) AS number FROM tidings.pending", 0).await;
    is_whole(&place).await;
}
