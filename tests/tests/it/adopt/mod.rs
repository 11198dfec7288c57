//! Stores that went back in time: what the relay makes of it by itself, and what `tidings adopt` and `tidings republish` do.

mod beside;
mod failover;
mod foreign;
mod lost;
mod republish;
mod restored;

use std::collections::HashMap;
use std::process::{Command, Output, Stdio};

use diesel::sql_types::{Array, BigInt, Bool, Nullable, Text};
use diesel_async::RunQueryDsl;

use crate::relay::place::Place;

/// The program with these arguments; the URLs stand in the environment, as they should.
fn tidings(place: &Place, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_services_role"))
        .arg("cli")
        .args(arguments)
        .stdin(Stdio::null())
        .env("TIDINGS_DATABASE_URL", &place.database)
        .env("TIDINGS_NATS_URL", &place.nats)
        .env("USER", "ana")
        .output()
        .expect("it runs")
}

fn said(output: Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// What it said, and what it complained of.
fn complained(output: Output, code: i32) -> (String, String) {
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout).into_owned(), String::from_utf8_lossy(&output.stderr).into_owned());
    assert_eq!(output.status.code(), Some(code), "{out}{err}");
    (out, err)
}

/// The whole of a store, with owners and modes.
fn copy(from: &std::path::Path, to: &std::path::Path) {
    assert!(Command::new("cp").arg("-a").args([from, to]).status().unwrap().success());
}

/// Everything that could have been changed, as one text.
async fn tables(place: &Place) -> String {
    let mut all = Vec::new();
    for table in ["event", "pending", "aggregate", "confirmation", "dead_letter", "discarded"] {
        let query = format!("SELECT x::text AS words FROM tidings.{table} x ORDER BY 1");
        all.push(format!("{table}\n{}", place.words(&query).await.join("\n")));
    }
    all.extend(place.words("SELECT epoch::text AS words FROM tidings.partition ORDER BY id").await);
    all.join("\n")
}

#[derive(diesel::QueryableByName)]
struct Told {
    #[diesel(sql_type = Text)]
    id: String,
    #[diesel(sql_type = Nullable<Text>)]
    aggregate: Option<String>,
    #[diesel(sql_type = Nullable<BigInt>)]
    version: Option<i64>,
    #[diesel(sql_type = Nullable<BigInt>)]
    previous: Option<i64>,
    #[diesel(sql_type = Bool)]
    discarded: bool,
    #[diesel(sql_type = Array<BigInt>)]
    evidence: Vec<i64>,
}

/// Holds the streams against the tables: every event is stored, under the version and the one before that its row has; the
/// first occurrences of an aggregate are a chain, in order; and the evidence of each says truly where it stands.
async fn is_whole(place: &Place) {
    let events: Vec<Told> = diesel::sql_query(
        "SELECT e.id, e.aggregate_type || ' ' || e.aggregate_id AS aggregate, e.version, e.previous,
                EXISTS (SELECT FROM tidings.discarded d WHERE d.seq = e.seq) AS discarded,
                ARRAY(SELECT c.stream_seq FROM tidings.confirmation c WHERE c.seq = e.seq ORDER BY c.stream_seq) AS evidence
           FROM tidings.event e
          WHERE e.version IS NOT NULL OR NOT EXISTS (SELECT FROM tidings.discarded d WHERE d.seq = e.seq)",
    )
    .get_results(&mut place.connection().await)
    .await
    .unwrap();
    let events: HashMap<&str, &Told> = events.iter().map(|event| (event.id.as_str(), event)).collect();
    let mut places: HashMap<&str, Vec<i64>> = HashMap::new();
    let mut heads: HashMap<&str, i64> = HashMap::new();
    let stored = place.stored().await;
    for message in &stored {
        let event = events.get(message.header("ce-id")).unwrap_or_else(|| panic!("{message:?} is no event"));
        let id = event.id.as_str();
        assert_eq!(message.header("ce-tombstone") == "true", event.discarded, "{id}");
        assert_eq!(message.header("ce-aggregateversion").parse().ok(), event.version, "{id}");
        assert_eq!(message.header("ce-previousversion").parse().ok(), event.previous, "{id}");
        let places = places.entry(id).or_default();
        places.push(message.seq.cast_signed());
        if let (Some(aggregate), Some(version), 1) = (&event.aggregate, event.version, places.len()) {
            let before = heads.insert(aggregate, version).unwrap_or(0);
            assert_eq!(event.previous.unwrap_or(0), before, "{id} is version {version} of {aggregate}");
            assert!(version > before, "{id}: version {version} of {aggregate} stands after {before}");
        }
    }
    for (id, event) in &events {
        assert_eq!(places.get(id), Some(&event.evidence), "{id}");
    }
    // Within a lane the order of places is that of versions, so all of it could be published once more.
    let crossed = "SELECT count(*) AS number FROM (
           SELECT version, lag(version) OVER (PARTITION BY aggregate_type, aggregate_id ORDER BY seq) AS before FROM tidings.event
            WHERE version IS NOT NULL) v WHERE version <= before";
    assert_eq!(place.number(crossed).await, 0);
    let heads = "SELECT count(*) AS number FROM tidings.aggregate a WHERE head_version <> (SELECT max(version)
           FROM tidings.event e WHERE e.aggregate_type = a.type AND e.aggregate_id = a.id)";
    assert_eq!(place.number(heads).await, 0);
}

/// Remembers the tables as a backup would.
async fn back_up(place: &Place) {
    place
        .execute(
            "CREATE SCHEMA backup;
             CREATE TABLE backup.seq AS SELECT last_value FROM tidings.event_seq_seq;
             CREATE TABLE backup.aggregate AS TABLE tidings.aggregate;
             CREATE TABLE backup.partition AS TABLE tidings.partition",
        )
        .await;
}

/// Restores it, with the epoch and the numbers of that time. What is lost is kept aside, to compare with.
async fn restore(place: &Place) {
    place
        .execute(
            "CREATE TABLE backup.lost AS SELECT e.* FROM tidings.event e, backup.seq s WHERE e.seq > s.last_value;
             DELETE FROM tidings.confirmation c USING backup.lost l WHERE c.seq = l.seq;
             DELETE FROM tidings.discarded d USING backup.lost l WHERE d.seq = l.seq;
             DELETE FROM tidings.pending q USING backup.lost l WHERE q.seq = l.seq;
             DELETE FROM tidings.event e USING backup.lost l WHERE e.seq = l.seq;
             TRUNCATE tidings.aggregate;
             INSERT INTO tidings.aggregate TABLE backup.aggregate;
             UPDATE tidings.partition p SET owner = NULL, lease_until = now(), lease_ttl = NULL, epoch = b.epoch,
                    anchor_incarnation = b.anchor_incarnation, anchor_stream_seq = b.anchor_stream_seq,
                    anchor_id_hash = b.anchor_id_hash
               FROM backup.partition b WHERE b.id = p.id;
             SELECT setval('tidings.event_seq_seq', last_value) FROM backup.seq",
        )
        .await;
}
