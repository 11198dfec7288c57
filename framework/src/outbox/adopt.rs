//! Take over what the stream holds and the database does not know: after a backup was restored, or a standby without the
//! last commits became the primary.
//!
//! Consumers may have applied those events, so the stream's word stands: they become events again, with their ids, versions
//! and evidence. What the database has appended since then and not published, under versions that are taken, is given the next
//! free ones, in its order; where the producer had chosen the version itself, the event becomes a dead letter, and somebody
//! decides. A partition waits for this since its relay stopped (`docs/operating.md`, alarm `stopped`), and goes on by itself
//! afterwards. The same is there for a shell: `tidings adopt`.

mod judge;
mod tail;
mod write;

use diesel::sql_types::{BigInt, Integer, Nullable, Text};
use diesel_async::{AsyncConnection, AsyncPgConnection, RunQueryDsl, SimpleAsyncConnection};

use super::reconcile::{HashId, event_id};
use crate::broker::{Broker, Error as BrokerError, Position, Publisher, StreamSpec};
use crate::event::{Aggregate, Version};
use crate::postgres::{Database, Error as DatabaseError, check_schema, statement};
use crate::protocol::anchor::{Anchor, Standing, compare};

/// What stands in the stream of one partition beyond its last recorded confirmation, and what was done about it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Found {
    /// The partition.
    pub partition: i32,
    /// The sequence of the last confirmation on record.
    pub beyond: u64,
    /// The last sequence of the stream.
    pub last: u64,
    /// Messages that the database knows: the relay records them by itself.
    pub known: u64,
    /// Messages it does not know, and that can be adopted.
    pub unknown: u64,
    /// The first [`SHOWN`] of these, in the order of the stream.
    pub first_unknown: Vec<Unknown>,
    /// Messages that are in the way: while there are any, nothing is adopted.
    pub in_the_way: u64,
    /// The first [`SHOWN`] of these, in the order of the stream.
    pub first_in_the_way: Vec<InTheWay>,
    /// Whether the unknown ones were adopted.
    pub adopted: bool,
    /// How many events that were not published yet have another version now.
    pub renumbered: u64,
    /// The first [`SHOWN`] of these, in the order of the outbox.
    pub first_renumbered: Vec<Renumbered>,
}

/// A message that the database does not know.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unknown {
    /// Its place in the stream.
    pub stream_seq: u64,
    /// The event's id.
    pub event_id: String,
    /// Its type.
    pub event_type: String,
    /// What it belongs to.
    pub aggregate: Option<Aggregate>,
    /// Its version there.
    pub version: Option<Version>,
}

/// A message that cannot be an event of this database.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct InTheWay {
    /// Its place in the stream.
    pub stream_seq: u64,
    /// Why.
    pub why: String,
}

/// An event that was not published yet, and whose version was taken.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Renumbered {
    /// Its id.
    pub event_id: String,
    /// The version it had.
    pub from: Version,
    /// The version it has.
    pub to: Version,
    /// Its producer had chosen the version, so it is a dead letter now: `redrive` publishes it under the new one.
    pub dead: bool,
}

/// Why nothing was adopted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No relay has ever said what the database's source is.
    #[error("the database has no source yet: no relay has ever run for it, so it has no stream")]
    NoSource,
    /// There is no such partition.
    #[error("there is no partition {0}: `tidings partitions list` shows those that there are")]
    NoPartition(i32),
    /// The stream is not the one in which the last confirmation was recorded, or has lost its end.
    #[error(
        "the stream of partition {0} is not as it was when the last confirmation was recorded: it lost its end, or was made anew. Let a relay run until it says what it makes of that; then run this again"
    )]
    NotCompared(i32),
    /// A relay or somebody else changed something meanwhile.
    #[error("partition {0} has moved on meanwhile, and nothing was done: run it again")]
    MovedOn(i32),
    /// The broker failed.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// The database failed.
    #[error(transparent)]
    Database(#[from] DatabaseError),
}

impl From<diesel::result::Error> for Error {
    fn from(error: diesel::result::Error) -> Error {
        Error::Database(error.into())
    }
}

/// Compares the end of a partition's stream with the database; changes nothing.
///
/// # Errors
/// [`Error`] says what is in the way.
pub async fn look(database: &Database, broker: &dyn Broker, partition: i32) -> Result<Found, Error> {
    work(database, broker, partition, None).await
}

/// Writes the unknown messages as events, in one transaction, if nothing is in the way. The owner of the partition loses it,
/// and the next finds that everything is known.
///
/// `by` is who decides this, in free text; it is logged, and recorded for tombstones.
///
/// # Errors
/// [`Error`] says what is in the way; nothing was done then.
pub async fn adopt(database: &Database, broker: &dyn Broker, partition: i32, by: &str) -> Result<Found, Error> {
    work(database, broker, partition, Some(by)).await
}

/// The partitions of the database, in order; also those that are retired, since their streams are there.
///
/// # Errors
/// Those of the database.
pub async fn partitions(database: &Database) -> Result<Vec<i32>, Error> {
    let mut connection = database.open().await?;
    check_schema(&mut connection, database).await?;
    Ok(RunQueryDsl::load(Partitions {}, &mut connection).await?)
}

