//! Raised and cleared, once each, on the road.

use std::time::Duration;

use tidings::protocol::alarm::{Change, Kind};
use tidings::services::proxy::Proxy;
use tidings::{Alarms, Tidings, testing};

use super::{Heard, SOON, execute, one_partition, patient, relay, watch};

#[tokio::test(flavor = "multi_thread")]
async fn a_producer_says_that_no_relay_runs_anywhere_until_one_does() {
    let database = testing::database().await.unwrap();
    let soon = Duration::from_millis(500);
    let alarms = patient().no_able_node(soon).unowned(soon).oldest_pending(soon);
    let (watching, heard) = watch(database.database(), alarms).await;
    execute(&database, "SELECT tidings.append('t', '{}'::bytea, id => 'waits')").await;
    let lonely = heard.hears(Kind::NoAbleNode, None, Change::Raised).await;
    assert!(lonely.message.contains("no relay reaches the broker"), "{lonely}");
    assert_eq!(lonely.source, "", "no relay has said it yet");
    for partition in 0..4 {
        heard.hears(Kind::Unowned, Some(partition), Change::Raised).await;
    }
    let place = tidings_tests::eventually("the age of the event is too high", SOON, async || {
        heard.of(Kind::OldestPending).first().copied()
    })
    .await
    .0;
    let relaying = relay(&database).await;
    heard.hears(Kind::NoAbleNode, None, Change::Cleared).await;
    heard.hears(Kind::OldestPending, place, Change::Cleared).await;
    for partition in 0..4 {
        let over = heard.hears(Kind::Unowned, Some(partition), Change::Cleared).await;
        assert_eq!(over.source, database.source());
    }
    let mut all = heard.all();
    let many = all.len();
    all.sort_by_key(|(kind, place, change)| (*kind, *place, *change == Change::Cleared));
    all.dedup();
    assert_eq!((many, all.len()), (12, 12), "each once: {all:?}");
    relaying.drain(SOON).await.unwrap();
    watching.drain(SOON).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_and_what_they_hold_are_said_and_are_no_age() {
    let database = one_partition().await;
    let alarms = patient().held(Duration::from_millis(300)).oldest_pending(Duration::from_millis(300));
    let (watching, heard) = watch(database.database(), alarms).await;
    let relaying = relay(&database).await;
    // No subject can be made of the first, and the second waits behind it.
    execute(
        &database,
        "SELECT tidings.append('a b', '{}'::bytea, aggregate_type => 'a', aggregate_id => '1');
         SELECT tidings.append('t', '{}'::bytea, aggregate_type => 'a', aggregate_id => '1')",
    )
    .await;
    let dead = heard.hears(Kind::Dead, None, Change::Raised).await;
    assert_eq!(dead.message, "1 dead letters are not resolved (the limit is 1)");
    let held = heard.hears(Kind::Held, Some(0), Change::Raised).await;
    assert!(held.message.starts_with("1 lanes are held behind a dead event"), "{held}");
    assert_eq!(heard.of(Kind::OldestPending), [], "what is dead or held has no age");
    execute(
        &database,
        "UPDATE tidings.dead_letter SET resolved_at = now(), resolution = 'by hand';
         DELETE FROM tidings.pending WHERE state = 'dead'",
    )
    .await;
    heard.hears(Kind::Held, Some(0), Change::Cleared).await;
    heard.hears(Kind::Dead, None, Change::Cleared).await;
    assert_eq!((heard.of(Kind::Held).len(), heard.of(Kind::Dead).len()), (2, 2));
    relaying.drain(SOON).await.unwrap();
    watching.drain(SOON).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_does_not_answer_is_said_and_clears_nothing() {
    let database = one_partition().await;
    let proxy = Proxy::start(testing::servers().postgres.port()).unwrap();
    let behind = testing::servers().postgres.url_through(&proxy, database.source());
    execute(&database, &super::rows(1, 3, "g", "ready")).await;
    let short = tidings::Database::url(behind).connect_timeout(Duration::from_millis(300));
    let alarms = patient().pending(3).blind(Duration::from_millis(300));
    let (watching, heard) = watch(short, alarms).await;
    heard.hears(Kind::Pending, None, Change::Raised).await;
    proxy.refuse(true);
    proxy.cut();
    heard.hears(Kind::Blind, None, Change::Raised).await;
    proxy.refuse(false);
    heard.hears(Kind::Blind, None, Change::Cleared).await;
    assert_eq!(heard.of(Kind::Pending), [(None, Change::Raised)], "it is not over because nobody looked");
    execute(&database, "DELETE FROM tidings.pending").await;
    heard.hears(Kind::Pending, None, Change::Cleared).await;
    watching.drain(SOON).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_callback_that_panics_is_called_again_and_stops_nothing() {
    let database = one_partition().await;
    execute(&database, &super::rows(1, 3, "g", "ready")).await;
    let heard = Heard::default();
    let told = heard.clone();
    let watching = Tidings::new(database.database(), testing::jetstream())
        .on_alarm(move |alarm| {
            told.0.lock().unwrap().push(alarm.clone());
            panic!("as the test asked");
        })
        .alarms(patient().pending(3))
        .start()
        .await
        .unwrap();
    heard.hears(Kind::Pending, None, Change::Raised).await;
    execute(&database, "DELETE FROM tidings.pending").await;
    heard.hears(Kind::Pending, None, Change::Cleared).await;
    watching.drain(SOON).await.unwrap();
}

#[tokio::test]
async fn limits_that_cannot_work_are_refused_at_the_start() {
    let zero = Duration::ZERO;
    for (alarms, told) in [
        (Alarms::default().every(zero), "`Alarms::every is under 100 ms"),
        (Alarms::default().oldest_pending(zero), "`Alarms::oldest_pending is 0"),
        (Alarms::default().pending(0), "`Alarms::pending is 0"),
        (Alarms::default().dead(1_001), "`Alarms::dead is not from 1 to 1,000"),
        (Alarms::default().report(Duration::from_secs(1)), "`Alarms::report is under `every`, which is 10s"),
    ] {
        let nowhere = tidings::Database::url("postgres://app@127.0.0.1:1/none");
        let started = Tidings::new(nowhere, tidings::JetStream::url("nats://127.0.0.1:1")).alarms(alarms).start().await;
        let error = started.map(drop).expect_err(told).to_string();
        assert!(error.starts_with(told), "{error}");
    }
}
