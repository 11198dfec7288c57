//! Compares the stream with what was confirmed, before anything is published on top of it: what the broker stored and
//! nobody recorded is confirmed, what it lost is opened again, and what the database does not know stops the partition.

use std::collections::HashMap;
use std::time::Duration;

use chrono::{DateTime, Utc};
use diesel::sql_types::{Array, BigInt, Binary, Bool, Integer, Nullable, Text, Timestamptz, Uuid};
use diesel_async::RunQueryDsl;
use futures_util::{StreamExt, TryStreamExt, stream};

use super::confirm::{Evidence, confirm};
use super::dead::{stored_after_all, tombstone_after_all};
use super::lease::Tenancy;
use crate::broker::{Error as BrokerError, Message, Position, Publisher};
use crate::envelope::Envelope;
use crate::postgres::{Error as DatabaseError, Pool, statement};
use crate::protocol::anchor::{Anchor, Standing, compare};
use crate::telemetry;

/// Why the stream could not be reconciled.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Stopped {
    /// Another node owns the partition now.
    #[error("the lease was lost to another node")]
    LeaseLost,
    /// A message that the database does not know.
    #[error(
        "the stream of partition {partition} holds at sequence {stream_seq} a message that this database does not know ({what}): \
         the database went back in time, or something else publishes there. Nothing of this partition is published until \
         `tidings adopt` has taken it over, or it was removed from the stream"
    )]
    Foreign {
        /// The partition.
        partition: i32,
        /// Where.
        stream_seq: u64,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The broker did not answer.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// The database did not answer.
    #[error(transparent)]
    Database(#[from] DatabaseError),
}

/// Brings both in line; returns the last sequence of the stream, after which publishing goes on.
///
/// `history` is the life of the database in which that holds.
pub(super) async fn reconcile(
    pool: &Pool,
    history: u64,
    publisher: &dyn Publisher,
    source: &str,
    tenancy: &Tenancy,
    horizon: Duration,
) -> Result<u64, Stopped> {
    let position = publisher.position().await?;
    if position.incarnation != publisher.incarnation() {
        return Err(BrokerError::Unreachable("the stream was made anew while it was opened".into()).into());
    }
    let anchor = anchor(pool, tenancy).await?;
    let there = match anchor {
        Some(anchor) if anchor.is_within(&position) => match publisher.read(anchor.stream_seq).await? {
            Some(message) => Some(hash(pool, event_id(&message)).await?),
            None => None,
        },
        Some(_) | None => None,
    };
    let from = match compare(anchor, &position, there) {
        Standing::Same { from } => from,
        Standing::Different => {
            let common = common(pool, publisher, tenancy, &position).await?;
            let opened = open_again(pool, history, tenancy, &position, common, horizon).await?;
            tracing::error!(
                partition = tenancy.partition.0,
                opened,
                common,
                last = position.last_seq,
                "the broker lost what it had confirmed: these events are published again, in their order"
            );
            telemetry::opened_again(tenancy.partition, opened);
            common
        }
    };
    let first = (from + 1).max(position.first_seq);
    let mut confirmed = 0;
    let tail = stream::iter(first..=position.last_seq)
        .map(|seq| async move { Ok::<_, BrokerError>(publisher.read(seq).await?.map(|message| (seq, message))) });
    let mut tail = std::pin::pin!(tail.buffered(READS).try_filter_map(async |found| Ok(found)));
    loop {
        let mut chunk = Vec::new();
        let mut bytes = 0;
        while chunk.len() < CHUNK
            && bytes < CHUNK_BYTES
            && let Some(found) = tail.try_next().await?
        {
            bytes += found.1.payload.len();
            chunk.push(found);
        }
        if chunk.is_empty() {
            break;
        }
        confirmed += confirm_chunk(pool, history, source, tenancy, position.incarnation, &chunk).await?;
    }
    if confirmed > 0 {
        tracing::info!(
            partition = tenancy.partition.0,
            confirmed,
            "found stored events that were not recorded, and confirmed them"
        );
        telemetry::confirmed(tenancy.partition, confirmed);
    }
    Ok(position.last_seq)
}

/// Of an event that the database knows: id, seq, hash of the id, version, data.
type Known = (String, i64, i64, Option<i64>, Vec<u8>);

/// Maps messages to rows by id, version and data; all of them must be ours.
async fn confirm_chunk(
    pool: &Pool,
    history: u64,
    source: &str,
    tenancy: &Tenancy,
    incarnation: i64,
    chunk: &[(u64, Message)],
) -> Result<u64, Stopped> {
    let foreign = |stream_seq: u64, what| Stopped::Foreign { partition: tenancy.partition.0, stream_seq, what };
    let mut envelopes = Vec::with_capacity(chunk.len());
    for (stream_seq, message) in chunk {
        let envelope = Envelope::read(&message.headers, message.payload.clone())
            .map_err(|_| foreign(*stream_seq, "it is no CloudEvent"))?;
        if envelope.source != source {
            return Err(foreign(*stream_seq, "its source is another one"));
        }
        envelopes.push((*stream_seq, envelope, is_tombstone(message)));
    }
    let ids: Vec<String> = envelopes.iter().map(|(_, envelope, _)| envelope.id.clone()).collect();
    let partition = tenancy.partition.0;
    let matching = pool.run(async |connection| {
        let rows: Vec<Known> = RunQueryDsl::load(Match { partition, ids }, connection).await?;
        Ok(rows)
    });
    let rows = matching.await?;
    let rows: HashMap<&str, &Known> = rows.iter().map(|row| (row.0.as_str(), row)).collect();
    let mut evidence = Vec::with_capacity(envelopes.len());
    let (mut themselves, mut tombstones) = (Vec::new(), Vec::new());
    for (stream_seq, envelope, is_tombstone) in &envelopes {
        let (_, seq, id_hash, version, data) =
            rows.get(envelope.id.as_str()).ok_or_else(|| foreign(*stream_seq, "its id is unknown"))?;
        if envelope.version.map(|version| version.0) != *version {
            return Err(foreign(*stream_seq, "its id belongs to an event with another version"));
        }
        if !is_tombstone && envelope.data != *data {
            return Err(foreign(*stream_seq, "its id belongs to an event with other data"));
        }
        let stream_seq = i64::try_from(*stream_seq).unwrap_or(i64::MAX);
        evidence.push(Evidence { seq: *seq, id_hash: *id_hash, stream_seq });
        if *is_tombstone { tombstones.push(*seq) } else { themselves.push(*seq) }
    }
    // Before the anchor moves on, or a death in between would leave it unsaid for ever.
    pool.run(async |connection| stored_after_all(connection, themselves).await).await?;
    if !tombstones.is_empty() {
        pool.run(async |connection| tombstone_after_all(connection, tombstones).await).await?;
    }
    let tenancy = *tenancy;
    let confirming =
        pool.run_in(history, async |connection| confirm(connection, &tenancy, incarnation, evidence).await);
    let done = confirming.await?;
    if !done.ours {
        return Err(Stopped::LeaseLost);
    }
    Ok(u64::try_from(done.ended).unwrap_or(0))
}

/// The last sequence up to which the stream is what was confirmed, or before which it has nothing any more.
async fn common(
    pool: &Pool,
    publisher: &dyn Publisher,
    tenancy: &Tenancy,
    position: &Position,
) -> Result<u64, Stopped> {
    let (partition, incarnation) = (tenancy.partition.0, position.incarnation);
    let up_to = i64::try_from(position.last_seq).unwrap_or(i64::MAX);
    let looking = pool.run(async |connection| {
        let rows: Vec<(i64, i64)> =
            RunQueryDsl::load(Recorded { partition, incarnation, up_to, rows: WALK }, connection).await?;
        Ok(rows)
    });
    let recorded = looking.await?;
    for (stream_seq, id_hash) in &recorded {
        let stream_seq = u64::try_from(*stream_seq).unwrap_or(0);
        if stream_seq < position.first_seq {
            // Gone by age or limits: nothing speaks against it.
            return Ok(stream_seq);
        }
        if let Some(message) = publisher.read(stream_seq).await?
            && hash(pool, event_id(&message)).await? == *id_hash
        {
            return Ok(stream_seq);
        }
    }
    let before = recorded.last().map_or(0, |(stream_seq, _)| u64::try_from(*stream_seq - 1).unwrap_or(0));
    // What has expired is no loss.
    Ok(before.max(position.first_seq.saturating_sub(1)))
}

/// Opens the rows again whose evidence is beyond `common` in this stream, or young and of an earlier one; then moves the
/// anchor. Dying in between does no harm: the anchor still says that the streams differ.
async fn open_again(
    pool: &Pool,
    history: u64,
    tenancy: &Tenancy,
    position: &Position,
    common: u64,
    horizon: Duration,
) -> Result<u64, Stopped> {
    let common = i64::try_from(common).unwrap_or(i64::MAX);
    let (partition, node, epoch) = (tenancy.partition.0, tenancy.node, tenancy.epoch.0);
    let incarnation = position.incarnation;
    let horizon_ms = i64::try_from(horizon.as_millis()).unwrap_or(i64::MAX);
    let looking = pool.run(async |connection| {
        let since: DateTime<Utc> = RunQueryDsl::get_result(Since { partition, horizon_ms }, connection).await?;
        Ok(since)
    });
    let since = looking.await?;
    let mut opened = 0;
    loop {
        let statement = OpenAgain { partition, node, epoch, incarnation, common, since, rows: OPEN };
        let opening = pool.run_in(history, async |connection| {
            let counts: (i64, i64, i64) = RunQueryDsl::get_result(statement, connection).await?;
            Ok(counts)
        });
        let (ours, lost, rows) = opening.await?;
        if ours == 0 {
            return Err(Stopped::LeaseLost);
        }
        opened += u64::try_from(rows).unwrap_or(0);
        if lost == 0 {
            break;
        }
    }
    let moving = pool.run_in(history, async |connection| {
        let statement = MoveAnchor { partition, node, epoch, incarnation, stream_seq: common };
        let moved: usize = RunQueryDsl::execute(statement, connection).await?;
        Ok(moved)
    });
    if moving.await? == 0 { Err(Stopped::LeaseLost) } else { Ok(opened) }
}

async fn anchor(pool: &Pool, tenancy: &Tenancy) -> Result<Option<Anchor>, Stopped> {
    let statement = ReadAnchor { partition: tenancy.partition.0, node: tenancy.node, epoch: tenancy.epoch.0 };
    let reading = pool.run(async |connection| {
        let rows: Vec<(Option<i64>, Option<i64>, Option<i64>)> = RunQueryDsl::load(statement, connection).await?;
        Ok(rows)
    });
    let rows = reading.await?;
    let Some((incarnation, stream_seq, id_hash)) = rows.as_slice().first() else { return Err(Stopped::LeaseLost) };
    Ok(incarnation.zip(*stream_seq).map(|(incarnation, stream_seq)| Anchor {
        incarnation,
        stream_seq: u64::try_from(stream_seq).unwrap_or(0),
        id_hash: *id_hash,
    }))
}

async fn hash(pool: &Pool, id: String) -> Result<i64, Stopped> {
    let hashing = pool.run(async |connection| {
        let hash: i64 = RunQueryDsl::get_result(HashId { id }, connection).await?;
        Ok(hash)
    });
    Ok(hashing.await?)
}

fn is_tombstone(message: &Message) -> bool {
    message.headers.iter().any(|(name, value)| name.eq_ignore_ascii_case("ce-tombstone") && value == "true")
}

/// Empty for a message that is none of ours; its hash is none of ours either.
pub(super) fn event_id(message: &Message) -> String {
    Envelope::read(&message.headers, message.payload.clone()).map(|envelope| envelope.id).unwrap_or_default()
}

statement! {
    struct ReadAnchor { partition: Integer = i32, node: Uuid = uuid::Uuid, epoch: BigInt = i64 }
    -> (Nullable<BigInt>, Nullable<BigInt>, Nullable<BigInt>);
    "SELECT anchor_incarnation, anchor_stream_seq, anchor_id_hash FROM tidings.partition
      WHERE id = {partition} AND owner = {node} AND epoch = {epoch}"
}

statement! {
    pub(super) struct HashId { id: Text = String } -> BigInt;
    "SELECT hashtextextended({id} COLLATE \"C\", 0)"
}

statement! {
    struct Match { partition: Integer = i32, ids: Array<Text> = Vec<String> }
    -> (Text, BigInt, BigInt, Nullable<BigInt>, Binary);
    "SELECT e.id, e.seq, hashtextextended(e.id, 0), e.version, e.data
       FROM unnest({ids}) AS u(id) CROSS JOIN LATERAL (SELECT * FROM tidings.event e WHERE e.id = u.id OFFSET 0) e
      WHERE e.partition = {partition}"
}

statement! {
    /// Only what was confirmed within a day: what the broker lost of it is the end of the stream.
    struct Recorded { partition: Integer = i32, incarnation: BigInt = i64, up_to: BigInt = i64, rows: BigInt = i64 }
    -> (BigInt, BigInt);
    "SELECT c.stream_seq, hashtextextended(e.id, 0)
       FROM (SELECT c.seq, c.stream_seq FROM tidings.confirmation c
              WHERE c.partition = {partition} AND c.incarnation = {incarnation} AND c.stream_seq <= {up_to}
                AND c.confirmed_at > now() - interval '1 day'
              ORDER BY c.stream_seq DESC LIMIT {rows}) c
       JOIN tidings.event e ON e.seq = c.seq
      ORDER BY c.stream_seq DESC"
}

statement! {
    /// So long before the last confirmation: the time since then is an outage, in which nothing could be lost.
    struct Since { partition: Integer = i32, horizon_ms: BigInt = i64 } -> Timestamptz;
    "SELECT least(now(), coalesce(max(c.confirmed_at), now())) - {horizon_ms} * interval '1 millisecond'
       FROM tidings.confirmation c WHERE c.partition = {partition}"
}

statement! {
    /// Evidence that has turned out wrong goes; the duty it had ended is there again, a tombstone as a tombstone.
    struct OpenAgain {
        partition: Integer = i32,
        node: Uuid = uuid::Uuid,
        epoch: BigInt = i64,
        incarnation: BigInt = i64,
        common: BigInt = i64,
        since: Timestamptz = DateTime<Utc>,
        rows: BigInt = i64,
    } -> (BigInt, BigInt, BigInt);
    "WITH ours AS (
        SELECT p.id FROM tidings.partition p
         WHERE p.id = {partition} AND p.owner = {node} AND p.epoch = {epoch} FOR SHARE
     ), lost AS (
        SELECT c.ctid FROM tidings.confirmation c, ours
         WHERE c.partition = ours.id
           AND ((c.incarnation = {incarnation} AND c.stream_seq > {common})
                OR (c.incarnation <> {incarnation} AND c.confirmed_at > {since}))
         LIMIT {rows}
     ), gone AS (
        DELETE FROM tidings.confirmation c USING lost WHERE c.ctid = lost.ctid RETURNING c.seq
     ), opened AS (
        INSERT INTO tidings.pending (partition, seq, lane, id_hash, state)
        SELECT e.partition, e.seq, tidings.lane(e.aggregate_type, e.aggregate_id, e.id), hashtextextended(e.id, 0),
               CASE WHEN EXISTS (SELECT FROM tidings.discarded d WHERE d.seq = e.seq) THEN 'tombstone' ELSE 'ready' END::tidings.pending_state
          FROM tidings.event e WHERE e.seq IN (SELECT seq FROM gone) AND e.partition = {partition}
        ON CONFLICT (partition, seq) DO NOTHING
        RETURNING 1
     )
     SELECT (SELECT count(*) FROM ours), (SELECT count(*) FROM gone), (SELECT count(*) FROM opened)"
}

statement! {
    struct MoveAnchor {
        partition: Integer = i32,
        node: Uuid = uuid::Uuid,
        epoch: BigInt = i64,
        incarnation: BigInt = i64,
        stream_seq: BigInt = i64,
    } -> Bool;
    "UPDATE tidings.partition SET anchor_incarnation = {incarnation}, anchor_stream_seq = {stream_seq}, anchor_id_hash = NULL
      WHERE id = {partition} AND owner = {node} AND epoch = {epoch}"
}

/// Reads of the stream that are under way at once.
pub(super) const READS: usize = 64;
pub(super) const CHUNK: usize = 500;
pub(super) const CHUNK_BYTES: usize = 8 * 1024 * 1024;
/// How far back the place is looked for from which on the stream differs.
const WALK: i64 = 10_000;
const OPEN: i64 = 5_000;
