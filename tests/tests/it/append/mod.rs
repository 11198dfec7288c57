//! Step 1, append: what is written exists exactly when its transaction committed, in the order of its aggregate.

mod bytes;
mod concurrency;
mod interrupted;
mod locks;
mod refused;
mod repeated;
mod sequence;
mod sql;
pub(crate) use sql::role;
mod sync_twin;
mod transactions;

use std::time::Duration;

use diesel::result::Error as DieselError;
use diesel::sql_types::BigInt;
use diesel_async::{
    AnsiTransactionManager, AsyncConnection, AsyncPgConnection, RunQueryDsl, SimpleAsyncConnection, TransactionManager,
};
use tidings::append::{self, Outcome};
use tidings::testing::{self, TestDatabase};
use tidings::{Appended, NewEvent, Tx, Version};
use tidings_tests::eventually;

/// How long anything may take before a test fails; everything is quick when it works.
const LIMIT: Duration = Duration::from_secs(60);

/// What a business transaction of these tests fails with.
#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error(transparent)]
    Append(#[from] append::Error),
    #[error(transparent)]
    Database(#[from] DieselError),
    #[error("rolled back, as the test wants it")]
    OnPurpose,
}

/// A database of the test's own, and a connection to it.
async fn database() -> (TestDatabase, AsyncPgConnection) {
    let database = testing::database().await.unwrap();
    let connection = connect(&database).await;
    (database, connection)
}

async fn connect(database: &TestDatabase) -> AsyncPgConnection {
    AsyncPgConnection::establish(database.url()).await.unwrap()
}

#[derive(diesel::QueryableByName)]
struct Number {
    #[diesel(sql_type = BigInt)]
    n: i64,
}

/// The one number that a query answers with, which it calls `n`.
async fn number(connection: &mut AsyncPgConnection, query: &str) -> i64 {
    let Number { n } = diesel::sql_query(query).get_result(connection).await.unwrap();
    n
}

/// How many events there are, each of which has its pending row.
async fn events(connection: &mut AsyncPgConnection) -> i64 {
    let events = number(connection, "SELECT count(*) AS n FROM tidings.event").await;
    let both = "SELECT count(*) AS n FROM tidings.event e JOIN tidings.pending p ON p.seq = e.seq AND p.partition = e.partition
                 WHERE p.id_hash = hashtextextended(e.id, 0) AND p.lane = tidings.lane(e.aggregate_type, e.aggregate_id, e.id)";
    assert_eq!(number(connection, both).await, events, "an event has its pending row");
    assert_eq!(
        number(connection, "SELECT count(*) AS n FROM tidings.pending").await,
        events,
        "a pending row has its event"
    );
    events
}

/// The head of the aggregate `job` with this id; 0 where there is none.
async fn head(connection: &mut AsyncPgConnection, id: &str) -> i64 {
    let query =
        format!("SELECT coalesce(max(head_version), 0) AS n FROM tidings.aggregate WHERE type = 'job' AND id = '{id}'");
    number(connection, &query).await
}

/// Appends in a transaction of its own.
async fn say(connection: &mut AsyncPgConnection, event: NewEvent) -> Result<Appended, Failed> {
    tidings::transaction(connection, async |tx| Ok(tx.append(event).await?)).await
}

/// Appends in one call, in a transaction of its own.
async fn say_all(connection: &mut AsyncPgConnection, events: Vec<NewEvent>) -> Result<Vec<Appended>, Failed> {
    tidings::transaction(connection, async |tx| Ok(tx.append_all(events).await?)).await
}

/// An event of the aggregate `job` with this id.
fn of(job: &str) -> NewEvent {
    NewEvent::raw("job.progressed", "{}").aggregate("job", job)
}

fn unordered(id: &str) -> NewEvent {
    NewEvent::raw("job.noticed", "{}").id(id)
}

/// What an append answers, without the place in the outbox.
fn told(appended: &Appended) -> (Outcome, Option<i64>, Option<i64>) {
    let number = |version: Option<Version>| version.map(|v| v.0);
    (appended.outcome, number(appended.version), number(appended.previous))
}

fn is_serialization_failure(error: &Failed) -> bool {
    use diesel::result::DatabaseErrorKind::SerializationFailure;
    matches!(
        error,
        Failed::Append(append::Error::Query(DieselError::DatabaseError(SerializationFailure, _)))
            | Failed::Database(DieselError::DatabaseError(SerializationFailure, _))
    )
}

/// Waits until so many sessions of this database wait for a lock.
async fn until_waiting(watcher: &mut AsyncPgConnection, sessions: i64) {
    eventually("the sessions wait for a lock", LIMIT, async || {
        let waiting = "SELECT count(*) AS n FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
        (number(watcher, waiting).await == sessions).then_some(())
    })
    .await;
}

async fn run(connection: &mut AsyncPgConnection, statements: &str) {
    connection.batch_execute(statements).await.unwrap();
}

/// Begins a transaction that the test holds open, and appends in it.
async fn begin_with(connection: &mut AsyncPgConnection, event: NewEvent) -> Appended {
    AnsiTransactionManager::begin_transaction(connection).await.unwrap();
    Tx::join(connection).unwrap().append(event).await.unwrap()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Commit,
    Rollback,
}

/// Ends a transaction that the test held open.
async fn end(connection: &mut AsyncPgConnection, end: End) {
    match end {
        End::Commit => AnsiTransactionManager::commit_transaction(connection).await.unwrap(),
        End::Rollback => AnsiTransactionManager::rollback_transaction(connection).await.unwrap(),
    }
}