async fn work(database: &Database, broker: &dyn Broker, partition: i32, by: Option<&str>) -> Result<Found, Error> {
    // One connection for all, since what was read of the stream stands in a temporary table.
    let mut connection = database.open().await?;
    check_schema(&mut connection, database).await?;
    connection.batch_execute("SET statement_timeout = 0").await?;
    let (source, partitions): (Option<String>, i32) = RunQueryDsl::get_result(Setting {}, &mut connection).await?;
    let source = source.ok_or(Error::NoSource)?;
    // The anchor first: what is confirmed meanwhile stands beyond it, and within the stream that is read.
    let anchor = anchor(&mut connection, partition).await?;
    let mut found = Found { partition, ..Found::default() };
    if !broker.streams(&source).await?.iter().any(|stream| stream.partition == partition) {
        return Ok(found);
    }
    let publisher = broker.publisher(StreamSpec { source: source.clone(), partition, partitions }).await?;
    let position = publisher.position().await?;
    found.beyond = place(&mut connection, &*publisher, anchor, &position, partition).await?;
    found.last = position.last_seq;
    let from = (found.beyond + 1).max(position.first_seq);
    tail::stage(&mut connection, &*publisher, &source, from..=position.last_seq).await?;
    judge::judge(&mut connection, partition, &mut found).await?;
    let Some(by) = by.filter(|_| found.unknown > 0 && found.in_the_way == 0) else { return Ok(found) };
    // Whoever owns it publishes nothing more, and what was under way stands in the stream by now.
    take_away(&mut connection, partition, anchor).await?;
    let now = publisher.position().await?;
    if (now.incarnation, now.last_seq) != (position.incarnation, position.last_seq) {
        return Err(Error::MovedOn(partition));
    }
    let adopting = connection.transaction::<_, Error, _>(async |connection| {
        judge::close(connection).await?;
        let epoch = take_away(connection, partition, anchor).await?;
        judge::lock(connection, partition).await?;
        judge::judge(connection, partition, &mut found).await?;
        if found.in_the_way > 0 || found.unknown == 0 {
            return Err(Error::MovedOn(partition));
        }
        write::write(connection, &mut found, position.incarnation, epoch, by).await
    });
    adopting.await?;
    found.adopted = true;
    let Found { unknown, renumbered, .. } = found;
    tracing::warn!(partition, by, unknown, renumbered, "adopted what the stream holds and the database did not know");
    Ok(found)
}

/// The sequence up to which stream and database agree.
async fn place(
    connection: &mut AsyncPgConnection,
    publisher: &dyn Publisher,
    anchor: Option<Anchor>,
    position: &Position,
    partition: i32,
) -> Result<u64, Error> {
    let there = match anchor {
        Some(anchor) if anchor.is_within(position) => match publisher.read(anchor.stream_seq).await? {
            Some(message) => {
                let id = event_id(&message);
                Some(RunQueryDsl::get_result(HashId { id }, connection).await?)
            }
            None => None,
        },
        Some(_) | None => None,
    };
    match compare(anchor, position, there) {
        Standing::Same { from } => Ok(from),
        Standing::Different => Err(Error::NotCompared(partition)),
    }
}

async fn anchor(connection: &mut AsyncPgConnection, partition: i32) -> Result<Option<Anchor>, Error> {
    let rows: Vec<(Option<i64>, Option<i64>, Option<i64>)> =
        RunQueryDsl::load(ReadAnchor { partition }, connection).await?;
    let (incarnation, stream_seq, id_hash) = rows.into_iter().next().ok_or(Error::NoPartition(partition))?;
    Ok(incarnation.zip(stream_seq).map(|(incarnation, stream_seq)| Anchor {
        incarnation,
        stream_seq: u64::try_from(stream_seq).unwrap_or(0),
        id_hash,
    }))
}

/// The new epoch, unless something was confirmed since the anchor was read.
async fn take_away(connection: &mut AsyncPgConnection, partition: i32, anchor: Option<Anchor>) -> Result<i64, Error> {
    let incarnation = anchor.map(|anchor| anchor.incarnation);
    let stream_seq = anchor.map(|anchor| i64::try_from(anchor.stream_seq).unwrap_or(i64::MAX));
    let epochs: Vec<i64> = RunQueryDsl::load(TakeAway { partition, incarnation, stream_seq }, connection).await?;
    epochs.into_iter().next().ok_or(Error::MovedOn(partition))
}

statement! {
    struct Setting {} -> (Nullable<Text>, Integer);
    "SELECT source, partitions FROM tidings.setting"
}

statement! {
    struct Partitions {} -> Integer;
    "SELECT id FROM tidings.partition ORDER BY id"
}

statement! {
    struct ReadAnchor { partition: Integer = i32 } -> (Nullable<BigInt>, Nullable<BigInt>, Nullable<BigInt>);
    "SELECT anchor_incarnation, anchor_stream_seq, anchor_id_hash FROM tidings.partition WHERE id = {partition}"
}

statement! {
    struct TakeAway {
        partition: Integer = i32,
        incarnation: Nullable<BigInt> = Option<i64>,
        stream_seq: Nullable<BigInt> = Option<i64>,
    } -> BigInt;
    "UPDATE tidings.partition SET owner = NULL, epoch = epoch + 1, lease_until = now(), lease_ttl = NULL
      WHERE id = {partition} AND anchor_incarnation IS NOT DISTINCT FROM {incarnation}
        AND anchor_stream_seq IS NOT DISTINCT FROM {stream_seq}
    RETURNING epoch"
}

/// How many messages of a kind are told one by one.
pub const SHOWN: usize = 100;
