//! The transaction that makes a fact true and appends its event.

#[cfg(feature = "sync")]
pub mod sync;

use std::num::NonZeroU32;

use diesel::result::Error as DieselError;
use diesel_async::{AnsiTransactionManager, AsyncPgConnection, RunQueryDsl, SimpleAsyncConnection, TransactionManager};

use crate::event::{IntoNewEvent, Limits, NewEvent};
use crate::outbox::append::{AppendBatch, AppendOne, Appended, Cause, Error, prepare};
use crate::outbox::cancel::{self, Cancel, Cancelled};
use crate::outbox::wake;
use crate::postgres::statement;

/// A transaction into which events can be appended. It exists only inside one: lent by [`transaction`], joined by
/// [`Tx::join`], or handed to a consumer's handler.
///
/// An append outside a transaction does not compile:
///
/// ```compile_fail
/// # async fn example(conn: &mut diesel_async::AsyncPgConnection, event: tidings::NewEvent) {
/// conn.append(event).await;
/// # }
/// ```
#[derive(Debug)]
pub struct Tx<'c> {
    conn: Conn<'c>,
    cause: Cause,
    appended: bool,
}

/// `AsyncPgConnection` has no `Debug`.
struct Conn<'c>(&'c mut AsyncPgConnection);

impl std::fmt::Debug for Conn<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AsyncPgConnection")
    }
}

/// Runs `work` in a transaction: what it changes and what it appends commit together, or not at all.
///
/// Commits when `work` returns `Ok`, rolls back when it returns `Err`. If a database error was swallowed inside, the
/// transaction is aborted on the server and this returns that error instead of `Ok`: PostgreSQL would answer the
/// commit of such a transaction with a rollback, silently. After the commit the relay in this process is woken.
///
/// On a connection that is in a transaction already, this is a savepoint of it. Dropped in the middle, as by a time-out, it
/// commits nothing, and the connection refuses every further transaction: open another one, as a pool does by itself.
///
/// ```no_run
/// use diesel_async::{AsyncPgConnection, RunQueryDsl};
/// use serde::{Deserialize, Serialize};
/// use tidings::Event;
///
/// #[derive(Event, Serialize, Deserialize)]
/// #[event(type = "exports.completed", aggregate = "job", key = job_id)]
/// struct ExportCompleted { job_id: String, rows: i64 }
///
/// # async fn example(conn: &mut AsyncPgConnection) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// tidings::transaction(conn, async |tx| {
///     diesel::sql_query("UPDATE jobs SET state = 'succeeded' WHERE id = 'job-42'").execute(tx.conn()).await?;
///     tx.append(&ExportCompleted { job_id: "job-42".into(), rows: 7 }).await?;
///     Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
/// })
/// .await
/// # }
/// ```
///
/// # Errors
/// Those of `work`, and those of the database as your error type makes them of [`diesel::result::Error`]. An error while
/// the commit was under way means that its outcome is unknown: repeat with the same event ids, which appends nothing twice.
pub async fn transaction<T, E, F>(conn: &mut AsyncPgConnection, work: F) -> Result<T, E>
where
    F: AsyncFnOnce(&mut Tx<'_>) -> Result<T, E>,
    E: From<DieselError>,
{
    let mut lent = Lent::begin(conn).await?;
    let value = match work(&mut lent.tx).await {
        Ok(value) => value,
        Err(error) => {
            lent.roll_back().await;
            return Err(error);
        }
    };
    lent.commit().await?;
    if lent.tx.appended {
        wake::all();
    }
    Ok(value)
}

/// A transaction under way. Given up in the middle, by a time-out or a panic, it would stay open on the connection, and the
/// next transaction there would be a savepoint of it, whose commit commits nothing: so the connection refuses from then on.
struct Lent<'c> {
    tx: Tx<'c>,
    ended: bool,
}

