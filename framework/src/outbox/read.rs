//! Step 2, its order: what to read next, and what follows from what was read. The cost of a read does not depend on how
//! much is held or was confirmed: rows are read from a cursor on, lanes above what is in hand of them.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::claim::{ClaimedRow, Window, claim, due, lowest, sweep, top};
use super::lease::Tenancy;
use crate::postgres::{Error, Pool};
use crate::protocol::lanes::{Lanes, Row, Verdict};
use crate::protocol::sweep::Sweep;

/// The bounds of what is read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    pub(super) rows: usize,
    pub(super) bytes: i64,
    pub(super) row_bytes: i64,
    pub(super) ceiling_ms: i64,
}

/// What was read of a partition so far, in one tenure.
pub(super) struct Reader {
    tenancy: Tenancy,
    bounds: Bounds,
    /// Rows are scanned above this.
    above: i64,
    /// The highest place seen.
    seen: i64,
    /// There may be more above.
    more: bool,
    /// The place of the last row is not known: something that is held may stand above it.
    top_known: bool,
    /// Lanes to ask for what follows in them.
    lanes: BTreeSet<i64>,
    /// Read, but something may stand before them in their lane.
    asked: Vec<ClaimedRow>,
    /// How often rows had been given back when the question was asked that is open.
    given_back: u64,
    due_at: Instant,
    sweep: Sweep,
    swept: i64,
}

/// One question to the database.
#[derive(Debug)]
pub(super) enum Query {
    Claim(Window),
    Lowest(Vec<(i64, i64)>),
    Due,
    Sweep { above: i64, up_to: i64, held: Vec<i64> },
    Top { above: i64 },
}

/// Its answer.
#[derive(Debug)]
pub(super) enum Answer {
    Claimed { rows: Vec<ClaimedRow>, limit: usize, lanes: Vec<i64> },
    Lowest(Vec<Row>),
    Due(Vec<(i64, i64)>),
    Swept { rows: Vec<(i64, i64)>, took: Duration },
    Top(Option<i64>),
}

impl Reader {
    pub(super) fn new(tenancy: Tenancy, bounds: Bounds, now: Instant) -> Reader {
        Reader {
            tenancy,
            bounds,
            above: 0,
            seen: 0,
            more: true,
            top_known: false,
            lanes: BTreeSet::new(),
            asked: Vec::new(),
            given_back: 0,
            due_at: now,
            sweep: Sweep::new(now),
            swept: 0,
        }
    }

    /// Somebody says that there is more.
    pub(super) fn hint(&mut self) {
        self.more = true;
    }

    /// What to ask next, with room for so many rows.
    pub(super) fn next(&mut self, lanes: &mut Lanes, room: usize, now: Instant) -> Option<Query> {
        self.given_back = lanes.given_back();
        if !self.asked.is_empty() {
            let asked: BTreeSet<i64> = self.asked.iter().map(|claimed| claimed.row.lane).collect();
            return Some(Query::Lowest(asked.into_iter().map(|lane| (lane, lanes.above(lane))).collect()));
        }
        if self.due_at <= now {
            return Some(Query::Due);
        }
        if self.sweep.is_due(now) {
            return Some(Query::Sweep { above: self.swept, up_to: self.above, held: lanes.held(now) });
        }
        self.lanes.extend(lanes.over(now));
        let rows = room.min(self.bounds.rows);
        if rows > 0 && (self.more || !self.lanes.is_empty()) {
            lanes.make_room();
            let mut asked = Vec::new();
            while asked.len() * SLICE < rows
                && let Some(lane) = self.lanes.pop_first()
            {
                asked.push((lane, lanes.above(lane)));
            }
            let scanned = rows.saturating_sub(asked.len() * SLICE);
            let scanned = if self.more { scanned.max(rows / 4).max(1) } else { 0 };
            return Some(Query::Claim(Window {
                partition: self.tenancy.partition,
                above: self.above,
                rows: i64::try_from(scanned).unwrap_or(i64::MAX),
                held: lanes.held(now),
                lanes: asked,
                slice: i64::try_from(SLICE).unwrap_or(i64::MAX),
                bytes: self.bounds.bytes,
                row_bytes: self.bounds.row_bytes,
                ceiling_ms: self.bounds.ceiling_ms,
            }));
        }
        if room > 0 && !self.top_known {
            return Some(Query::Top { above: self.above });
        }
        None
    }

