//! Pausing the relays of a database, and resuming them.

use crate::outbox::pause::{self, Pause};
use crate::postgres::{Database, Error, on_a_thread};

/// Pauses all relays of a database, in whatever process they are, until [`resume_relay`]: within a heartbeat each
/// finishes what it has in hand and gives its partitions up. Events are still appended, and wait.
///
/// Returns the pause. A pause that is there already stays as it is, and is what is returned.
///
/// # Errors
/// Those of the database.
///
/// ```no_run
/// # async fn example() -> Result<(), tidings::postgres::Error> {
/// use tidings::{Database, operate};
///
/// let database = Database::url("postgres://app:secret@127.0.0.1/shop");
/// let pause = operate::pause_relay(&database, "ada", "the broker is moved to other disks").await?;
/// println!("paused by {} since {}", pause.by, pause.at);
/// operate::resume_relay(&database).await?;
/// # Ok(())
/// # }
/// ```
pub async fn pause_relay(database: &Database, by: &str, reason: &str) -> Result<Pause, Error> {
    let (by, reason) = (by.to_owned(), reason.to_owned());
    on_a_thread(database, async move |connection, _| Ok(pause::pause(connection, &by, &reason).await?)).await
}

/// Ends a pause: within some seconds the relays share the partitions again. Returns the pause that was; `None` if there
/// was none.
///
/// # Errors
/// Those of the database.
pub async fn resume_relay(database: &Database) -> Result<Option<Pause>, Error> {
    on_a_thread(database, async |connection, _| Ok(pause::resume(connection).await?)).await
}