impl<'c> Lent<'c> {
    async fn begin(conn: &'c mut AsyncPgConnection) -> Result<Lent<'c>, DieselError> {
        AnsiTransactionManager::begin_transaction(conn).await?;
        Ok(Lent { tx: Tx::new(conn, Cause::default()), ended: false })
    }

    /// PostgreSQL answers the COMMIT of an aborted transaction with a rollback, and the driver calls that a success. So a
    /// statement that fails in such a transaction goes before it.
    async fn commit(&mut self) -> Result<(), DieselError> {
        let conn = self.tx.conn();
        let depth = AnsiTransactionManager::transaction_manager_status_mut(conn).transaction_depth()?;
        let outermost = depth.map(NonZeroU32::get) == Some(1);
        let alive = if outermost {
            conn.batch_execute(COMMIT_IF_ALIVE).await
        } else {
            RunQueryDsl::execute(StillAlive {}, conn).await.map(drop)
        };
        if alive.is_err() {
            // If it was the COMMIT that failed, the transaction has ended, and the rollback only tells Diesel so.
            self.roll_back().await;
            return alive;
        }
        let committed = if outermost {
            *AnsiTransactionManager::transaction_manager_status_mut(self.tx.conn()) = Default::default();
            Ok(())
        } else {
            AnsiTransactionManager::commit_transaction(self.tx.conn()).await
        };
        self.ended = true;
        committed
    }

    /// The cause matters more than a rollback that failed too; the connection counts as broken then.
    async fn roll_back(&mut self) {
        let _ = AnsiTransactionManager::rollback_transaction(self.tx.conn()).await;
        self.ended = true;
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        if !self.ended {
            AnsiTransactionManager::transaction_manager_status_mut(self.tx.conn()).set_in_error();
        }
    }
}

impl<'c> Tx<'c> {
    pub(crate) fn new(conn: &'c mut AsyncPgConnection, cause: Cause) -> Tx<'c> {
        Tx { conn: Conn(conn), cause, appended: false }
    }

    /// Joins the transaction that a connection is in, for code inside `conn.transaction(…)`.
    ///
    /// The relay is not woken by the commit, which this does not see; it finds the events when it looks next, within
    /// half a second. Call [`wake`](crate::wake) after the commit to save that time.
    ///
    /// # Errors
    /// [`Error::NotInTransaction`] if the connection is in none.
    ///
    /// ```no_run
    /// use diesel_async::{AsyncConnection, AsyncPgConnection};
    /// use tidings::{NewEvent, Tx};
    ///
    /// # async fn example(conn: &mut AsyncPgConnection) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    /// conn.transaction(async |conn| {
    ///     Tx::join(conn)?.append(NewEvent::raw("orders.created", "{}")).await?;
    ///     Ok(())
    /// })
    /// .await
    /// # }
    /// ```
    pub fn join(conn: &'c mut AsyncPgConnection) -> Result<Tx<'c>, Error> {
        let status = AnsiTransactionManager::transaction_manager_status_mut(conn);
        match status.transaction_depth() {
            Ok(Some(_)) => Ok(Tx::new(conn, Cause::default())),
            Ok(None) => Err(Error::NotInTransaction),
            Err(error) => Err(Error::Query(error)),
        }
    }

    /// The connection, for your own statements in the same transaction. Do not commit or roll back on it.
    pub fn conn(&mut self) -> &mut AsyncPgConnection {
        self.conn.0
    }

    /// Appends one event: a reference to an [`Event`](crate::Event), or a [`NewEvent`].
    ///
    /// # Errors
    /// See [`Error`]; after all but [`Error::Invalid`] the transaction must be rolled back.
    pub async fn append(&mut self, event: impl IntoNewEvent) -> Result<Appended, Error> {
        let event = prepare(event.into_new_event()?, &self.cause, &Limits::in_force())?;
        let row: (i64, Option<i64>, Option<i64>, String) =
            RunQueryDsl::get_result(AppendOne::from(event), self.conn.0).await?;
        self.appended = true;
        Ok(row.into())
    }

    /// Appends many events in one call, in their order; much cheaper than one by one.
    ///
    /// # Errors
    /// As [`append`](Self::append), and [`Error::TooMany`]. It is all or nothing.
    pub async fn append_all<I>(&mut self, events: I) -> Result<Vec<Appended>, Error>
    where
        I: IntoIterator,
        I::Item: IntoNewEvent,
    {
        let limits = Limits::in_force();
        let events = events
            .into_iter()
            .map(|event| prepare(event.into_new_event()?, &self.cause, &limits))
            .collect::<Result<Vec<NewEvent>, _>>()?;
        if events.is_empty() {
            return Ok(Vec::new());
        }
        let rows: Vec<(i64, Option<i64>, Option<i64>, String)> =
            RunQueryDsl::load(AppendBatch::of(events)?, self.conn.0).await?;
        self.appended = true;
        Ok(rows.into_iter().map(Appended::from).collect())
    }

    /// Takes back an event that waits for its time ([`NewEvent::not_before`]); it is as if it had never been, once this
    /// transaction commits. In an aggregate a tombstone stands for its version.
    ///
    /// # Errors
    /// [`cancel::Error::TooLate`] if its time has come, [`cancel::Error::Unknown`] if there is no such event; nothing was
    /// changed then, and the transaction is still good.
    ///
    /// ```no_run
    /// # async fn example(conn: &mut diesel_async::AsyncPgConnection) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    /// use tidings::cancel;
    ///
    /// tidings::transaction(conn, async |tx| match tx.cancel("reminder-42").await {
    ///     Ok(_) => Ok(()),
    ///     Err(cancel::Error::TooLate { state, .. }) => Err(format!("it is {state} already").into()),
    ///     Err(error) => Err(error.into()),
    /// })
    /// .await
    /// # }
    /// ```
    pub async fn cancel(&mut self, event_id: &str) -> Result<Cancelled, cancel::Error> {
        let answer: Option<String> = RunQueryDsl::get_result(Cancel::of(event_id), self.conn.0).await?;
        let cancelled = cancel::told(event_id, answer)?;
        // There may be a tombstone to publish.
        self.appended = true;
        Ok(cancelled)
    }

    pub(crate) fn has_appended(&self) -> bool {
        self.appended
    }
}

statement! {
    /// Fails in an aborted transaction, where COMMIT would answer ROLLBACK and the driver report success.
    pub(crate) struct StillAlive {} -> diesel::sql_types::Integer;
    "SELECT 1"
}

/// One message, one round trip: the server leaves out what follows a statement that failed. Of the statements that change
/// nothing this is the cheapest: what was deferred would be checked by the COMMIT anyway.
const COMMIT_IF_ALIVE: &str = "SET CONSTRAINTS ALL IMMEDIATE; COMMIT";
