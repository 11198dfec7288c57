//! `tidings republish`

use super::{complained, is_whole, said, tables, tidings};
use crate::relay::node::Node;
use crate::relay::place::{Place, Stored};

const PENDING: &str = "SELECT count(*) AS number FROM tidings.pending";
/// The broker has forgotten the ids of what it stored.
const YOUNG: &str =
    "SELECT count(*) AS number FROM tidings.confirmation WHERE confirmed_at > now() - interval '2 seconds'";

/// Events, a tombstone, and an unordered one that was cancelled; all stored and done with.
async fn published(place: &Place) -> Node {
    let node = Node::start(place, &[("DUPLICATE_WINDOW", "200")]).await;
    place.append("e", 40, 8).await;
    place
        .execute(
            "SELECT tidings.append('relay.tested', 'x', id => 'gone', aggregate_type => 'thing', aggregate_id => 'thing-0',
                                   not_before => now() + interval '1 hour');
             SELECT tidings.append('relay.tested', 'x', id => 'nothing', not_before => now() + interval '1 hour');
             SELECT tidings.append('relay.tested', 'x', id => 'last', aggregate_type => 'thing', aggregate_id => 'thing-0');
             SELECT tidings.cancel('gone'), tidings.cancel('nothing')",
        )
        .await;
    place.becomes(PENDING, 0).await;
    place.becomes(YOUNG, 0).await;
    is_whole(place).await;
    node
}

