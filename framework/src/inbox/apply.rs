//! Step 6: inbox row and effect in one transaction.
//!
//! The inbox row goes in first, with outcome `open` and the id of the transaction; the last statement sets it to
//! `applied` where key *and* transaction match. So an aborted transaction (a handler swallowed a database error) and a
//! transaction that the handler ended by itself are both found out before the commit is believed.

use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use diesel::sql_types::{Bool, Integer, Nullable, Text};
use diesel_async::pooled_connection::deadpool::Object;
use diesel_async::{AnsiTransactionManager, AsyncPgConnection, RunQueryDsl, SimpleAsyncConnection, TransactionManager};
use futures_util::FutureExt;

use crate::consumer::{Consumer, HandlerError, Isolation, Kind};
use crate::envelope::Envelope;
use crate::failpoint::failpoint;
use crate::outbox::append::Cause;
use crate::outbox::wake;
use crate::postgres::{Fault, Pool, classify, statement};
use crate::protocol::attempt::Failure;
use crate::transaction::Tx;

/// Whose inbox, and which event: the key of everything on the consumer's side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) consumer: String,
    pub(crate) generation: i32,
    pub(crate) source: String,
    pub(crate) event_id: String,
}

/// How an event is applied.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms {
    pub(crate) isolation: Isolation,
    pub(crate) timeout: Duration,
}

/// What came of it.
#[derive(Debug)]
pub(crate) enum Ending {
    /// Committed now.
    Applied,
    /// Committed before, by whomever.
    Duplicate,
    /// For another release: give it back.
    Later(String),
    /// Rolled back, or not known; the text is for the record of attempts.
    Failed(Failure, String),
}

/// Applies one event, on the runtime of the handlers.
pub(crate) async fn apply<C: Consumer>(
    consumer: &C,
    pool: &Pool,
    key: &Key,
    envelope: &Envelope,
    terms: Terms,
) -> Ending {
    let mut connection = match pool.get().await {
        Ok(connection) => connection,
        Err(error) => return Ending::Failed(Failure::Outage, error.to_string()),
    };
    match begin(&mut connection, key, terms).await {
        Begun::Open { backend } => match run(consumer, &mut connection, key, envelope, terms.timeout).await {
            Ran::Ready { appended } => match commit(&mut connection).await {
                Committed::Yes => {
                    failpoint!("consumer::committed");
                    if appended {
                        wake::all();
                    }
                    Ending::Applied
                }
                Committed::No(failure, text) => {
                    let_go_of_standby(connection, failure);
                    Ending::Failed(failure, text)
                }
                Committed::Unknown(text) => {
                    abandon(pool, connection, backend).await;
                    Ending::Failed(Failure::Outage, text)
                }
            },
            Ran::Failed(failure, text) => roll_back(connection, failure, text).await,
            Ran::Later(text) => {
                roll_back(connection, Failure::Transient, String::new()).await;
                Ending::Later(text)
            }
            // A database that does not answer is why it took so long: nothing is known against the event.
            Ran::TimedOut => {
                let failure =
                    if abandon(pool, connection, backend).await { Failure::Transient } else { Failure::Outage };
                let timeout = humantime::format_duration(terms.timeout);
                Ending::Failed(failure, format!("the handler did not end within its timeout of {timeout}"))
            }
        },
        Begun::Known => {
            let _ = AnsiTransactionManager::rollback_transaction(&mut *connection).await;
            Ending::Duplicate
        }
        Begun::LeftOpen => {
            let _ = AnsiTransactionManager::rollback_transaction(&mut *connection).await;
            Ending::Failed(Failure::EndedTransaction, ENDED.into())
        }
        // Nothing of the event's own has run yet: nothing is counted, whatever it was.
        Begun::Failed(error) => {
            let failure =
                if classify(&error) == Fault::Serialization { Failure::Serialization } else { Failure::Outage };
            let _ = AnsiTransactionManager::rollback_transaction(&mut *connection).await;
            let_go_of_standby(connection, failure);
            Ending::Failed(failure, error.to_string())
        }
    }
}

/// A server that became a standby stays reachable, and refuses for ever; another connection may find the new primary.
fn let_go_of_standby(connection: Object<AsyncPgConnection>, failure: Failure) {
    if failure == Failure::Outage {
        drop(Object::take(connection));
    }
}

