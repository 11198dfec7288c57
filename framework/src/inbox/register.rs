//! A consumer's name in the database, with the generation that keys everything of its own.

use diesel::sql_types::{Integer, Text};
use diesel_async::{AsyncPgConnection, RunQueryDsl};

use crate::postgres::statement;

/// Registers a consumer at its first start; returns its generation and the source it was registered for.
pub(crate) async fn register(
    connection: &mut AsyncPgConnection,
    name: &str,
    source: &str,
) -> diesel::QueryResult<(i32, String)> {
    RunQueryDsl::get_result(Register { name: name.to_owned(), source: source.to_owned() }, connection).await
}

statement! {
    struct Register { name: Text = String, source: Text = String } -> (Integer, Text);
    "INSERT INTO tidings.consumer AS c (name, source) VALUES ({name}, {source})
     ON CONFLICT (name) DO UPDATE SET name = c.name RETURNING generation, source"
}
