//! Step 4: record that the broker stored events, and end their pending rows.

use diesel::sql_types::{Array, BigInt, Bool, Integer, Uuid};
use diesel_async::{AsyncPgConnection, RunQueryDsl};

use super::lease::Tenancy;
use crate::failpoint::left_out;
use crate::postgres::statement;

/// The evidence for one event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Evidence {
    pub(super) seq: i64,
    pub(super) id_hash: i64,
    pub(super) stream_seq: i64,
}

/// What a confirmation did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Confirmed {
    /// We own the partition under this epoch; otherwise nothing was changed.
    pub(super) ours: bool,
    /// Pending rows that were ended.
    pub(super) ended: i64,
}

/// Records a batch. Only the holder of the current epoch changes anything (invariant 2).
pub(super) async fn confirm(
    connection: &mut AsyncPgConnection,
    tenancy: &Tenancy,
    incarnation: i64,
    mut batch: Vec<Evidence>,
) -> diesel::QueryResult<Confirmed> {
    batch.sort_by_key(|evidence| evidence.stream_seq);
    let last = batch.last().copied();
    let statement = Confirm {
        partition: tenancy.partition.0,
        node: tenancy.node,
        epoch: tenancy.epoch.0,
        incarnation,
        anchor_seq: last.map_or(0, |evidence| evidence.stream_seq),
        anchor_hash: last.map_or(0, |evidence| evidence.id_hash),
        seqs: batch.iter().map(|evidence| evidence.seq).collect(),
        id_hashes: batch.iter().map(|evidence| evidence.id_hash).collect(),
        stream_seqs: batch.iter().map(|evidence| evidence.stream_seq).collect(),
        unchecked: left_out!("relay::skip-epoch-check"),
    };
    let (ours, ended): (i64, i64) = RunQueryDsl::get_result(statement, connection).await?;
    Ok(Confirmed { ours: ours == 1, ended })
}

statement! {
    /// One statement: check owner and epoch and move the anchor, end the rows by seq *and* id hash (a reused seq never
    /// confirms another event), and let what was ended be the evidence. `unchecked` is a test's doing, and false in any
    /// build without failpoints.
    struct Confirm {
        partition: Integer = i32,
        node: Uuid = uuid::Uuid,
        epoch: BigInt = i64,
        incarnation: BigInt = i64,
        anchor_seq: BigInt = i64,
        anchor_hash: BigInt = i64,
        seqs: Array<BigInt> = Vec<i64>,
        id_hashes: Array<BigInt> = Vec<i64>,
        stream_seqs: Array<BigInt> = Vec<i64>,
        unchecked: Bool = bool,
    } -> (BigInt, BigInt);
    "WITH ours AS (
        UPDATE tidings.partition p
           SET anchor_incarnation = {incarnation},
               anchor_stream_seq = CASE WHEN p.anchor_incarnation = {incarnation} AND p.anchor_stream_seq > {anchor_seq}
                                        THEN p.anchor_stream_seq ELSE {anchor_seq} END,
               anchor_id_hash = CASE WHEN p.anchor_incarnation = {incarnation} AND p.anchor_stream_seq > {anchor_seq}
                                     THEN p.anchor_id_hash ELSE {anchor_hash} END
         WHERE p.id = {partition} AND (p.owner = {node} AND p.epoch = {epoch} OR {unchecked})
        RETURNING p.id
     ), ended AS (
        DELETE FROM tidings.pending q
         USING unnest({seqs}, {id_hashes}, {stream_seqs}) AS u(seq, id_hash, stream_seq), ours
         WHERE q.partition = ours.id AND q.seq = u.seq AND q.id_hash = u.id_hash
        RETURNING q.seq, u.stream_seq
     ), evidence AS (
        INSERT INTO tidings.confirmation (seq, partition, incarnation, stream_seq, epoch)
        SELECT ended.seq, {partition}, {incarnation}, ended.stream_seq, {epoch} FROM ended ORDER BY ended.stream_seq
     )
     SELECT (SELECT count(*) FROM ours), (SELECT count(*) FROM ended)"
}
