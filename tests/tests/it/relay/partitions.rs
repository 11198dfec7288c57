//! `tidings partitions list` and `tidings partitions set`.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use diesel_async::{AsyncConnection, AsyncPgConnection, SimpleAsyncConnection};
use serde::{Deserialize, Serialize};
use tidings::operate::{PartitionsError, SetPartitions};
use tidings::{Consumer, Database, Event, Handle, HandlerError, JetStream, Received, Relay, Tidings, Tx};
use tidings_tests::eventually;

use super::SOON;
use super::node::{Node, tidings};
use super::place::{Place, append};

const PENDING: &str = "SELECT count(*) AS number FROM tidings.pending";
const PARTITIONS: &str = "SELECT partitions::bigint AS number FROM tidings.setting";
/// Aggregates, and events that are pending, elsewhere than where they belong.
const ASTRAY: &str = "SELECT (SELECT count(*) FROM tidings.aggregate a, tidings.setting s
       WHERE a.partition <> tidings.partition_of(tidings.lane(a.type, a.id, NULL), s.partitions))
     + (SELECT count(*) FROM tidings.pending p JOIN tidings.event e USING (seq), tidings.setting s
         WHERE p.partition <> tidings.partition_of(p.lane, s.partitions) OR e.partition <> p.partition) AS number";

/// Every event stands in a stream once, each stream has its versions in order, and no aggregate went to another stream
/// more often than the number of partitions was changed.
async fn in_order(place: &Place, changes: usize) {
    place.becomes(PENDING, 0).await;
    let stored = place.stored().await;
    let events = place.number("SELECT count(*) AS number FROM tidings.event").await;
    assert_eq!(stored.len(), usize::try_from(events).unwrap(), "one copy of each");
    let mut streams: HashMap<&str, Vec<(i64, i32)>> = HashMap::new();
    for message in &stored {
        let version = message.header("ce-aggregateversion").parse().unwrap();
        let versions = streams.entry(message.header("ce-aggregateid")).or_default();
        let before = versions.iter().rfind(|(_, partition)| *partition == message.partition);
        assert!(before.is_none_or(|(before, _)| *before < version), "{version} stands after {before:?}");
        versions.push((version, message.partition));
    }
    for (aggregate, mut versions) in streams {
        versions.sort_unstable();
        assert!((1..).zip(&versions).all(|(wanted, (version, _))| wanted == *version), "{aggregate}: {versions:?}");
        let moved = versions.windows(2).filter(|two| two[0].1 != two[1].1).count();
        assert!(moved <= changes, "{aggregate} moved {moved} times: {versions:?}");
    }
}

async fn numbers_of_streams(place: &Place) -> Vec<(String, String)> {
    let streams = place.streams(&place.jetstream().await).await;
    let said = |info: &async_nats::jetstream::stream::Info| {
        let metadata = &info.config.metadata;
        (metadata["tidings-partition"].clone(), metadata["tidings-partitions"].clone())
    };
    let mut numbers: Vec<_> = streams.iter().map(said).collect();
    numbers.sort();
    numbers
}

