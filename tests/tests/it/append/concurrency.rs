//! Sixteen writers on twenty aggregates, with everything that a business transaction may do.

use std::collections::BTreeSet;
use std::sync::Arc;

use diesel::sql_types::{BigInt, Nullable, Text};
use diesel_async::{AsyncPgConnection, RunQueryDsl, SimpleAsyncConnection};
use tidings::append::{Error, Outcome};
use tidings::testing::TestDatabase;
use tidings::{Appended, NewEvent, Tx};

use super::{Failed, connect, database, events, head, is_serialization_failure, number};

const WRITERS: u64 = 16;
const AGGREGATES: u64 = 20;
/// Transactions a writer commits or rolls back on purpose.
const ROUNDS: u64 = 12;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_read_committed() {
    sixteen_writers("READ COMMITTED").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_repeatable_read() {
    sixteen_writers("REPEATABLE READ").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_serializable() {
    sixteen_writers("SERIALIZABLE").await;
}

/// How many append calls a transaction makes. With one, no deadlock may surface; with more, the business transactions
/// themselves take locks in any order, and one of them may have to run again.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Calls {
    One,
    Many,
}

async fn sixteen_writers(level: &'static str) {
    let (database, mut conn) = database().await;
    let database = Arc::new(database);
    let mut told = Vec::new();
    for calls in [Calls::One, Calls::Many] {
        let writers = (0..WRITERS).map(|n| {
            let database = Arc::clone(&database);
            tokio::spawn(async move { Writer::new(&database, level, n, calls).await.work().await })
        });
        for writer in futures_util::future::join_all(writers).await {
            told.extend(writer.unwrap());
        }
    }
    holds(&mut conn, &told).await;
}

/// What the table must look like after what the writers were told.
async fn holds(conn: &mut AsyncPgConnection, told: &[(String, Appended)]) {
    let rows: Vec<Row> = diesel::sql_query(
        "SELECT id, type, seq, aggregate_id, version, previous, partition::bigint AS partition FROM tidings.event ORDER BY aggregate_id, version, seq",
    )
    .load(conn)
    .await
    .unwrap();
    assert_eq!(events(conn).await, rows.len() as i64);
    assert!(rows.len() > 100, "there was something to see: {}", rows.len());

    let ordered: Vec<&Row> = rows.iter().filter(|row| row.version.is_some()).collect();
    for run in ordered.chunk_by(|a, b| a.aggregate_id == b.aggregate_id) {
        let (mut version, mut seq) = (None, 0);
        for row in run {
            assert_eq!(row.previous, version, "the version before: {row:?}");
            assert!(row.seq > seq, "seq follows the version: {row:?}");
            assert_eq!(row.partition, run[0].partition, "one partition an aggregate: {row:?}");
            if row.r#type != EXPLICIT {
                assert_eq!(row.version, Some(version.unwrap_or(0) + 1), "no hole: {row:?}");
            }
            (version, seq) = (row.version, row.seq);
        }
        assert_eq!(Some(head(conn, run[0].aggregate_id.as_deref().unwrap()).await), version, "the head is the last");
    }
    let heads = "SELECT count(*) AS n FROM tidings.aggregate a WHERE head_version > 0 AND NOT EXISTS
                   (SELECT FROM tidings.event e WHERE e.aggregate_type = a.type AND e.aggregate_id = a.id AND e.version = a.head_version)";
    assert_eq!(number(conn, heads).await, 0, "no head without its event");

    let committed: BTreeSet<&str> = told.iter().map(|(id, _)| id.as_str()).collect();
    let there: BTreeSet<&str> = rows.iter().map(|row| row.id.as_str()).collect();
    assert_eq!(there, committed, "what is there is what was committed");
    for row in &rows {
        let mut new = 0;
        for (_, appended) in told.iter().filter(|(id, _)| *id == row.id) {
            let version = |v: Option<tidings::Version>| v.map(|v| v.0);
            assert_eq!(appended.seq, row.seq, "{row:?}");
            assert_eq!((version(appended.version), version(appended.previous)), (row.version, row.previous), "{row:?}");
            new += u32::from(appended.outcome == Outcome::Appended);
        }
        assert_eq!(new, 1, "new exactly once, however often it was said: {row:?}");
    }
}

#[derive(diesel::QueryableByName, Debug)]
struct Row {
    #[diesel(sql_type = Text)]
    id: String,
    #[diesel(sql_type = Text)]
    r#type: String,
    #[diesel(sql_type = BigInt)]
    seq: i64,
    #[diesel(sql_type = Nullable<Text>)]
    aggregate_id: Option<String>,
    #[diesel(sql_type = Nullable<BigInt>)]
    version: Option<i64>,
    #[diesel(sql_type = Nullable<BigInt>)]
    previous: Option<i64>,
    #[diesel(sql_type = BigInt)]
    partition: i64,
}

/// The type of events with a version of their own choice, which may leave a gap.
const EXPLICIT: &str = "job.jumped";

struct Writer {
    conn: AsyncPgConnection,
    name: String,
    dice: u64,
    said: u64,
    calls: Calls,
}

