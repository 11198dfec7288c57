//! The schema `tidings` and its ledger.
//!
//! All pending migrations run in one transaction, under an advisory lock of that transaction: concurrent starts wait for
//! each other, and the losers find nothing to do. The ledger `tidings.migration` is the framework's own, apart from
//! the user's.

use diesel::sql_types::{BigInt, Bool, Integer, Nullable};
use diesel_async::{AsyncConnection, AsyncPgConnection, RunQueryDsl, SimpleAsyncConnection};

use super::database::{Database, Error};
use super::statement::statement;

/// One step of the schema, as SQL that can be read and run by hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Migration {
    /// From 1 upwards, without gaps.
    pub version: i32,
    /// What it brings.
    pub name: &'static str,
    /// The oldest schema version a program may know and still work with a database after this step.
    pub serves_from: i32,
    /// The statements that make the step.
    pub up: &'static str,
    /// The statements that undo it.
    pub down: &'static str,
}

impl Migration {
    /// The statement that records the step in the ledger, for whoever runs [`up`](Self::up) by hand.
    pub fn record(&self) -> String {
        format!(
            "INSERT INTO tidings.migration (version, name, serves_from) VALUES ({}, '{}', {});",
            self.version, self.name, self.serves_from
        )
    }
}

const MIGRATIONS: &[Migration] = &[
    Migration {
        version: 1,
        name: "road",
        serves_from: 1,
        up: include_str!("../../migrations/0001_road/up.sql"),
        down: include_str!("../../migrations/0001_road/down.sql"),
    },
    Migration {
        version: 2,
        name: "relay",
        serves_from: 1,
        up: include_str!("../../migrations/0002_relay/up.sql"),
        down: include_str!("../../migrations/0002_relay/down.sql"),
    },
    Migration {
        version: 3,
        name: "dead",
        serves_from: 1,
        up: include_str!("../../migrations/0003_dead/up.sql"),
        down: include_str!("../../migrations/0003_dead/down.sql"),
    },
];

/// The version of the schema this program knows.
pub const LATEST: i32 = MIGRATIONS[MIGRATIONS.len() - 1].version;

/// All steps, oldest first.
pub fn migrations() -> &'static [Migration] {
    MIGRATIONS
}

/// All steps as one script in one transaction, for a new database: what [`migrate`] would run, to read or to run by
/// hand. On a database that has a step already it fails and changes nothing.
///
/// # Errors
/// [`Error::Schema`] when the number of partitions is not from 1 to 1,024.
pub fn script(partitions: Option<u16>) -> Result<String, Error> {
    let steps: String = MIGRATIONS.iter().map(|m| format!("{}\n{}\n\n", m.up.trim_end(), m.record())).collect();
    let layout = match partitions {
        Some(wanted) => format!("{}\n\n", layout(wanted)?),
        None => String::new(),
    };
    Ok(format!("BEGIN;\nSELECT pg_advisory_xact_lock({LOCK});\n\n{LEDGER}\n{steps}{layout}COMMIT;\n"))
}

/// Brings the schema `tidings` to [`LATEST`]; returns the steps that were applied, none if it was there already.
///
/// Safe under concurrent starts, and callable from any runtime or none: it connects on a thread of its own. Where there is
/// nothing to do, it takes no lock and needs no right but to read the ledger and the setting. A database that is newer than this program is left alone as long as it still serves this version, so that a rolling deploy and
/// its rollback work.
///
/// # Errors
/// [`Error::Schema`] names both versions when the database no longer serves this program, or when
/// [`Database::partitions`] differs from the number the database has.
///
/// ```no_run
/// # async fn example() -> Result<(), tidings::postgres::Error> {
/// use tidings::Database;
///
/// let applied = tidings::migrate(&Database::url("postgres://app:secret@127.0.0.1/shop")).await?;
/// println!("{} steps applied", applied.len());
/// # Ok(())
/// # }
/// ```
pub async fn migrate(database: &Database) -> Result<Vec<&'static Migration>, Error> {
    on_a_thread(database, async |connection, database| up(connection, database).await).await
}