enum Begun {
    Open { backend: i32 },
    Known,
    LeftOpen,
    Failed(diesel::result::Error),
}

/// Begins and inserts the inbox row. A conflict waits for the competitor; only its committed row is evidence.
///
/// A handler may be idle for as long as its timeout allows: a server that ends the session before that would look like an
/// outage, each time again.
async fn begin(connection: &mut AsyncPgConnection, key: &Key, terms: Terms) -> Begun {
    let level = match terms.isolation {
        Isolation::ReadCommitted => "READ COMMITTED",
        Isolation::RepeatableRead => "REPEATABLE READ",
        Isolation::Serializable => "SERIALIZABLE",
    };
    let idle = i32::try_from((terms.timeout + MORE_THAN_THE_TIMEOUT).as_millis()).unwrap_or(i32::MAX);
    let begin = format!("BEGIN ISOLATION LEVEL {level}; SET LOCAL idle_in_transaction_session_timeout = {idle}");
    let began = AnsiTransactionManager::begin_transaction_sql(connection, &begin).await;
    if let Err(error) = began {
        return Begun::Failed(error);
    }
    let inserted: Result<Vec<i32>, _> = RunQueryDsl::load(Insert::of(key), connection).await;
    match inserted.as_deref() {
        Ok([backend]) => return Begun::Open { backend: *backend },
        Ok(_) => {}
        Err(_) => return Begun::Failed(inserted.expect_err("matched as an error")),
    }
    let found: Result<Option<String>, _> = RunQueryDsl::get_result(Look::of(key), connection).await;
    match found {
        Ok(Some(outcome)) if outcome == "open" => Begun::LeftOpen,
        Ok(Some(_)) => Begun::Known,
        Ok(None) => Begun::Failed(diesel::result::Error::NotFound),
        Err(error) => Begun::Failed(error),
    }
}

enum Ran {
    Ready { appended: bool },
    Later(String),
    Failed(Failure, String),
    TimedOut,
}

/// Runs the handler and the guard.
async fn run<C: Consumer>(
    consumer: &C,
    connection: &mut AsyncPgConnection,
    key: &Key,
    envelope: &Envelope,
    timeout: Duration,
) -> Ran {
    let mut tx = Tx::new(connection, cause_of(envelope));
    failpoint!("consumer::handler");
    // A panic is an outcome (invariant 10). Nothing of the handler's is used afterwards but the connection, which rolls back.
    let handling = AssertUnwindSafe(async { consumer.dispatch(envelope, &mut tx).await }).catch_unwind();
    let started = Instant::now();
    let handled = tokio::time::timeout(timeout, handling).await;
    let appended = tx.has_appended();
    match handled {
        Err(_) => return Ran::TimedOut,
        // It blocked its thread, so that nobody could stop it.
        Ok(_) if started.elapsed() > timeout => return Ran::TimedOut,
        Ok(Err(_)) => return Ran::Failed(Failure::Transient, "the handler panicked".into()),
        Ok(Ok(Err(error))) => return failed(error),
        Ok(Ok(Ok(()))) => {}
    }
    // The commit would only release it, the driver would report success, and the effect would be gone.
    if depth_of(connection) > 1 {
        return Ran::Failed(Failure::Transient, SAVEPOINT.into());
    }
    match RunQueryDsl::execute(Guard::of(key), connection).await {
        Ok(1) => Ran::Ready { appended },
        Ok(_) => Ran::Failed(Failure::EndedTransaction, ENDED.into()),
        Err(error) => Ran::Failed(
            failure_of(&error),
            format!(
                "after the handler had returned Ok: {error}; a database error it did not pass on has aborted the transaction"
            ),
        ),
    }
}

fn failed(error: HandlerError) -> Ran {
    let text = error.to_string();
    match error.kind {
        Kind::Later => Ran::Later(text),
        Kind::Permanent | Kind::Undecodable => Ran::Failed(Failure::Permanent, text),
        Kind::Transient => Ran::Failed(error.database_error().map_or(Failure::Transient, failure_of), text),
    }
}