    /// Takes an answer; returns what is claimed by it, in the order in which it may go.
    pub(super) fn took(&mut self, answer: Answer, lanes: &mut Lanes, now: Instant) -> Vec<ClaimedRow> {
        match answer {
            Answer::Claimed { rows, limit, lanes: sliced } => self.claimed(rows, limit, sliced, lanes, now),
            Answer::Lowest(lowest) => self.lowest(&lowest, lanes, now),
            Answer::Due(rows) => {
                self.due_at = now + DUE_EVERY;
                for (seq, lane) in rows {
                    lanes.release(lane, now);
                    if lanes.is_missed(lane, seq, now) {
                        self.lanes.insert(lane);
                    }
                }
                Vec::new()
            }
            Answer::Swept { rows, took } => {
                let all = rows.len() < SWEEP_ROWS;
                self.swept = if all { 0 } else { rows.last().map_or(0, |(seq, _)| *seq) };
                self.sweep.done(now, took, all);
                let missed = rows.into_iter().filter(|(seq, lane)| lanes.is_missed(*lane, *seq, now));
                self.lanes.extend(missed.map(|(_, lane)| lane));
                Vec::new()
            }
            Answer::Top(top) => {
                self.top_known = true;
                self.reached(top.unwrap_or(0));
                Vec::new()
            }
        }
    }

    fn claimed(
        &mut self,
        rows: Vec<ClaimedRow>,
        limit: usize,
        sliced: Vec<i64>,
        lanes: &mut Lanes,
        now: Instant,
    ) -> Vec<ClaimedRow> {
        let bytes: i64 = rows.iter().map(|claimed| claimed.bytes).sum();
        let cut = bytes >= self.bounds.bytes;
        let scanned = rows.iter().filter(|claimed| !claimed.row.next_in_lane);
        let (count, last) = scanned.fold((0, 0), |(count, _), claimed| (count + 1, claimed.row.seq));
        if limit > 0 {
            self.more = cut || count >= limit;
            self.top_known = false;
            if self.more {
                self.seen = self.seen.max(last);
                self.above = self.above.max(last);
            } else {
                self.reached(last);
            }
        }
        for lane in sliced {
            let of_lane = rows.iter().filter(|claimed| claimed.row.next_in_lane && claimed.row.lane == lane).count();
            if cut || of_lane >= SLICE {
                self.lanes.insert(lane);
            }
        }
        let mut taken = Vec::with_capacity(rows.len());
        let current = self.is_current(lanes);
        for mut claimed in rows {
            claimed.row.next_in_lane &= current;
            self.judge(claimed, lanes, now, &mut taken);
        }
        taken
    }

    /// Nothing was given back since the question was asked: what it says to follow in a lane follows what is in hand.
    fn is_current(&self, lanes: &Lanes) -> bool {
        self.given_back == lanes.given_back()
    }

    fn judge(&mut self, claimed: ClaimedRow, lanes: &mut Lanes, now: Instant, taken: &mut Vec<ClaimedRow>) {
        match lanes.judge(&claimed.row, now) {
            Verdict::Take => taken.push(claimed),
            Verdict::Ask => self.asked.push(claimed),
            Verdict::Known | Verdict::Held => {}
        }
    }

