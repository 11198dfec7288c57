//! A pause of all relays of a database: events are still appended, and nothing is published.

use chrono::{DateTime, Utc};
use diesel::OptionalExtension;
use diesel::sql_types::{Nullable, Text, Timestamptz};
use diesel_async::{AsyncPgConnection, RunQueryDsl};

use crate::postgres::statement;

/// That an operator has paused the relays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pause {
    /// Since when, by the database's clock.
    pub at: DateTime<Utc>,
    /// Who did it.
    pub by: String,
    /// Why.
    pub reason: String,
}

/// Pauses. What is paused stays as it is: whoever was first is told.
pub(crate) async fn pause(connection: &mut AsyncPgConnection, by: &str, reason: &str) -> diesel::QueryResult<Pause> {
    let statement = SetPause { by: by.to_owned(), reason: reason.to_owned() };
    let (at, by, reason): Row = RunQueryDsl::get_result(statement, connection).await?;
    let pause = read(at, by, reason);
    pause.ok_or(diesel::result::Error::NotFound)
}

/// Resumes; returns the pause that is over.
pub(crate) async fn resume(connection: &mut AsyncPgConnection) -> diesel::QueryResult<Option<Pause>> {
    let before: Option<Row> = RunQueryDsl::get_result(EndPause {}, connection).await.optional()?;
    Ok(before.and_then(|(at, by, reason)| read(at, by, reason)))
}

type Row = (Option<DateTime<Utc>>, Option<String>, Option<String>);

fn read(at: Option<DateTime<Utc>>, by: Option<String>, reason: Option<String>) -> Option<Pause> {
    at.map(|at| Pause { at, by: by.unwrap_or_default(), reason: reason.unwrap_or_default() })
}

statement! {
    struct SetPause { by: Text = String, reason: Text = String }
    -> (Nullable<Timestamptz>, Nullable<Text>, Nullable<Text>);
    "UPDATE tidings.setting
        SET paused_by = CASE WHEN paused_at IS NULL THEN {by} ELSE paused_by END,
            paused_reason = CASE WHEN paused_at IS NULL THEN {reason} ELSE paused_reason END,
            paused_at = coalesce(paused_at, now())
     RETURNING paused_at, paused_by, paused_reason"
}

statement! {
    /// The row as it was: an UPDATE returns only what it has become.
    struct EndPause {} -> (Nullable<Timestamptz>, Nullable<Text>, Nullable<Text>);
    "WITH before AS (
        SELECT paused_at, paused_by, paused_reason FROM tidings.setting WHERE paused_at IS NOT NULL FOR UPDATE
     ), ended AS (
        UPDATE tidings.setting SET paused_at = NULL, paused_by = NULL, paused_reason = NULL WHERE paused_at IS NOT NULL
     )
     SELECT paused_at, paused_by, paused_reason FROM before"
}
