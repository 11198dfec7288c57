//! The partitions of a database: who owns them, and how many there are.

use std::time::Duration;

use crate::outbox::partitions::{self, Changed, Patience, Status, Unchanged};
use crate::postgres::{Database, Error, on_a_thread};

/// The partitions of a database, in order.
///
/// # Errors
/// Those of the database.
pub async fn partitions(database: &Database) -> Result<Vec<Status>, Error> {
    on_a_thread(database, async |connection, _| Ok(partitions::list(connection).await?)).await
}

/// Gives a database another number of partitions, while services and relays run.
///
/// Appends are kept waiting until the relays have published what is on its way, which takes moments unless a broker is
/// down; then every aggregate gets its new partition, what is held (dead, delayed, and what stands behind it) moves
/// along, and appends go on. It is one transaction: where it fails, nothing has changed.
///
/// The relays notice by themselves, and make the new streams. Streams of partitions that are no more stay, for consumers
/// that have not read them to the end. A consumer may meet a later event of an aggregate in its new stream before it has
/// read the earlier ones in the old.
///
/// ```no_run
/// # async fn example() -> Result<(), tidings::operate::PartitionsError> {
/// use std::time::Duration;
/// use tidings::{Database, operate::SetPartitions};
///
/// let database = Database::url("postgres://app:secret@127.0.0.1/shop");
/// let changed = SetPartitions::to(8).within(Duration::from_secs(60)).run(&database).await?;
/// println!("{} aggregates moved, appends waited for {:?}", changed.aggregates, changed.closed);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy)]
#[must_use = "nothing happens before `run`"]
pub struct SetPartitions {
    number: u16,
    patience: Patience,
}

/// What was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PartitionsChanged {
    /// The number before.
    pub before: u16,
    /// The number now.
    pub now: u16,
    /// How many aggregates have another partition than before.
    pub aggregates: i64,
    /// How many held events moved along.
    pub held: i64,
    /// How long appends were kept waiting.
    pub closed: Duration,
}

impl SetPartitions {
    /// To this number, 1 to 1,024.
    pub fn to(number: u16) -> SetPartitions {
        let patience = Patience { within: Duration::from_secs(30), hold: Duration::from_secs(5) };
        SetPartitions { number, patience }
    }

    /// How long to try. Default 30 s.
    pub fn within(mut self, within: Duration) -> Self {
        self.patience.within = within;
        self
    }

    /// How long appends may wait at once for what is on its way; after that they go on, and it is tried again. Less than
    /// the lock timeout of whoever appends. Default 5 s. Moving the aggregates comes on top, some seconds a million.
    pub fn hold(mut self, hold: Duration) -> Self {
        self.patience.hold = hold;
        self
    }

    /// Does it.
    ///
    /// # Errors
    /// [`PartitionsError`] says why the number is as it was.
    pub async fn run(self, database: &Database) -> Result<PartitionsChanged, PartitionsError> {
        if !(1..=1024).contains(&self.number) {
            return Err(PartitionsError::Number(self.number));
        }
        let SetPartitions { number, patience } = self;
        on_a_thread(database, async move |connection, _| {
            let Changed { before, aggregates, held, closed } =
                partitions::set(connection, i32::from(number), patience).await.map_err(|error| told(error, number))?;
            let before = u16::try_from(before).unwrap_or(u16::MAX);
            Ok(PartitionsChanged { before, now: number, aggregates, held, closed })
        })
        .await
    }
}

fn told(unchanged: Unchanged, number: u16) -> PartitionsError {
    match unchanged {
        Unchanged::Already => PartitionsError::Already(number),
        Unchanged::OnTheWay(partitions) => PartitionsError::OnTheWay(partitions),
        Unchanged::Locked => PartitionsError::Locked,
        Unchanged::Failed(error) => PartitionsError::Database(error.into()),
    }
}

/// Why the number of partitions is as it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PartitionsError {
    /// No number of partitions.
    #[error("{0} is no number of partitions: give one from 1 to 1024")]
    Number(u16),
    /// There is nothing to do.
    #[error("the database has {0} partitions already")]
    Already(u16),
    /// Events were on their way until the time was up: in each of these partitions so many, or more.
    #[error("events are still on their way, {}: does a relay run that reaches the broker, or is it paused? Nothing was changed", listed(.0))]
    OnTheWay(Vec<(i32, i64)>),
    /// Other transactions held the tables until the time was up.
    #[error(
        "transactions that append did not end in time: the longest of them stand in pg_stat_activity. Nothing was changed"
    )]
    Locked,
    /// The database failed.
    #[error(transparent)]
    Database(#[from] Error),
}

fn listed(partitions: &[(i32, i64)]) -> String {
    let each = partitions.iter().map(|(id, events)| format!("at least {events} in partition {id}"));
    each.collect::<Vec<_>>().join(", ")
}