/// Of each aggregate, the versions in the order of the stream.
fn versions<'a>(stored: impl Iterator<Item = &'a Stored>, aggregate: &str) -> Vec<i64> {
    let of_it = stored.filter(|message| message.header("ce-aggregateid") == aggregate);
    of_it.map(|message| message.header("ce-aggregateversion").parse().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_published_is_published_again_in_its_order() {
    let place = Place::shared(2).await;
    let _node = published(&place).await;
    let first = place.stored().await;
    let before = tables(&place).await;
    let counted = said(tidings(&place, &["republish", "--since", "1h"]));
    assert!(counted.ends_with("42 events would be published again; nothing was done: say --yes\n"), "{counted}");
    assert!(counted.contains("partition 0: ") && counted.contains("partition 1: "), "{counted}");
    assert_eq!(tables(&place).await, before, "counting changes nothing");

    let done =
        tidings(&place, &["republish", "--since", "1h", "--yes", "--by", "bo", "--reason", "statistics was lost"]);
    let log = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(log.contains("bo") && log.contains("statistics was lost"), "{log}");
    assert!(said(done).ends_with("42 events are published again\n"));
    place.becomes(PENDING, 0).await;
    let all = place.stored().await;
    assert_eq!(all.len(), 84);
    for aggregate in 0..8 {
        let aggregate = format!("thing-{aggregate}");
        let once = versions(first.iter(), &aggregate);
        assert_eq!(versions(all.iter(), &aggregate), [once.clone(), once].concat(), "{aggregate}");
    }
    let gone: Vec<&str> =
        all.iter().filter(|m| m.header("ce-id") == "gone").map(|m| m.header("ce-tombstone")).collect();
    assert_eq!(gone, ["true", "true"]);
    assert!(!all.iter().any(|message| message.header("ce-id") == "nothing"));
    // Same ids, same headers: an inbox knows them.
    let identity = |message: &Stored| (message.header("ce-source").to_owned(), message.header("ce-id").to_owned());
    let (mut copies, mut originals): (Vec<_>, Vec<_>) =
        (all.iter().map(identity).collect(), first.iter().chain(&first).map(identity).collect());
    copies.sort();
    originals.sort();
    assert_eq!(copies, originals);
    is_whole(&place).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_aggregate_alone_and_what_is_pending_stays_as_it_is() {
    let place = Place::shared(2).await;
    drop(published(&place).await);
    place
        .execute(
            "SELECT tidings.append('relay.tested', 'x', id => 'waits', aggregate_type => 'thing', aggregate_id => 'thing-0');
             UPDATE tidings.pending SET state = 'retrying', attempts = 3, next_attempt_at = now() + interval '1 minute'",
        )
        .await;
    let epochs = "SELECT string_agg(epoch::text, ' ' ORDER BY id) AS words FROM tidings.partition";
    let before = place.words(epochs).await;
    let done = said(tidings(&place, &["republish", "--aggregate", "thing/thing-0", "--yes"]));
    assert!(done.contains("7 events are published again"), "{done}");
    let states = "SELECT concat_ws(' ', e.id, p.state, p.attempts) AS words FROM tidings.pending p JOIN tidings.event e USING (seq)
                   WHERE p.state <> 'ready' ORDER BY e.seq";
    assert_eq!(place.words(states).await, ["gone tombstone 0", "waits retrying 3"]);
    let changed = format!(
        "SELECT count(*) AS number FROM tidings.partition p JOIN tidings.aggregate a ON a.partition = p.id
          WHERE a.id = 'thing-0' AND p.owner IS NULL AND '{}' <> (SELECT string_agg(epoch::text, ' ' ORDER BY id) FROM tidings.partition)",
        before[0]
    );
    assert_eq!(place.number(&changed).await, 1, "the owner lost it, under a new epoch");
    let again = said(tidings(&place, &["republish", "--aggregate", "thing/thing-0", "--yes"]));
    assert!(again.starts_with("nothing to do"), "{again}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_inboxes_may_have_forgotten_is_refused_with_the_numbers() {
    let place = Place::shared(1).await;
    let _node = published(&place).await;
    place.execute("UPDATE tidings.event SET created_at = now() - interval '39 days' WHERE id IN ('e1', 'e2')").await;
    let before = tables(&place).await;
    let (_, err) = complained(tidings(&place, &["republish", "--since", "60d", "--yes"]), 1);
    assert!(err.contains("2 of the events") && err.contains("38 days") && err.contains("--inbox-horizon"), "{err}");
    let (_, err) = complained(tidings(&place, &["republish", "--aggregate", "thing/thing-1", "--yes"]), 1);
    assert!(err.contains("1 of the events"), "{err}");
    assert_eq!(tables(&place).await, before, "nothing was done");
    let counted = said(tidings(&place, &["republish", "--since", "30d"]));
    assert!(counted.contains("40 events would be"), "{counted}");
    let told = ["republish", "--aggregate", "thing/thing-1", "--inbox-horizon", "40d", "--yes"];
    assert!(said(tidings(&place, &told)).contains("5 events are published again"));
    for wrong in [
        &["republish"][..],
        &["republish", "--since", "yesterday"],
        &["republish", "--since", "1h", "--aggregate", "a/b"],
    ] {
        complained(tidings(&place, wrong), 2);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn they_go_by_the_partition_that_their_aggregate_has_now() {
    let place = Place::shared(1).await;
    let node = published(&place).await;
    drop(node);
    said(tidings(&place, &["partitions", "set", "4"]));
    let counted = said(tidings(&place, &["republish", "--since", "1h", "--yes"]));
    assert!(counted.contains("partition 3: ") && counted.ends_with("42 events are published again\n"), "{counted}");
    let astray = "SELECT count(*) AS number FROM tidings.pending q JOIN tidings.event e USING (seq)
                    JOIN tidings.aggregate a ON a.type = e.aggregate_type AND a.id = e.aggregate_id
                   WHERE q.partition <> a.partition OR e.partition <> a.partition";
    assert_eq!(place.number(astray).await, 0);
    let again = said(tidings(&place, &["republish", "--since", "1h", "--yes"]));
    assert!(again.starts_with("nothing to do"), "{again}");
    let _node = Node::start(&place, &[("DUPLICATE_WINDOW", "200")]).await;
    place.becomes(PENDING, 0).await;
    place.append("later", 8, 8).await;
    place.becomes(PENDING, 0).await;
    let all = place.stored().await;
    assert_eq!(all.len(), 42 + 42 + 8);
    for aggregate in 0..8 {
        let aggregate = format!("thing-{aggregate}");
        let home = format!("SELECT partition::bigint AS number FROM tidings.aggregate WHERE id = '{aggregate}'");
        let home = i32::try_from(place.number(&home).await).unwrap();
        let there =
            all.iter().filter(|message| message.partition == home && message.seq > if home == 0 { 42 } else { 0 });
        let versions = versions(there, &aggregate);
        assert_eq!(versions, (1..=versions.len() as i64).collect::<Vec<_>>(), "{aggregate}");
    }
}