#[tokio::test(flavor = "multi_thread")]
async fn more_and_then_fewer_while_events_are_appended_and_relayed() {
    let place = Place::shared(2).await;
    let _first = Node::start(&place, &[]).await;
    let _second = Node::start(&place, &[]).await;
    let (enough, mut is_enough) = tokio::sync::oneshot::channel::<()>();
    let busy = place.clone();
    let appending = tokio::spawn(async move {
        let mut connection = busy.connection().await;
        let (mut round, mut longest) = (0, Duration::ZERO);
        while is_enough.try_recv().is_err() {
            let began = Instant::now();
            append(&mut connection, &format!("r{round}-"), 20, 20).await;
            longest = longest.max(began.elapsed());
            round += 1;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        longest
    });
    eventually("something is published", SOON, async || (place.stored().await.len() > 100).then_some(())).await;
    let said = tidings(&place, &["partitions", "set", "5"], 0).await;
    assert!(said.starts_with("5 partitions instead of 2: ") && said.contains("aggregates"), "{said}");
    assert_eq!(place.number(ASTRAY).await, 0);
    let all_said = |number: &'static str, streams: usize| {
        let place = place.clone();
        async move {
            eventually("the streams say it", SOON, async || {
                let numbers = numbers_of_streams(&place).await;
                (numbers.iter().filter(|(_, said)| said == number).count() == streams).then_some(())
            })
            .await;
        }
    };
    all_said("5", 5).await;
    let listed = tidings(&place, &["partitions", "list"], 0).await;
    assert_eq!(listed.lines().filter(|line| line.contains("until") && line.contains("process")).count(), 5, "{listed}");
    let said = tidings(&place, &["partitions", "set", "3"], 0).await;
    assert!(said.starts_with("3 partitions instead of 5: "), "{said}");
    all_said("3", 3).await;
    let _ = enough.send(());
    let longest = appending.await.unwrap();
    in_order(&place, 2).await;
    assert!(longest < Duration::from_secs(10), "an append waited for {longest:?}");
    let retired = "SELECT count(*) AS number FROM tidings.partition WHERE retired_at IS NOT NULL AND owner IS NULL";
    place.becomes(retired, 2).await;
    let listed = tidings(&place, &["partitions", "list"], 0).await;
    assert_eq!(listed.lines().filter(|line| line.contains("retired")).count(), 2, "{listed}");
    assert!(tidings(&place, &["partitions", "set", "3"], 0).await.contains("nothing to do"));
}

#[tokio::test(flavor = "multi_thread")]
async fn while_something_is_on_its_way_nothing_changes_and_appends_go_on() {
    let place = Place::shared(4).await;
    place.append("a", 12, 6).await;
    let said = tidings(&place, &["partitions", "set", "8", "--within", "900ms", "--hold", "200ms"], 1).await;
    assert!(
        said.contains("still on their way") && said.contains("in partition ") && said.contains("Nothing was changed"),
        "{said}"
    );
    place.append("b", 12, 6).await;
    assert_eq!(place.number(PARTITIONS).await, 4);
    assert_eq!(place.number("SELECT count(*) AS number FROM tidings.partition").await, 4);
    assert_eq!(place.number(ASTRAY).await, 0);
    // A transaction that has appended, and takes its time.
    let mut slow = place.connection().await;
    place.execute("DELETE FROM tidings.pending").await;
    slow.batch_execute("BEGIN; SELECT tidings.append('relay.tested', 'x')").await.unwrap();
    let refused = SetPartitions::to(8).within(Duration::from_secs(1)).run(&Database::url(&place.database)).await;
    assert!(matches!(refused, Err(PartitionsError::Locked)), "{refused:?}");
    place.append("c", 12, 6).await;
    assert_eq!(place.number(PARTITIONS).await, 4);
}

