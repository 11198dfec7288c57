//! The same for a synchronous [`diesel::Connection`], such as `PgConnection`.

use diesel::connection::{LoadConnection, TransactionManager};
use diesel::pg::Pg;
use diesel::result::Error as DieselError;
use diesel::{Connection, RunQueryDsl};

use super::StillAlive;
use crate::event::{IntoNewEvent, Limits, NewEvent};
use crate::outbox::append::{AppendBatch, AppendOne, Appended, Cause, Error, prepare};
use crate::outbox::cancel::{self, Cancel, Cancelled};
use crate::outbox::wake;

/// A synchronous transaction into which events can be appended.
pub struct Tx<'c, C> {
    conn: &'c mut C,
    appended: bool,
}

impl<C> std::fmt::Debug for Tx<'_, C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tx").field("appended", &self.appended).finish_non_exhaustive()
    }
}

/// Runs `work` in a transaction, like [`tidings::transaction`](crate::transaction()).
///
/// ```no_run
/// use diesel::RunQueryDsl;
/// use tidings::NewEvent;
///
/// # fn example<C>(conn: &mut C) -> Result<(), Box<dyn std::error::Error + Send + Sync>>
/// # where C: diesel::Connection<Backend = diesel::pg::Pg> + diesel::connection::LoadConnection {
/// tidings::sync::transaction(conn, |tx| {
///     diesel::sql_query("UPDATE jobs SET state = 'succeeded' WHERE id = 'job-42'").execute(tx.conn())?;
///     tx.append(NewEvent::raw("exports.completed", "{}"))?;
///     Ok(())
/// })
/// # }
/// ```
///
/// # Errors
/// Those of `work`, and those of the database as your error type makes them of [`diesel::result::Error`].
pub fn transaction<C, T, E>(conn: &mut C, work: impl FnOnce(&mut Tx<'_, C>) -> Result<T, E>) -> Result<T, E>
where
    C: Connection<Backend = Pg> + LoadConnection,
    E: From<DieselError>,
{
    let (value, appended) = conn.transaction::<_, E, _>(|conn| {
        let mut tx = Tx { conn, appended: false };
        let value = work(&mut tx)?;
        StillAlive {}.execute(tx.conn)?;
        Ok((value, tx.appended))
    })?;
    if appended {
        wake::all();
    }
    Ok(value)
}

impl<'c, C> Tx<'c, C>
where
    C: Connection<Backend = Pg> + LoadConnection,
{
    /// Joins the transaction that a connection is in, like [`tidings::Tx::join`](crate::Tx::join).
    ///
    /// # Errors
    /// [`Error::NotInTransaction`] if the connection is in none.
    pub fn join(conn: &'c mut C) -> Result<Tx<'c, C>, Error> {
        let status = C::TransactionManager::transaction_manager_status_mut(conn);
        match status.transaction_depth() {
            Ok(Some(_)) => Ok(Tx { conn, appended: false }),
            Ok(None) => Err(Error::NotInTransaction),
            Err(error) => Err(Error::Query(error)),
        }
    }

    /// The connection, for your own statements in the same transaction.
    pub fn conn(&mut self) -> &mut C {
        self.conn
    }

    /// Appends one event.
    ///
    /// # Errors
    /// As [`tidings::Tx::append`](crate::Tx::append).
    pub fn append(&mut self, event: impl IntoNewEvent) -> Result<Appended, Error> {
        let event = prepare(event.into_new_event()?, &Cause::default(), &Limits::in_force())?;
        let row: (i64, Option<i64>, Option<i64>, String) = AppendOne::from(event).get_result(self.conn)?;
        self.appended = true;
        Ok(row.into())
    }

    /// Appends many events in one call, in their order.
    ///
    /// # Errors
    /// As [`tidings::Tx::append_all`](crate::Tx::append_all).
    pub fn append_all<I>(&mut self, events: I) -> Result<Vec<Appended>, Error>
    where
        I: IntoIterator,
        I::Item: IntoNewEvent,
    {
        let limits = Limits::in_force();
        let events = events
            .into_iter()
            .map(|event| prepare(event.into_new_event()?, &Cause::default(), &limits))
            .collect::<Result<Vec<NewEvent>, _>>()?;
        if events.is_empty() {
            return Ok(Vec::new());
        }
        let rows: Vec<(i64, Option<i64>, Option<i64>, String)> = AppendBatch::of(events)?.load(self.conn)?;
        self.appended = true;
        Ok(rows.into_iter().map(Appended::from).collect())
    }
    /// Takes back an event that waits for its time.
    ///
    /// # Errors
    /// As [`tidings::Tx::cancel`](crate::Tx::cancel).
    pub fn cancel(&mut self, event_id: &str) -> Result<Cancelled, cancel::Error> {
        let answer: Option<String> = Cancel::of(event_id).get_result(self.conn)?;
        let cancelled = cancel::told(event_id, answer)?;
        self.appended = true;
        Ok(cancelled)
    }
}
