//! List, show, redrive and discard.

use tidings::dead::{self, By, Done, MAX_LIMIT, Named, Which};

use super::{connect, database, dies, number, run, state, with_dead, words};

fn ana() -> By {
    By::name("ana").why("limit raised")
}

fn ids(done: &Done) -> Vec<&str> {
    done.events.iter().map(|event| event.event_id.as_str()).collect()
}

#[tokio::test]
async fn letters_are_listed_by_what_is_said_of_them() {
    let (_database, mut conn) = database().await;
    with_dead(&mut conn).await;
    for (which, expected) in [
        (Which::all(), &["a-1", "b-1", "c"][..]),
        (Which::all().limit(2), &["a-1", "b-1"]),
        (Which::all().event_id("c").event_id("a-1").event_id("a-2"), &["a-1", "c"]),
        (Which::all().event_type("orders.ship"), &["c"]),
        (Which::all().aggregate("order", "b"), &["b-1"]),
        (Which::all().aggregate_type("order"), &["a-1", "b-1"]),
        (Which::all().aggregate("order", "b").event_id("a-1"), &[]),
        (Which::all().partition(1023), &[]),
    ] {
        let letters = dead::list(&mut conn, &which).await.unwrap();
        assert_eq!(letters.iter().map(|letter| letter.event_id.as_str()).collect::<Vec<_>>(), expected, "{which:?}");
    }
    let first = dead::list(&mut conn, &Which::all()).await.unwrap().remove(0);
    assert_eq!((first.reason.as_str(), first.state.as_str(), first.attempts), ("too large", "dead", 3));
    assert_eq!(first.version.map(|version| version.0), Some(1));
    let next = dead::list(&mut conn, &Which::all().after(first.seq).limit(1)).await.unwrap();
    assert_eq!(next[0].event_id, "b-1");
    assert_eq!(dead::list(&mut conn, &Which::all().seq(first.seq)).await.unwrap(), [first]);
    assert_eq!(Which::all().limit(usize::MAX), Which::all().limit(MAX_LIMIT));
}

#[tokio::test]
async fn a_letter_is_shown_without_what_the_producer_said() {
    let (_database, mut conn) = database().await;
    with_dead(&mut conn).await;
    let named = Named::Id("a-1".into());
    let content = dead::show(&mut conn, &named).await.unwrap().unwrap();
    assert_eq!((content.data_bytes, content.waiting, content.headers["tenant"]), (6, 1, 6));
    assert!(!format!("{content:?}").contains("s3cret"));
    assert_eq!(dead::data(&mut conn, &named).await.unwrap().as_deref(), Some(&b"s3cret"[..]));
    assert_eq!(dead::show(&mut conn, &Named::Seq(content.letter.seq)).await.unwrap(), Some(content));
    assert_eq!(dead::show(&mut conn, &Named::Id("a-2".into())).await.unwrap(), None, "it never died");
    assert_eq!(dead::data(&mut conn, &Named::Seq(99)).await.unwrap(), None);
    run(&mut conn, "UPDATE tidings.event SET headers = '[1]' WHERE id = 'c'").await;
    assert!(dead::show(&mut conn, &Named::Id("c".into())).await.unwrap().unwrap().headers.is_empty());
}

#[tokio::test]
async fn what_is_redriven_is_ready_as_on_its_first_day() {
    let (_database, mut conn) = database().await;
    with_dead(&mut conn).await;
    let which = Which::all().event_type("orders.created");
    assert_eq!(ids(&dead::redrive(&mut conn, &which, &ana()).await.unwrap()), ["a-1", "b-1"]);
    assert_eq!(dead::redrive(&mut conn, &which, &ana()).await.unwrap(), Done::default(), "it is dead no more");
    let anew = "SELECT count(*) AS n FROM tidings.pending WHERE state = 'ready' AND attempts = 0 AND last_error IS NULL
                   AND next_attempt_at <= now()";
    assert_eq!(number(&mut conn, anew).await, 2);
    assert_eq!(state(&mut conn, "c").await, "dead pending");
    let resolution = dead::show(&mut conn, &Named::Id("a-1".into())).await.unwrap().unwrap().letter.resolution.unwrap();
    assert_eq!((resolution.how.as_str(), resolution.by.as_deref()), ("redriven", Some("ana")));
    assert_eq!(resolution.why.as_deref(), Some("limit raised"));
    dies(&mut conn, "a-1").await;
    dead::redrive(&mut conn, &Which::all().event_id("a-1"), &By::name("bo")).await.unwrap();
    let letter = dead::show(&mut conn, &Named::Id("a-1".into())).await.unwrap().unwrap().letter;
    assert_eq!((letter.redriven, letter.resolution.unwrap().by.as_deref()), (2, Some("bo")));
}