fn failure_of(error: &diesel::result::Error) -> Failure {
    match classify(error) {
        Fault::Serialization => Failure::Serialization,
        Fault::Unique { .. } => Failure::UniqueInEffect,
        Fault::ReadOnly => Failure::Outage,
        // If it is our connection, the rollback has no answer either, and says so. If that is answered, it was another one
        // of the handler's, or something that the driver could not send.
        Fault::ConnectionLost => Failure::Transient,
        Fault::Constraint | Fault::Other => Failure::Database,
    }
}

/// Rolls back; if not even that is answered, the database is gone, and what the handler saw of it says nothing against
/// the event. A connection whose transaction is not exactly as it was lent does not go back to the pool.
async fn roll_back(mut connection: Object<AsyncPgConnection>, failure: Failure, text: String) -> Ending {
    let as_lent = depth_of(&mut connection) == 1;
    let rolled_back = if as_lent {
        AnsiTransactionManager::rollback_transaction(&mut *connection).await
    } else {
        connection.batch_execute("ROLLBACK").await
    };
    // Of another connection of the handler's, or of its own making: our session takes what is written.
    let elsewhere = failure == Failure::Outage && rolled_back.is_ok() && !is_read_only(&mut connection).await;
    let failure = if elsewhere { Failure::Database } else { failure };
    if !as_lent || rolled_back.is_err() || matches!(failure, Failure::EndedTransaction | Failure::Outage) {
        drop(Object::take(connection));
    }
    match (failure, rolled_back) {
        (Failure::Outage, _) => {
            Ending::Failed(failure, "the session is read-only: has its server become a standby?".into())
        }
        (Failure::Permanent | Failure::EndedTransaction, _) | (_, Ok(())) => Ending::Failed(failure, text),
        (_, Err(error)) => Ending::Failed(Failure::Outage, error.to_string()),
    }
}

/// Whether the next transaction of a session could write nothing, as on a standby. One that does not say so is not trusted.
async fn is_read_only(connection: &mut AsyncPgConnection) -> bool {
    RunQueryDsl::get_result(ReadOnly {}, connection).await.unwrap_or(true)
}

/// How many transactions deep the connection is, savepoints included; 0 too if it is broken.
fn depth_of(connection: &mut AsyncPgConnection) -> u32 {
    let depth = AnsiTransactionManager::transaction_manager_status_mut(connection).transaction_depth();
    depth.ok().flatten().map_or(0, std::num::NonZero::get)
}

enum Committed {
    Yes,
    No(Failure, String),
    Unknown(String),
}

async fn commit(connection: &mut AsyncPgConnection) -> Committed {
    let error = match committing(connection).await {
        Ok(()) => return Committed::Yes,
        Err(error) => error,
    };
    let text = error.to_string();
    match classify(&error) {
        // The server said no, and why: it has rolled back.
        Fault::Serialization => Committed::No(Failure::Serialization, text),
        Fault::Unique { .. } => Committed::No(Failure::UniqueInEffect, text),
        Fault::Constraint => Committed::No(Failure::Database, text),
        Fault::ReadOnly if is_read_only(connection).await => Committed::No(Failure::Outage, text),
        Fault::ReadOnly => Committed::No(Failure::Database, text),
        // Nobody knows: neither committed nor rolled back (invariant 8).
        Fault::ConnectionLost => Committed::Unknown(text),
        // The server may have answered with an error of its own, or died answering. If it still talks, it answered.
        Fault::Other => match crate::postgres::pid_of(connection).await {
            Ok(_) => Committed::No(Failure::Database, text),
            Err(_) => Committed::Unknown(text),
        },
    }
}

#[cfg(not(feature = "failpoints"))]
async fn committing(connection: &mut AsyncPgConnection) -> diesel::QueryResult<()> {
    AnsiTransactionManager::commit_transaction(connection).await
}

/// With a point after the request went out and before its answer came.
#[cfg(feature = "failpoints")]
async fn committing(connection: &mut AsyncPgConnection) -> diesel::QueryResult<()> {
    let mut commit = std::pin::pin!(AnsiTransactionManager::commit_transaction(connection));
    let answered = futures_util::poll!(commit.as_mut());
    // On a busy machine the answer may be there already; nobody has looked at it.
    failpoint!("consumer::commit-sent");
    match answered {
        std::task::Poll::Ready(result) => result,
        std::task::Poll::Pending => commit.await,
    }
}

