//! What waits in the outbox, how long it has waited, and who could be at work on it: one statement for all partitions.

use std::collections::BTreeMap;
use std::time::Duration;

use diesel::sql_types::{Array, BigInt, Bool, Integer, Nullable, Text};
use diesel_async::{AsyncPgConnection, RunQueryDsl};

use crate::postgres::statement;

/// The outbox of one database at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Backlog {
    pub(crate) source: Option<String>,
    pub(crate) paused: bool,
    pub(crate) able_nodes: u64,
    pub(crate) dead: u64,
    pub(crate) partitions: BTreeMap<i32, Waiting>,
}

/// What waits in one partition.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub(crate) owned: bool,
    /// Events that could go or wait behind another; not those that are dead or due later. Counted up to a bound, and
    /// reckoned from the numbers of the rows above it.
    pub(crate) events: u64,
    /// The age of the oldest event that nothing holds: of a delayed one since it is due.
    pub(crate) oldest: Option<Duration>,
    /// Nothing that could go was found so far, and there is more to read.
    pub(crate) reads_on: bool,
    /// Lanes with something behind a dead event, and since when the first of those is dead.
    pub(crate) held_lanes: u64,
    pub(crate) held_for: Option<Duration>,
}

/// From which row of each partition the next look reads on. Where all that a look reads is held, dead or due later, the
/// next one reads on behind it, so that the cost of a look stays the same whatever stands in front.
#[derive(Debug, Clone, Default)]
pub(crate) struct Floors {
    partitions: BTreeMap<i32, Floor>,
    looks: u32,
    still: u32,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Floor {
    seq: i64,
    /// Events that wait below it.
    events: u64,
}

impl Floors {
    /// Whether the last look found only what cannot go in some partition, and more behind it.
    fn note(&mut self, moved: BTreeMap<i32, Floor>) -> bool {
        let reads_on = !moved.is_empty();
        self.partitions.extend(moved);
        self.looks += 1;
        self.still = if reads_on { 0 } else { self.still + 1 };
        // What is below a floor may have been freed, or become visible late.
        if self.still >= FORGET_AFTER_STILL || self.looks >= FORGET_AFTER {
            *self = Floors::default();
        }
        reads_on
    }
}

/// Looks, and says whether some partition should be read on soon.
pub(crate) async fn look(
    connection: &mut AsyncPgConnection,
    floors: &mut Floors,
    partitions: usize,
) -> diesel::QueryResult<(Backlog, bool)> {
    let rows = i64::try_from(ROWS / partitions.max(1)).unwrap_or(0).max(LEAST_ROWS);
    let statement = Look {
        partitions: floors.partitions.keys().copied().collect(),
        floors: floors.partitions.values().map(|floor| floor.seq).collect(),
        rows,
        letters: LETTERS,
        heads: HEADS,
        fresh_ms: i64::try_from(FRESH.as_millis()).unwrap_or(i64::MAX),
    };
    let found: Vec<Row> = RunQueryDsl::load(statement, connection).await?;
    let mut backlog = Backlog::default();
    let mut moved = BTreeMap::new();
    for ((source, paused, able, dead), (id, owned, held_lanes, held_ms), (waiting, looked, first, last, newest), age) in
        found
    {
        backlog.source = source;
        backlog.paused = paused;
        backlog.able_nodes = count(able);
        backlog.dead = count(dead);
        let more = looked >= rows;
        let below = floors.partitions.get(&id).map_or(0, |floor| floor.events);
        let reads_on = more && age.is_none();
        if reads_on {
            moved.extend(last.map(|seq| (id, Floor { seq, events: below + count(waiting) })));
        }
        let events = below + if more { reckoned(waiting, looked, first, last, newest) } else { count(waiting) };
        let (oldest, held_for) = (age.map(millis), held_ms.map(millis));
        let waiting = Waiting { owned, events, oldest, reads_on, held_lanes: count(held_lanes), held_for };
        backlog.partitions.insert(id, waiting);
    }
    let reads_on = floors.note(moved);
    Ok((backlog, reads_on))
}

/// The rows that were not counted, as dense as those that were.
fn reckoned(waiting: i64, looked: i64, first: Option<i64>, last: Option<i64>, newest: Option<i64>) -> u64 {
    let (Some(first), Some(last), Some(newest)) = (first, last, newest) else { return count(waiting) };
    let dense = (looked - 1) as f64 / (last - first).max(1) as f64;
    count(waiting) + ((newest - last).max(0) as f64 * dense) as u64
}

fn count(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// A time of a row may be ahead of ours: it is no age then.
fn millis(number: i64) -> Duration {
    Duration::from_millis(count(number))
}

type Row = (
    (Option<String>, bool, i64, i64),
    (i32, bool, i64, Option<i64>),
    (i64, i64, Option<i64>, Option<i64>, Option<i64>),
    Option<i64>,
);

statement! {
    /// Every part has a bound. The rows of a partition are read from its floor, in the order of the outbox, up to `rows`;
    /// whether one of them is held is asked row by row, in a scalar subquery that no planner turns into a join with all
    /// that waits, and only until the first that is not. Dead letters are counted up to `letters`; what is held is
    /// asked of the `heads` oldest.
    ///
    /// Whether the relay is paused is read by name: the column is younger than the table.
    ///
    /// An age is of the append, and of a delayed event since it is due. A lane behind a delayed event is held on purpose.
    struct Look {
        partitions: Array<Integer> = Vec<i32>,
        floors: Array<BigInt> = Vec<i64>,
        rows: BigInt = i64,
        letters: BigInt = i64,
        heads: BigInt = i64,
        fresh_ms: BigInt = i64,
    } -> (
        (Nullable<Text>, Bool, BigInt, BigInt),
        (Integer, Bool, BigInt, Nullable<BigInt>),
        (BigInt, BigInt, Nullable<BigInt>, Nullable<BigInt>, Nullable<BigInt>),
        Nullable<BigInt>,
    );
    "WITH dead AS MATERIALIZED (
        SELECT d.partition, d.seq, d.died_at FROM tidings.dead_letter d
         WHERE d.resolved_at IS NULL ORDER BY d.died_at LIMIT {letters}
     ), heads AS MATERIALIZED (
        SELECT q.partition, q.lane, min(q.seq) AS seq, min(d.died_at) AS since
          FROM (SELECT * FROM dead ORDER BY died_at LIMIT {heads}) d
          JOIN tidings.pending q ON q.partition = d.partition AND q.seq = d.seq AND q.state = 'dead'
         GROUP BY q.partition, q.lane
     ), held AS MATERIALIZED (
        SELECT h.partition, count(*) AS lanes, min(h.since) AS since FROM heads h
         WHERE (SELECT true FROM tidings.pending b
                 WHERE b.partition = h.partition AND b.lane = h.lane AND b.seq > h.seq LIMIT 1)
         GROUP BY h.partition
     ), whole AS MATERIALIZED (
        SELECT s.source, to_jsonb(s) ->> 'paused_at' IS NOT NULL AS paused, (SELECT count(*) FROM dead) AS dead,
               (SELECT count(*) FROM tidings.node n
                 WHERE n.able AND n.heartbeat_at BETWEEN now() - {fresh_ms} * interval '1 millisecond'
                                                     AND now() + {fresh_ms} * interval '1 millisecond') AS able
          FROM tidings.setting s
     )
     SELECT whole.source, whole.paused, whole.able, whole.dead,
            p.id,
            coalesce(p.owner IS NOT NULL AND p.lease_until >= now() AND p.lease_until <= now() + p.lease_ttl, false),
            coalesce(held.lanes, 0), floor(extract(epoch FROM now() - held.since) * 1000)::bigint,
            w.waiting, w.looked, w.first, w.last,
            (SELECT x.seq FROM tidings.pending x WHERE x.partition = p.id AND w.looked >= {rows} ORDER BY x.seq DESC LIMIT 1),
            CASE WHEN isfinite(e.created_at) THEN floor(extract(epoch FROM
                now() - greatest(e.created_at, CASE WHEN e.not_before <= now() THEN e.not_before END)) * 1000)::bigint
                 WHEN e.seq IS NOT NULL THEN 0 END
       FROM tidings.partition p
      CROSS JOIN whole
       LEFT JOIN unnest({partitions}, {floors}) f(id, seq) ON f.id = p.id
       LEFT JOIN held ON held.partition = p.id
      CROSS JOIN LATERAL (
        SELECT count(*) FILTER (WHERE s.state <> 'dead' AND (s.state <> 'delayed' OR s.next_attempt_at <= now())) AS waiting,
               count(*) AS looked, min(s.seq) AS first, max(s.seq) AS last
          FROM (SELECT x.seq, x.state, x.next_attempt_at FROM tidings.pending x
                 WHERE x.partition = p.id AND x.seq > coalesce(f.seq, 0) ORDER BY x.seq LIMIT {rows}) s
      ) w
       LEFT JOIN LATERAL (
        SELECT s.seq
          FROM (SELECT x.seq, x.lane, x.state, x.next_attempt_at FROM tidings.pending x
                 WHERE x.partition = p.id AND x.seq > coalesce(f.seq, 0) ORDER BY x.seq LIMIT {rows}) s
         WHERE s.state <> 'dead' AND (s.state <> 'delayed' OR s.next_attempt_at <= now())
           AND (SELECT true FROM tidings.pending h
                 WHERE h.partition = p.id AND h.lane = s.lane AND h.seq < s.seq AND h.state <> 'ready'
                   AND (h.state = 'dead' OR (h.state = 'delayed' AND h.next_attempt_at > now())) LIMIT 1) IS NULL
         ORDER BY s.seq LIMIT 1
      ) o ON true
       LEFT JOIN tidings.event e ON e.seq = o.seq
      ORDER BY p.id"
}

/// Rows counted in one look, all partitions together.
const ROWS: usize = 10_000;
const LEAST_ROWS: i64 = 100;
const LETTERS: i64 = 1_000;
const HEADS: i64 = 200;
/// A node whose heartbeat is older has ended, or is cut off: some leases of the usual length.
const FRESH: Duration = Duration::from_secs(60);
/// Looks until what is below the floors is read again: 5 minutes at the usual pace, once they stand still.
const FORGET_AFTER_STILL: u32 = 30;
/// The same where they never stand still.
const FORGET_AFTER: u32 = 1_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_counted_is_reckoned_from_the_numbers_of_the_rows() {
        assert_eq!(reckoned(2_500, 2_500, Some(1), Some(9_997), Some(999_997)), 250_000);
        assert_eq!(reckoned(0, 2_500, Some(1), Some(2_500), None), 0);
    }

    #[test]
    fn floors_are_forgotten_in_the_end_whether_they_move_or_not() {
        let moved = |seq| BTreeMap::from([(0, Floor { seq, events: 5 })]);
        let mut floors = Floors::default();
        assert!(floors.note(moved(7)));
        for _ in 1..FORGET_AFTER_STILL {
            assert!(!floors.note(BTreeMap::new()));
            assert_eq!(floors.partitions.get(&0).map(|floor| floor.seq), Some(7));
        }
        floors.note(BTreeMap::new());
        assert!(floors.partitions.is_empty());
        for seq in 1..i64::from(FORGET_AFTER) {
            floors.note(moved(seq));
            assert!(!floors.partitions.is_empty());
        }
        floors.note(moved(1_000));
        assert!(floors.partitions.is_empty());
    }
}