/// Undoes the steps above `target`, newest first; 0 removes everything, events included.
///
/// # Errors
/// [`Error::Schema`] when the database has steps that this program does not know.
pub async fn revert(database: &Database, target: i32) -> Result<Vec<&'static Migration>, Error> {
    on_a_thread(database, async move |connection, _| down(connection, target).await).await
}

async fn on_a_thread<F>(database: &Database, work: F) -> Result<Vec<&'static Migration>, Error>
where
    F: AsyncFnOnce(&mut AsyncPgConnection, &Database) -> Result<Vec<&'static Migration>, Error> + Send + 'static,
{
    let database = database.clone();
    let (done, outcome) = tokio::sync::oneshot::channel();
    let run = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let result = match runtime {
            Ok(runtime) => runtime.block_on(async {
                let mut connection = database.open().await?;
                connection.batch_execute("SET lock_timeout = '60s'; SET statement_timeout = 0").await?;
                work(&mut connection, &database).await
            }),
            Err(error) => Err(Error::Connect(format!("no runtime for the migration: {error}"))),
        };
        let _ = done.send(result);
    };
    std::thread::Builder::new()
        .name("tidings-migrate".into())
        .spawn(run)
        .map_err(|error| Error::Connect(format!("no thread for the migration: {error}")))?;
    outcome.await.unwrap_or(Err(Error::Stopping))
}

async fn up(connection: &mut AsyncPgConnection, database: &Database) -> Result<Vec<&'static Migration>, Error> {
    let found = what_is_there(connection).await?;
    refuse_if_too_old(found)?;
    if found.version >= LATEST {
        refuse_other_partitions(connection, database).await?;
        return Ok(Vec::new());
    }
    connection
        .transaction::<_, Error, _>(async |connection| {
            connection.batch_execute(&format!("SELECT pg_advisory_xact_lock({LOCK})")).await?;
            connection.batch_execute(LEDGER).await?;
            let found = ledger(connection).await?;
            refuse_if_too_old(found)?;
            let pending: Vec<&'static Migration> = MIGRATIONS.iter().filter(|m| m.version > found.version).collect();
            for migration in &pending {
                connection.batch_execute(migration.up).await?;
                connection.batch_execute(&migration.record()).await?;
            }
            match database.partitions {
                Some(wanted) if found.version == 0 => connection.batch_execute(&layout(wanted)?).await?,
                Some(_) | None => refuse_other_partitions(connection, database).await?,
            }
            Ok(pending)
        })
        .await
}

async fn down(connection: &mut AsyncPgConnection, target: i32) -> Result<Vec<&'static Migration>, Error> {
    connection
        .transaction::<_, Error, _>(async |connection| {
            connection.batch_execute(&format!("SELECT pg_advisory_xact_lock({LOCK})")).await?;
            let there: bool = RunQueryDsl::get_result(LedgerExists {}, connection).await?;
            if !there {
                return Ok(Vec::new());
            }
            let found = ledger(connection).await?;
            if found.version > LATEST {
                return Err(Error::Schema(format!(
                    "the schema `tidings` is at version {}, and this program knows only up to {LATEST}: revert it with the program that brought it there",
                    found.version
                )));
            }
            let undone: Vec<&'static Migration> =
                MIGRATIONS.iter().rev().filter(|m| m.version > target && m.version <= found.version).collect();
            for migration in &undone {
                connection.batch_execute(migration.down).await?;
                let row = format!("DELETE FROM tidings.migration WHERE version = {}", migration.version);
                connection.batch_execute(&row).await?;
            }
            if target <= 0 {
                connection.batch_execute("DROP TABLE tidings.migration; DROP SCHEMA tidings").await?;
            }
            Ok(undone)
        })
        .await
}