#[tokio::test]
async fn what_is_discarded_leaves_a_tombstone_for_its_version_and_a_record() {
    let (_database, mut conn) = database().await;
    with_dead(&mut conn).await;
    let one = Which::all().event_id("a-1").event_id("c").event_id("b-2");
    assert_eq!(ids(&dead::discard(&mut conn, &one, &ana()).await.unwrap()), ["a-1", "c"], "b-2 is not dead");
    assert_eq!(dead::discard(&mut conn, &one, &By::name("bo")).await.unwrap(), Done::default());
    assert_eq!(state(&mut conn, "a-1").await, "tombstone pending");
    assert_eq!(state(&mut conn, "c").await, "discarded", "no consumer waits for a version of it");
    assert_eq!(state(&mut conn, "b-1").await, "dead pending");
    let record = words(
        &mut conn,
        "SELECT concat_ws(' ', event_id, how, by, reason) AS words FROM tidings.discarded
          WHERE at > now() - interval '5 minutes' ORDER BY seq",
    );
    assert_eq!(record.await, ["a-1 discarded ana limit raised", "c discarded ana limit raised"]);
    assert_eq!(number(&mut conn, "SELECT count(*) AS n FROM tidings.event").await, 5, "the events themselves stay");
    // Its tombstone is refused, as by a broker without rights to the subject: tried anew it is still a tombstone.
    dies(&mut conn, "a-1").await;
    assert_eq!(ids(&dead::redrive(&mut conn, &one, &ana()).await.unwrap()), ["a-1"]);
    assert_eq!(state(&mut conn, "a-1").await, "tombstone pending");
}

#[tokio::test]
async fn what_the_broker_had_after_all_is_neither_redriven_nor_discarded() {
    let (_database, mut conn) = database().await;
    with_dead(&mut conn).await;
    run(
        &mut conn,
        "INSERT INTO tidings.confirmation (seq, partition, incarnation, stream_seq, epoch)
         SELECT seq, partition, 1, 7, 1 FROM tidings.event WHERE id IN ('a-1', 'b-1');
         DELETE FROM tidings.pending p USING tidings.event e WHERE e.seq = p.seq AND e.id IN ('a-1', 'b-1')",
    )
    .await;
    let done = dead::discard(&mut conn, &Which::all().aggregate("order", "a"), &ana()).await.unwrap();
    assert_eq!((done.events.len(), done.stored_after_all[0].event_id.as_str()), (0, "a-1"));
    let done = dead::redrive(&mut conn, &Which::all(), &ana()).await.unwrap();
    assert_eq!((ids(&done), done.stored_after_all[0].event_id.as_str()), (vec!["c"], "b-1"));
    assert_eq!(state(&mut conn, "a-1").await, "confirmed");
    assert_eq!(number(&mut conn, "SELECT count(*) AS n FROM tidings.discarded").await, 0);
    assert!(dead::list(&mut conn, &Which::all()).await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_operators_at_once_decide_each_event_once() {
    let (database, mut conn) = database().await;
    run(
        &mut conn,
        "SELECT tidings.append('t', 'x', id => 'e-' || g, aggregate_type => 'order', aggregate_id => 'o-' || g)
           FROM generate_series(1, 500) g;
         UPDATE tidings.pending SET state = 'dead';
         INSERT INTO tidings.dead_letter (seq, partition, event_id, reason, attempts, epoch)
         SELECT seq, partition, id, 'too large', 1, 1 FROM tidings.event",
    )
    .await;
    let (mut one, mut two) = (connect(&database).await, connect(&database).await);
    let redriving = tokio::spawn(async move {
        let mut events = 0;
        for _ in 0..25 {
            events += dead::redrive(&mut one, &Which::all().limit(20), &By::name("one")).await.unwrap().events.len();
        }
        events
    });
    let discarding = tokio::spawn(async move {
        let mut events = 0;
        for _ in 0..25 {
            events += dead::discard(&mut two, &Which::all().limit(20), &By::name("two")).await.unwrap().events.len();
        }
        events
    });
    let (redriven, discarded) = (redriving.await.unwrap(), discarding.await.unwrap());
    for (count, query) in [
        (
            redriven,
            "SELECT count(*) AS n FROM tidings.pending p JOIN tidings.dead_letter d USING (seq) WHERE p.state = 'ready' AND d.resolved_by = 'one'",
        ),
        (
            discarded,
            "SELECT count(*) AS n FROM tidings.pending p JOIN tidings.dead_letter d USING (seq) JOIN tidings.discarded USING (seq) WHERE p.state = 'tombstone' AND d.resolved_by = 'two'",
        ),
    ] {
        assert_eq!(number(&mut conn, query).await, count as i64, "{query}");
    }
    let left = number(&mut conn, "SELECT count(*) AS n FROM tidings.pending WHERE state = 'dead'").await;
    assert_eq!(redriven as i64 + discarded as i64 + left, 500);
}