/// Gives up a connection with whatever it is in the middle of: what it waits for is cancelled, so that its locks go now,
/// and its server process is ended if it is still there. Whether the database answered all that in time.
async fn abandon(pool: &Pool, connection: Object<AsyncPgConnection>, backend: i32) -> bool {
    let cancel = connection.cancel_token();
    drop(Object::take(connection));
    let ending = async {
        let _ = cancel.cancel_query(tokio_postgres::NoTls).await;
        // Not out of the pool: handlers that hang may hold all of it.
        let mut connection = pool.aside().await.ok()?;
        RunQueryDsl::execute(EndBackend { backend }, &mut connection).await.ok()
    };
    matches!(tokio::time::timeout(ABANDON, ending).await, Ok(Some(_)))
}

/// What a handler appends was caused by the event it handles.
fn cause_of(envelope: &Envelope) -> Cause {
    Cause {
        correlation_id: Some(envelope.correlation_id.clone().unwrap_or_else(|| envelope.id.clone())),
        causation_id: Some(envelope.id.clone()),
        traceparent: envelope.traceparent.clone(),
        tracestate: envelope.tracestate.clone(),
    }
}

/// A statement on the inbox row of one event.
macro_rules! keyed {
    ($($name:ident),*) => {$(
        impl $name {
            fn of(key: &Key) -> $name {
                let Key { consumer, generation, source, event_id } = key.clone();
                $name { consumer, generation, source, event_id }
            }
        }
    )*};
}

statement! {
    /// The server process comes with it, so that it can be ended should the answer to the commit be lost.
    struct Insert { consumer: Text = String, generation: Integer = i32, source: Text = String, event_id: Text = String } -> Integer;
    "INSERT INTO tidings.inbox (consumer, generation, source, event_id) VALUES ({consumer}, {generation}, {source}, {event_id})
     ON CONFLICT (consumer, generation, source, event_id) DO NOTHING RETURNING pg_backend_pid()"
}

statement! {
    /// A new statement, so that READ COMMITTED sees what the competitor has committed meanwhile.
    struct Look { consumer: Text = String, generation: Integer = i32, source: Text = String, event_id: Text = String } -> Nullable<Text>;
    "SELECT (SELECT outcome::text FROM tidings.inbox
              WHERE consumer = {consumer} AND generation = {generation} AND source = {source} AND event_id = {event_id})"
}

statement! {
    /// The last statement of the transaction: exactly one row, or it is not ours any more. The attempts that failed
    /// before are forgotten with it.
    struct Guard { consumer: Text = String, generation: Integer = i32, source: Text = String, event_id: Text = String } -> Nullable<Text>;
    "WITH forgotten AS (
        DELETE FROM tidings.attempt
         WHERE consumer = {consumer} AND generation = {generation} AND source = {source} AND event_id = {event_id}
     )
     UPDATE tidings.inbox SET outcome = 'applied'
      WHERE consumer = {consumer} AND generation = {generation} AND source = {source} AND event_id = {event_id}
        AND xid = pg_current_xact_id()"
}

keyed!(Insert, Look, Guard);

statement! {
    /// Outside a transaction: that of the next one, and always `on` during recovery.
    struct ReadOnly {} -> Bool;
    "SELECT current_setting('transaction_read_only')::boolean"
}

statement! {
    /// Only one of ours: the number may belong to somebody else by now.
    struct EndBackend { backend: Integer = i32 } -> Nullable<Text>;
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
      WHERE pid = {backend} AND usename = current_user AND datname = current_database()
        AND application_name = current_setting('application_name')"
}

const ENDED: &str = "the handler ended the transaction it was lent: it must neither commit nor roll back on `tx.conn()`; part of its effect may have been committed";
const SAVEPOINT: &str = "the handler left a savepoint open, as a nested transaction does that is given up in the middle; nothing was committed";
/// A session is ended for idling this much later than its handler is given up.
const MORE_THAN_THE_TIMEOUT: Duration = Duration::from_secs(10);
/// A database that takes longer than this to end one of its sessions is not answering.
const ABANDON: Duration = Duration::from_secs(10);