impl Writer {
    async fn new(database: &TestDatabase, level: &str, n: u64, calls: Calls) -> Writer {
        let mut conn = connect(database).await;
        let settings = format!(
            "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL {level}; SET deadlock_timeout = '50ms'"
        );
        conn.batch_execute(&settings).await.unwrap();
        let kind = if calls == Calls::One { "one" } else { "many" };
        Writer { conn, name: format!("{kind}-{n}"), dice: n * 7_919 + 17, said: 0, calls }
    }

    /// Some transactions, each until it has gone through; returns what the committed ones were told.
    async fn work(mut self) -> Vec<(String, Appended)> {
        let mut told = Vec::new();
        for _ in 0..ROUNDS {
            let script = self.script();
            loop {
                match tidings::transaction(&mut self.conn, async |tx| script.play(tx).await).await {
                    Ok(rows) => break told.extend(rows),
                    Err(Failed::OnPurpose) => break,
                    Err(Failed::Append(Error::VersionConflict(_))) if script.may_conflict() => break,
                    Err(error) if is_serialization_failure(&error) => {}
                    Err(error) if self.calls == Calls::Many && error.to_string().contains("deadlock") => {}
                    Err(error) => panic!("{}: {error}", self.name),
                }
            }
        }
        told
    }

    fn roll(&mut self, sides: u64) -> u64 {
        self.dice = self.dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.dice >> 33) % sides
    }

    fn script(&mut self) -> Script {
        let calls = if self.calls == Calls::One { 1 } else { 1 + self.roll(3) };
        let aborted = (self.roll(3) == 0).then(|| self.call());
        let calls = (0..calls).map(|_| (self.call(), self.roll(3) == 0)).collect();
        Script { aborted, calls, late: self.roll(4) == 0, roll_back: self.roll(6) == 0 }
    }

    fn call(&mut self) -> Vec<NewEvent> {
        let events = if self.roll(2) == 0 { 1 } else { 1 + self.roll(5) };
        (0..events).map(|_| self.event()).collect()
    }

    fn event(&mut self) -> NewEvent {
        self.said += 1;
        let id = format!("{}-{}", self.name, self.said);
        let job = format!("job-{}", self.roll(AGGREGATES));
        match self.roll(10) {
            0..5 => NewEvent::raw("job.progressed", "{}").id(id).aggregate("job", job),
            5 => NewEvent::raw("job.noticed", "{}").id(id),
            // It grows with the writer's progress, so it is above the head about as often as not.
            6 => {
                let version = (1_000 * self.said + self.roll(2_000)) as i64;
                NewEvent::raw(EXPLICIT, "{}").id(id).aggregate("job", job).version(version)
            }
            // Ids that all writers share; the same id is always the same event.
            7 | 8 => NewEvent::raw("job.noticed", "{}").id(format!("shared-{}", self.roll(60))),
            _ => {
                let n = self.roll(60);
                let job = format!("job-{}", n % AGGREGATES);
                NewEvent::raw("job.progressed", "{}").id(format!("shared-job-{n}")).aggregate("job", job)
            }
        }
    }
}

/// What one transaction does, the same at each try.
struct Script {
    /// A call under a savepoint that is rolled back before anything else.
    aborted: Option<Vec<NewEvent>>,
    /// The calls, and whether each is under a savepoint of its own.
    calls: Vec<(Vec<NewEvent>, bool)>,
    /// Works on for some milliseconds before it commits.
    late: bool,
    roll_back: bool,
}

impl Script {
    async fn play(&self, tx: &mut Tx<'_>) -> Result<Vec<(String, Appended)>, Failed> {
        if let Some(call) = &self.aborted {
            let aborted = tidings::transaction(tx.conn(), async |tx| {
                say(tx, call).await?;
                Err::<(), _>(Failed::OnPurpose)
            });
            match aborted.await {
                Err(Failed::OnPurpose | Failed::Append(Error::VersionConflict(_))) => {}
                Err(error) => return Err(error),
                Ok(()) => unreachable!("it always fails"),
            }
        }
        let mut told = Vec::new();
        for (call, savepoint) in &self.calls {
            told.extend(match savepoint {
                true => tidings::transaction(tx.conn(), async |tx| say(tx, call).await).await?,
                false => say(tx, call).await?,
            });
        }
        if self.late {
            diesel::sql_query("SELECT pg_sleep(0.003)").execute(tx.conn()).await?;
        }
        if self.roll_back { Err(Failed::OnPurpose) } else { Ok(told) }
    }

    fn may_conflict(&self) -> bool {
        self.calls.iter().flat_map(|(call, _)| call).any(|event| format!("{event:?}").contains("Some(Version"))
    }
}

async fn say(tx: &mut Tx<'_>, call: &[NewEvent]) -> Result<Vec<(String, Appended)>, Failed> {
    let rows = match call {
        [one] => vec![tx.append(one.clone()).await?],
        all => tx.append_all(all.to_vec()).await?,
    };
    Ok(call.iter().map(|event| event.event_id().to_owned()).zip(rows).collect())
}
