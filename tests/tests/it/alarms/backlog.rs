//! What counts as waiting, and as how old, read from the gauges.

use super::gauges::{near, of};
use super::{execute, letter, one_partition, patient, rows, watch};

#[tokio::test(flavor = "multi_thread")]
async fn what_is_dead_or_due_later_is_neither_counted_nor_aged() {
    let database = one_partition().await;
    let (source, later) = (database.source().to_owned(), "next_attempt_at = now() + interval '1 day'");
    execute(&database, &format!("UPDATE tidings.setting SET source = '{source}'")).await;
    // Lane 1: dead, with one behind it. Lane 2: due tomorrow, with one behind it. Lane 3: due tomorrow, alone.
    for (seq, lane, state) in [(1, 1, "dead"), (2, 1, "ready"), (3, 2, "delayed"), (4, 2, "ready"), (5, 3, "delayed")] {
        execute(&database, &rows(seq, seq, &lane.to_string(), state)).await;
    }
    execute(&database, &format!("{} UPDATE tidings.pending SET {later} WHERE state = 'delayed'", letter(1))).await;
    let (_watching, _) = watch(database.database(), patient()).await;
    near(&source, "tidings_pending", 2.0, 0.0).await;
    near(&source, "tidings_held_lanes", 1.0, 0.0).await;
    near(&source, "tidings_held_seconds", 300.0, 100.0).await;
    near(&source, "tidings_dead_letters", 1.0, 0.0).await;
    assert_eq!(of(&source, "tidings_oldest_pending_seconds"), Some(0.0), "the two that wait are held");
    assert_eq!(of(&source, "tidings_partition_owned"), Some(0.0));
    assert_eq!(of(&source, "tidings_able_nodes"), Some(0.0));

    // Due since a minute: its age counts from there, not from the append.
    let due = "UPDATE tidings.event SET not_before = now() - interval '1 min' WHERE seq = 5;
               UPDATE tidings.pending SET next_attempt_at = now() - interval '1 min' WHERE seq = 5";
    execute(&database, due).await;
    near(&source, "tidings_pending", 3.0, 0.0).await;
    near(&source, "tidings_oldest_pending_seconds", 60.0, 55.0).await;

    // A free one that is older; and one whose times cannot be subtracted, which must not spoil the look.
    execute(
        &database,
        &format!("{} UPDATE tidings.event SET created_at = '-infinity' WHERE seq = 6", rows(6, 7, "g", "retrying")),
    )
    .await;
    near(&source, "tidings_pending", 5.0, 0.0).await;
    execute(&database, "DELETE FROM tidings.pending WHERE seq = 5").await;
    execute(&database, "DELETE FROM tidings.pending WHERE seq = 6").await;
    near(&source, "tidings_oldest_pending_seconds", 600.0, 100.0).await;
    execute(&database, "DELETE FROM tidings.pending").await;
    for gauge in ["tidings_pending", "tidings_oldest_pending_seconds", "tidings_held_lanes", "tidings_held_seconds"] {
        near(&source, gauge, 0.0, 0.0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_oldest_that_could_go_is_found_behind_many_that_cannot() {
    let database = one_partition().await;
    let source = database.source().to_owned();
    execute(&database, &format!("UPDATE tidings.setting SET source = '{source}'")).await;
    // More than one look reads: a dead head with 25,000 behind it, and one free event at the end.
    let all = [rows(1, 1, "1", "dead"), rows(2, 25_001, "1", "ready"), rows(25_002, 25_002, "2", "ready"), letter(1)];
    execute(&database, &all.concat()).await;
    let (_watching, heard) = watch(database.database(), patient().pending(1_000_000)).await;
    near(&source, "tidings_oldest_pending_seconds", 600.0, 100.0).await;
    near(&source, "tidings_pending", 25_001.0, 0.0).await;
    heard.hears(tidings::protocol::alarm::Kind::OldestPending, Some(0), tidings::protocol::alarm::Change::Raised).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_too_much_to_count_is_reckoned() {
    let database = one_partition().await;
    let source = database.source().to_owned();
    execute(&database, &format!("UPDATE tidings.setting SET source = '{source}'; {}", rows(1, 60_000, "g", "ready")))
        .await;
    let (_watching, _) = watch(database.database(), patient()).await;
    near(&source, "tidings_pending", 60_000.0, 100.0).await;
}
