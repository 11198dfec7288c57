//! Making an example's own tables.

use diesel_async::{AsyncConnection, AsyncPgConnection, SimpleAsyncConnection};

use crate::Error;

/// Runs a migration that does nothing the second time. Two processes that start at once wait for each other.
///
/// A service uses what it always uses, `diesel_migrations` for example: the ledger of Tidings is in the schema `tidings`
/// and does not meet that of the service.
///
/// # Errors
/// Those of the database.
pub async fn make(url: &str, sql: &str) -> Result<(), Error> {
    let mut connection = AsyncPgConnection::establish(url).await?;
    connection
        .transaction::<_, diesel::result::Error, _>(async |connection| {
            connection.batch_execute("SELECT pg_advisory_xact_lock(hashtextextended('tidings examples', 0))").await?;
            connection.batch_execute(sql).await
        })
        .await?;
    Ok(())
}