/// Lays out the partitions of a new database.
fn layout(partitions: u16) -> Result<String, Error> {
    if !(1..=1024).contains(&partitions) {
        return Err(Error::Schema(format!("`Database::partitions` is {partitions}: give a number from 1 to 1024")));
    }
    Ok(format!(
        "UPDATE tidings.setting SET partitions = {partitions};\nDELETE FROM tidings.partition;\n\
         INSERT INTO tidings.partition (id) SELECT generate_series(0, {partitions} - 1);"
    ))
}

/// The number of partitions is the database's: it is laid out once, and whoever says otherwise is refused.
async fn refuse_other_partitions(connection: &mut AsyncPgConnection, database: &Database) -> Result<(), Error> {
    let Some(wanted) = database.partitions else { return Ok(()) };
    let has: i32 = RunQueryDsl::get_result(Partitions {}, connection).await?;
    if has == i32::from(wanted) {
        return Ok(());
    }
    Err(Error::Schema(format!(
        "the database has {has} partitions and `Database::partitions` says {wanted}: the number is fixed once events may exist, so leave the setting out or make it {has}"
    )))
}

/// Whether this program can work with the schema as it is.
///
/// # Errors
/// [`Error::Schema`] says which of the two is too old, or which setting is wrong, and what to do.
pub(crate) async fn check_schema(connection: &mut AsyncPgConnection, database: &Database) -> Result<(), Error> {
    let found = what_is_there(connection).await?;
    refuse_if_too_old(found)?;
    if found.version < LATEST {
        return Err(Error::Schema(format!(
            "the schema `tidings` is at version {} and this program needs {LATEST}: call `tidings::migrate(&database)` before `start`, or run `tidings migrate`",
            found.version
        )));
    }
    refuse_other_partitions(connection, database).await?;
    let cache: i64 = RunQueryDsl::get_result(SequenceCache {}, connection).await?;
    if cache != 1 {
        return Err(Error::Schema(format!(
            "the sequence `tidings.event_seq_seq` has CACHE {cache}, with which two sessions number the events of one aggregate out of their order: run `ALTER SEQUENCE tidings.event_seq_seq CACHE 1` and let every producer reconnect"
        )));
    }
    Ok(())
}

fn refuse_if_too_old(found: Ledger) -> Result<(), Error> {
    if found.serves_from <= LATEST {
        return Ok(());
    }
    Err(Error::Schema(format!(
        "this program knows version {LATEST} of the schema `tidings`, and the database, at version {}, serves programs from version {} on: deploy a newer release",
        found.version, found.serves_from
    )))
}

#[derive(Clone, Copy)]
struct Ledger {
    version: i32,
    serves_from: i32,
}

async fn what_is_there(connection: &mut AsyncPgConnection) -> Result<Ledger, Error> {
    let there: bool = RunQueryDsl::get_result(LedgerExists {}, connection).await?;
    if there { ledger(connection).await } else { Ok(Ledger { version: 0, serves_from: 0 }) }
}

async fn ledger(connection: &mut AsyncPgConnection) -> Result<Ledger, Error> {
    let (version, serves_from): (Option<i32>, Option<i32>) =
        RunQueryDsl::get_result(LedgerState {}, connection).await?;
    Ok(Ledger { version: version.unwrap_or(0), serves_from: serves_from.unwrap_or(0) })
}

statement! {
    struct LedgerState {} -> (Nullable<Integer>, Nullable<Integer>);
    "SELECT max(version), max(serves_from) FROM tidings.migration"
}

statement! {
    struct LedgerExists {} -> Bool;
    "SELECT to_regclass('tidings.migration') IS NOT NULL"
}

statement! {
    struct Partitions {} -> Integer;
    "SELECT partitions FROM tidings.setting"
}

statement! {
    /// Readable by every role, unlike the view `pg_sequences`.
    struct SequenceCache {} -> BigInt;
    "SELECT seqcache FROM pg_catalog.pg_sequence WHERE seqrelid = 'tidings.event_seq_seq'::pg_catalog.regclass"
}

const LEDGER: &str = include_str!("../../migrations/ledger.sql");

/// Any number will do, as long as it is always the same: the bytes of `tidings`.
const LOCK: i64 = 0x0074_6964_696e_6773;
