//! What goes on beside an adopt: appends to the same aggregates, and the end of its process.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use diesel_async::SimpleAsyncConnection;
use tidings_tests::eventually;

use super::{back_up, is_whole, restore, said, tables, tidings};
use crate::relay::SOON;
use crate::relay::node::Node;
use crate::relay::place::Place;

const PENDING: &str = "SELECT count(*) AS number FROM tidings.pending";

/// A stream with 3,000 messages that the database has lost.
async fn restored(place: &Place) {
    let node = Node::start(place, &[]).await;
    place.append("a", 200, 20).await;
    place.settles().await;
    back_up(place).await;
    place.append("b", 3_000, 20).await;
    place.becomes(PENDING, 0).await;
    drop(node);
    restore(place).await;
    place.append("c", 200, 20).await;
}

/// Appends singly and in batches, in an order of its own, until it is told to stop; how often it did.
async fn appends(place: Place, writer: u32, stop: Arc<AtomicBool>) -> u32 {
    let mut connection = place.connection().await;
    let mut round = 0;
    while !stop.load(Ordering::SeqCst) {
        round += 1;
        let single = format!(
            "SELECT tidings.append('relay.tested', 'x', id => 's{writer}-{round}', aggregate_type => 'thing', aggregate_id => 'thing-{}')",
            (round * 7 + writer) % 20
        );
        connection.batch_execute(&single).await.unwrap();
        let batch = format!(
            "SELECT count(*) FROM (SELECT array_agg('m{writer}-{round}-' || g ORDER BY g) AS ids, array_agg('relay.tested'::text) AS types,
                    array_agg('x'::bytea) AS datas, array_agg('thing'::text) AS at, array_agg('thing-' || (19 - g) ORDER BY g) AS ai,
                    array_agg(NULL::bigint) AS nulls, array_agg(1) AS ones, array_agg(NULL::text) AS texts,
                    array_agg('text/plain'::text) AS contents, array_agg(NULL::jsonb) AS headers, array_agg(NULL::timestamptz) AS times
                    FROM generate_series(0, 19) g) x,
                    LATERAL tidings.append_batch(ids, types, datas, at, ai, nulls, ones, texts, contents, headers, texts, texts, texts, texts, times, times)"
        );
        connection.batch_execute(&batch).await.unwrap();
    }
    round
}

#[tokio::test(flavor = "multi_thread")]
async fn appends_to_the_same_aggregates_go_on_and_none_is_ended() {
    let place = Place::shared(1).await;
    restored(&place).await;
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> =
        (0..3).map(|writer| tokio::spawn(appends(place.clone(), writer, Arc::clone(&stop)))).collect();
    place.becomes("SELECT count(DISTINCT substr(id, 1, 2)) AS number FROM tidings.event WHERE id LIKE 'm%'", 3).await;
    let adopting = {
        let place = place.clone();
        tokio::task::spawn_blocking(move || said(tidings(&place, &["adopt", "--yes"])))
    };
    let told = adopting.await.unwrap();
    assert!(told.contains("3000 that are not, 0 that are in the way"), "{told}");
    stop.store(true, Ordering::SeqCst);
    for writer in writers {
        assert!(writer.await.unwrap() > 1);
    }
    let _node = Node::start(&place, &[]).await;
    place.becomes(PENDING, 0).await;
    is_whole(&place).await;
}

fn adopting(place: &Place) -> Child {
    Command::new(env!("CARGO_BIN_EXE_services_role"))
        .args(["cli", "adopt", "--yes"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .env("TIDINGS_DATABASE_URL", &place.database)
        .env("TIDINGS_NATS_URL", &place.nats)
        .spawn()
        .expect("it runs")
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_is_killed_in_the_middle_has_done_nothing_and_is_repeated() {
    let place = Place::shared(1).await;
    restored(&place).await;
    let before = tables(&place).await;
    // Events, pending rows and heads are locked or written by then; the evidence is not.
    let mut holder = place.connection().await;
    holder.batch_execute("BEGIN; LOCK TABLE tidings.confirmation IN SHARE MODE").await.unwrap();
    let mut child = adopting(&place);
    let waits = "SELECT count(*) AS number FROM pg_stat_activity
                  WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%INTO tidings.confirmation%'";
    place.becomes(waits, 1).await;
    child.kill().unwrap();
    child.wait().unwrap();
    holder.batch_execute("ROLLBACK").await.unwrap();
    let open = "SELECT count(*) AS number FROM pg_stat_activity WHERE datname = current_database() AND xact_start IS NOT NULL AND pid <> pg_backend_pid()";
    eventually("its transaction is over", SOON, async || (place.number(open).await == 0).then_some(())).await;
    let told =
        |text: String| text.split("\n").filter(|line| line.parse::<i64>().is_err()).collect::<Vec<_>>().join("\n");
    assert_eq!(told(tables(&place).await), told(before), "nothing but the epoch has changed");

    assert!(said(tidings(&place, &["adopt", "--yes"])).contains("3000 that are not"));
    let _node = Node::start(&place, &[]).await;
    place.becomes(PENDING, 0).await;
    is_whole(&place).await;
}
