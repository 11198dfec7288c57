//! What is noticed, and that it is said once when it begins and once when it is over.

mod backlog;
mod flat;
mod gauges;
mod notices;
mod says;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use diesel_async::{AsyncConnection, AsyncPgConnection, RunQueryDsl, SimpleAsyncConnection};
use tidings::protocol::alarm::{Change, Kind};
use tidings::testing::{self, TestDatabase};
use tidings::{Alarm, Alarms, Database, Relay, Running, Tidings};
use tidings_tests::eventually;

/// The alarms of one host, as its callback hears them.
#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Vec<Alarm>>>);

impl Heard {
    fn all(&self) -> Vec<(Kind, Option<i32>, Change)> {
        self.0.lock().unwrap().iter().map(|alarm| (alarm.kind, alarm.partition, alarm.change)).collect()
    }

    fn of(&self, kind: Kind) -> Vec<(Option<i32>, Change)> {
        self.all().into_iter().filter(|(heard, ..)| *heard == kind).map(|(_, place, change)| (place, change)).collect()
    }

    async fn hears(&self, kind: Kind, place: Option<i32>, change: Change) -> Alarm {
        let wanted = |alarm: &&Alarm| (alarm.kind, alarm.partition, alarm.change) == (kind, place, change);
        eventually(&format!("{kind} {place:?} {change:?}"), SOON, async || {
            self.0.lock().unwrap().iter().find(wanted).cloned()
        })
        .await
    }
}

/// A process that only watches.
async fn watch(database: Database, alarms: Alarms) -> (Running, Heard) {
    gauges::record();
    let heard = Heard::default();
    let (told, hearing) = (heard.clone(), Tidings::new(database, testing::jetstream()).alarms(alarms));
    let running = hearing.on_alarm(move |alarm| told.0.lock().unwrap().push(alarm.clone())).start().await.unwrap();
    (running, heard)
}

async fn relay(database: &TestDatabase) -> Running {
    Tidings::new(database.database(), testing::jetstream())
        .source(database.source())
        .relay(Relay::default())
        .start()
        .await
        .unwrap()
}

/// Looks often, and is in no hurry to say anything but what the test is about.
fn patient() -> Alarms {
    Alarms::default().every(Duration::from_millis(100))
}

async fn one_partition() -> TestDatabase {
    let database = testing::empty_database().await.unwrap();
    tidings::migrate(&database.database().partitions(1)).await.unwrap();
    database
}

async fn execute(database: &TestDatabase, sql: &str) {
    AsyncPgConnection::establish(database.url()).await.unwrap().batch_execute(sql).await.unwrap();
}

/// Waits until a query with one column `number` answers this.
async fn becomes(database: &TestDatabase, sql: &str, wanted: i64) {
    let mut conn = AsyncPgConnection::establish(database.url()).await.unwrap();
    eventually(&format!("{wanted} for {sql}"), SOON, async || {
        let found: Number = diesel::sql_query(sql).get_result(&mut conn).await.unwrap();
        (found.number == wanted).then_some(())
    })
    .await;
}

#[derive(diesel::QueryableByName)]
struct Number {
    #[diesel(sql_type = diesel::sql_types::BigInt)]
    number: i64,
}

/// Pending rows with their events, as `tidings.append` would write them, but quickly: `state` from `first` to `last`, all
/// in partition 0 and appended 10 minutes ago.
fn rows(first: i64, last: i64, lane: &str, state: &str) -> String {
    format!(
        "INSERT INTO tidings.event (seq, id, type, schema_version, kind, partition, content_type, data, occurred_at, created_at)
         OVERRIDING SYSTEM VALUE SELECT g, 'e' || g, 't', 1, 'event', 0, 'x', '', now(), now() - interval '10 min'
           FROM generate_series({first}, {last}) g;
         INSERT INTO tidings.pending (partition, seq, lane, id_hash, state)
         SELECT 0, g, {lane}, hashtextextended('e' || g, 0), '{state}' FROM generate_series({first}, {last}) g;"
    )
}

fn letter(seq: i64) -> String {
    format!(
        "INSERT INTO tidings.dead_letter (seq, partition, event_id, reason, attempts, epoch, died_at) VALUES ({seq}, 0, 'e{seq}', 'r', 1, 1, now() - interval '5 min');"
    )
}

const SOON: Duration = Duration::from_secs(60);
