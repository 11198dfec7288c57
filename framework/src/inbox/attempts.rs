//! Failed attempts of an event, counted across all processes.

use diesel::sql_types::{Integer, Nullable, Text};
use diesel_async::{AsyncPgConnection, RunQueryDsl};

use super::apply::Key;
use crate::postgres::statement;

/// Counts a failed attempt; returns how many there are now.
pub(super) async fn record(connection: &mut AsyncPgConnection, key: &Key, error: &str) -> diesel::QueryResult<u32> {
    let Key { consumer, generation, source, event_id } = key.clone();
    let statement = Record { consumer, generation, source, event_id, error: short(error) };
    let attempts: i32 = RunQueryDsl::get_result(statement, connection).await?;
    Ok(u32::try_from(attempts).unwrap_or(u32::MAX))
}

/// Forgets the attempts of an event that was applied.
pub(super) async fn clear(connection: &mut AsyncPgConnection, key: &Key) -> diesel::QueryResult<()> {
    let Key { consumer, generation, source, event_id } = key.clone();
    RunQueryDsl::execute(Clear { consumer, generation, source, event_id }, connection).await.map(drop)
}

/// What fits into a row, without the NUL that PostgreSQL's text refuses.
pub(super) fn short(error: &str) -> String {
    error.chars().filter(|c| *c != '\0').take(1_000).collect()
}

statement! {
    /// Never overflows: an operator may have set it to anything.
    struct Record {
        consumer: Text = String, generation: Integer = i32, source: Text = String, event_id: Text = String, error: Text = String,
    } -> Integer;
    "INSERT INTO tidings.attempt AS a (consumer, generation, source, event_id, attempts, last_error)
     VALUES ({consumer}, {generation}, {source}, {event_id}, 1, {error})
     ON CONFLICT (consumer, generation, source, event_id)
     DO UPDATE SET attempts = least(a.attempts, 2147483646) + 1, last_error = excluded.last_error, last_at = now()
     RETURNING attempts"
}

statement! {
    struct Clear { consumer: Text = String, generation: Integer = i32, source: Text = String, event_id: Text = String } -> Nullable<Text>;
    "DELETE FROM tidings.attempt
      WHERE consumer = {consumer} AND generation = {generation} AND source = {source} AND event_id = {event_id}"
}