/// Its session is ended while appends wait.
#[tokio::test(flavor = "multi_thread")]
async fn one_that_dies_half_way_leaves_nothing_behind() {
    let place = Place::shared(4).await;
    place.append("a", 12, 6).await;
    let database = Database::url(&place.database);
    let setting = tokio::spawn(async move { SetPartitions::to(8).hold(SOON).run(&database).await });
    let closed = "SELECT count(*) AS number FROM pg_locks WHERE mode = 'ShareRowExclusiveLock' AND granted
                   AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
                   AND relation IN ('tidings.aggregate'::regclass, 'tidings.event'::regclass)";
    place.becomes(closed, 2).await;
    let waiting = {
        let place = place.clone();
        tokio::spawn(async move { place.append("b", 12, 6).await })
    };
    place
        .becomes(
            "SELECT count(*) AS number FROM pg_locks WHERE NOT granted AND mode = 'RowExclusiveLock'
                    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
            1,
        )
        .await;
    place
        .execute(
            "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE mode = 'ShareRowExclusiveLock' AND granted
                AND relation = 'tidings.aggregate'::regclass AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
        )
        .await;
    assert!(matches!(setting.await.unwrap(), Err(PartitionsError::Database(_))));
    waiting.await.unwrap();
    assert_eq!((place.number(PARTITIONS).await, place.number(ASTRAY).await), (4, 0));
    let _node = Node::start(&place, &[]).await;
    place.settles().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_held_moves_along_and_keeps_its_order() {
    let place = Place::shared(2).await;
    let _node = Node::start(&place, &[]).await;
    place.append("a", 80, 40).await;
    place.becomes(PENDING, 0).await;
    // Of every aggregate the first two are published, the third is dead or delayed, and two stand behind it.
    let mut connection = place.connection().await;
    connection.batch_execute("BEGIN").await.unwrap();
    append(&mut connection, "b", 120, 40).await;
    connection
        .batch_execute(
            "UPDATE tidings.pending p SET state = CASE WHEN hashtext(e.aggregate_id) % 2 = 0 THEN 'dead' ELSE 'delayed' END::tidings.pending_state \
               FROM tidings.event e WHERE e.seq = p.seq AND e.version = 3; COMMIT",
        )
        .await
        .unwrap();
    let said = tidings(&place, &["partitions", "set", "7"], 0).await;
    assert!(said.contains("held events moved"), "{said}");
    assert_eq!(place.number(ASTRAY).await, 0);
    assert_eq!(place.number(PENDING).await, 120);
    place
        .execute(
            "UPDATE tidings.pending SET state = 'ready', next_attempt_at = now() WHERE state IN ('dead', 'delayed')",
        )
        .await;
    in_order(&place, 1).await;
}

/// Its snapshot is from before the change, so that it makes an aggregate by the number that was.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_of_before_appends_to_a_retired_partition_and_is_relayed() {
    let place = Place::shared(8).await;
    let _node = Node::start(&place, &[]).await;
    place.append("a", 40, 20).await;
    let mut old = place.connection().await;
    old.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM tidings.setting").await.unwrap();
    tidings(&place, &["partitions", "set", "1"], 0).await;
    let events_of_new = |ids: &str| {
        format!(
            "SELECT tidings.append('relay.tested', 'x', id => '{ids}' || g, aggregate_type => 'thing', \
                    aggregate_id => 'new-' || g) FROM generate_series(1, 40) g"
        )
    };
    old.batch_execute(&events_of_new("b")).await.unwrap();
    old.batch_execute("COMMIT").await.unwrap();
    let stray = "SELECT count(*) AS number FROM tidings.aggregate WHERE partition > 0";
    assert!(place.number(stray).await > 0);
    in_order(&place, 1).await;
    // Once more, and they belong to those that there are.
    tidings(&place, &["partitions", "set", "1"], 0).await;
    assert_eq!(place.number(stray).await, 0);
    place.execute(&events_of_new("c")).await;
    in_order(&place, 1).await;
}

#[derive(Event, Serialize, Deserialize)]
#[event(type = "things.moved", aggregate = "thing", key = thing)]
struct Moved {
    thing: String,
}

#[derive(Consumer)]
#[consumer(name = "mover", source = "test.moves", events(Moved))]
struct Mover;

impl Handle<Moved> for Mover {
    async fn handle(&self, _: Received<Moved>, tx: &mut Tx<'_>) -> Result<(), HandlerError> {
        let count = diesel::sql_query("UPDATE moves SET moves = moves + 1");
        diesel_async::RunQueryDsl::execute(count, tx.conn()).await?;
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn consumers_find_the_streams_that_are_new() {
    let place = Place { source: "test.moves".to_owned(), ..Place::shared(1).await };
    place.execute("CREATE TABLE moves (moves bigint NOT NULL); INSERT INTO moves VALUES (0)").await;
    let running = Tidings::new(Database::url(&place.database), JetStream::url(&place.nats))
        .source(&place.source)
        .relay(Relay::default())
        .consumer(Mover)
        .start()
        .await
        .unwrap();
    let mut connection = AsyncPgConnection::establish(&place.database).await.unwrap();
    let say = async |connection: &mut AsyncPgConnection| {
        tidings::transaction(connection, async |tx| {
            for thing in 0..20 {
                tx.append(&Moved { thing: thing.to_string() }).await?;
            }
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
        })
        .await
        .unwrap();
    };
    say(&mut connection).await;
    place.becomes("SELECT moves AS number FROM moves", 20).await;
    SetPartitions::to(4).run(&Database::url(&place.database)).await.unwrap();
    say(&mut connection).await;
    place.becomes("SELECT moves AS number FROM moves", 40).await;
    assert!(place.number("SELECT count(DISTINCT partition) AS number FROM tidings.confirmation").await > 1);
    running.drain(Duration::from_secs(10)).await.unwrap();
}
