//! Step 4: record that the broker stored events, and end their pending rows.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use diesel::sql_types::{Array, BigInt, Bool, Integer, Uuid};
use diesel_async::{AsyncPgConnection, RunQueryDsl};

use super::lease::Tenancy;
use super::link::Link;
use super::publish::{Interrupted, Tenure};
use super::task::Task;
use crate::failpoint::{failpoint, left_out};
use crate::postgres::{Error as DatabaseError, statement};
use crate::telemetry;

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

/// The lanes of a batch, and what came of it.
pub(super) type Confirming = (Vec<i64>, Result<Confirmed, DatabaseError>);

impl Tenure {
    /// One confirmation in flight; what is acknowledged meanwhile makes the next batch. It runs by itself, so that its
    /// connection comes back while the pass waits for something else.
    pub(super) fn confirm(&mut self, link: &mut Link, idle: bool, now: Instant) -> Option<Task<Confirming>> {
        let lingered = link.stored_at.is_some_and(|at| at + LINGER <= now);
        if link.stored.is_empty() || !(idle || lingered || link.stored.len() >= CONFIRM_AT) {
            return None;
        }
        let up_to = i64::try_from(link.chain.last()).unwrap_or(i64::MAX);
        let (ready, later) = std::mem::take(&mut link.stored).into_iter().partition(|(_, e)| e.stream_seq <= up_to);
        link.stored = later;
        let ready: VecDeque<(i64, Evidence)> = ready;
        if ready.is_empty() {
            // An earlier one has no answer yet.
            link.stored_at = Some(now);
            return None;
        }
        link.stored_at = (!link.stored.is_empty()).then_some(now);
        let (lanes, evidence): (Vec<i64>, Vec<Evidence>) = ready.into_iter().unzip();
        let (pool, history) = (self.ground.pool.clone(), link.history);
        let (tenancy, incarnation) = (self.tenancy, link.publisher.incarnation());
        // Not on the runtime of the link, which may end before it: the next one begins when this has an answer.
        let engine = self.ground.pool.engine().clone();
        Some(Task::spawn_on(&engine, async move {
            let step = async |connection: &mut _| confirm(connection, &tenancy, incarnation, evidence).await;
            let confirming = pool.run_in(history, step);
            (lanes, confirming.await)
        }))
    }

    pub(super) fn confirmed(&mut self, done: Option<Confirming>) -> Result<(), Interrupted> {
        let Some((lanes, confirmed)) = done else { return Err(DatabaseError::Stopping.into()) };
        let confirmed = confirmed?;
        failpoint!("relay::confirmed");
        telemetry::confirmed(self.tenancy.partition, u64::try_from(confirmed.ended).unwrap_or(0));
        self.still_ours(confirmed.ours)?;
        lanes.into_iter().for_each(|lane| self.lanes.done(lane));
        Ok(())
    }
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
        SELECT ended.seq, {partition}, {incarnation}, ended.stream_seq, {epoch} FROM ended
     )
     SELECT (SELECT count(*) FROM ours), (SELECT count(*) FROM ended)"
}

const CONFIRM_AT: usize = 500;
/// How long a stored event may wait for company on its way to the evidence.
pub(super) const LINGER: Duration = Duration::from_millis(5);