    fn lowest(&mut self, lowest: &[Row], lanes: &mut Lanes, now: Instant) -> Vec<ClaimedRow> {
        if !self.is_current(lanes) {
            self.lanes.extend(std::mem::take(&mut self.asked).into_iter().map(|claimed| claimed.row.lane));
            return Vec::new();
        }
        let lowest: std::collections::HashMap<i64, &Row> = lowest.iter().map(|row| (row.lane, row)).collect();
        let mut taken = Vec::new();
        let mut first = BTreeSet::new();
        for mut claimed in std::mem::take(&mut self.asked) {
            let lane = claimed.row.lane;
            let Some(row) = lowest.get(&lane) else { continue };
            if first.insert(lane) {
                if row.seq == claimed.row.seq {
                    claimed.row = Row { next_in_lane: true, blocked: row.blocked, ..claimed.row };
                } else if row.blocked == crate::protocol::lanes::Blocked::No {
                    self.lanes.insert(lane);
                    continue;
                } else {
                    // It holds all that was read of its lane.
                    let _ = lanes.judge(row, now);
                }
            }
            match lanes.judge(&claimed.row, now) {
                Verdict::Take => taken.push(claimed),
                Verdict::Ask => {
                    self.lanes.insert(lane);
                }
                Verdict::Known | Verdict::Held => {}
            }
        }
        taken
    }

    /// Nothing stands above this place now. What is appended at this very moment may become visible below it, so the next
    /// scan begins a little earlier.
    fn reached(&mut self, top: i64) {
        self.seen = self.seen.max(top);
        self.above = self.above.max(self.seen - RELOOK);
    }

    /// Above which place something new would stand.
    pub(super) fn floor(&self) -> i64 {
        self.above
    }

    /// Nothing is in hand.
    pub(super) fn rest(&mut self) {
        self.sweep.rest();
    }

    /// When something is to be asked that nobody gives a hint for; what comes due is found by the look for all at rest.
    pub(super) fn next_look(&self, lanes: &Lanes) -> Instant {
        lanes.next_over().map_or(self.sweep.at(), |over| over.min(self.sweep.at()))
    }

    /// Asks, on a connection of the pool, which has it back before anything is published.
    pub(super) async fn ask_database(
        pool: Pool,
        source: String,
        tenancy: Tenancy,
        ceiling_ms: i64,
        query: Query,
    ) -> Result<Answer, Error> {
        let partition = tenancy.partition;
        match query {
            Query::Claim(window) => {
                let limit = usize::try_from(window.rows).unwrap_or(usize::MAX);
                let lanes = window.lanes.iter().map(|(lane, _)| *lane).collect();
                let rows = pool.run(async |connection| claim(connection, &source, window).await).await?;
                Ok(Answer::Claimed { rows, limit, lanes })
            }
            Query::Lowest(lanes) => {
                let rows = pool.run(async |connection| lowest(connection, partition, lanes, ceiling_ms).await).await?;
                Ok(Answer::Lowest(rows))
            }
            Query::Due => {
                let limit = i64::try_from(DUE_ROWS).unwrap_or(i64::MAX);
                let rows = pool.run(async |connection| due(connection, &tenancy, limit, ceiling_ms).await).await?;
                Ok(Answer::Due(rows))
            }
            Query::Sweep { above, up_to, held } => {
                let asked = Instant::now();
                let limit = i64::try_from(SWEEP_ROWS).unwrap_or(i64::MAX);
                let sweeping =
                    pool.run(async |connection| sweep(connection, partition, above, up_to, held, limit).await);
                let rows = sweeping.await?;
                Ok(Answer::Swept { rows, took: asked.elapsed() })
            }
            Query::Top { above } => {
                let top = pool.run(async |connection| top(connection, partition, above).await).await?;
                Ok(Answer::Top(top))
            }
        }
    }
}

/// Rows read of a lane at once, where it has to be asked for.
const SLICE: usize = 100;
/// How far below the highest place seen the next scan begins.
const RELOOK: i64 = 1_000;
const DUE_ROWS: usize = 1_000;
const DUE_EVERY: Duration = Duration::from_millis(200);
const SWEEP_ROWS: usize = 1_000;
