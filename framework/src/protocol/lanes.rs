//! The queues of the aggregates inside a partition: which rows may be claimed, and what holds the others.
//!
//! Rows come in the order of their `seq`, but not every row is there at its time: one becomes visible when its transaction
//! commits. Within a lane that is the same order, so a lane is safe to go on as long as nothing stands between what was
//! claimed of it last and the row in hand. The row itself says so in most cases: its `previous` is the version claimed last,
//! or it has none. Everything else is asked for.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::backoff::Backoff;

/// What decides about a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// Its place in the outbox.
    pub seq: i64,
    /// Its lane.
    pub lane: i64,
    /// Its version in the aggregate, if it is ordered.
    pub version: Option<i64>,
    /// The version before.
    pub previous: Option<i64>,
    /// Whether it may go by itself.
    pub blocked: Blocked,
    /// The database was asked for what follows in this lane: nothing is left out before it.
    pub next_in_lane: bool,
}

/// Whether a row may go by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blocked {
    /// It may.
    No,
    /// Not before this long.
    For(Duration),
    /// Not before somebody resolves it.
    Dead,
}

/// What follows for a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is claimed.
    Take,
    /// It was claimed before.
    Known,
    /// Its lane waits.
    Held,
    /// Something may stand before it: ask for the lane, above what was claimed of it.
    Ask,
}

/// The lanes in memory. What is not in memory is asked for, so forgetting costs time only.
#[derive(Debug)]
pub struct Lanes {
    lanes: HashMap<i64, Lane>,
    holds: HashMap<i64, Hold>,
    limit: usize,
    given_back: u64,
}

#[derive(Debug, Clone, Copy)]
struct Lane {
    claimed: i64,
    version: Option<i64>,
    /// Claimed and not confirmed.
    in_hand: u32,
}

#[derive(Debug, Clone, Copy)]
struct Hold {
    /// `None` once the lane was asked for again.
    until: Option<Instant>,
    failures: u32,
}

impl Hold {
    fn lasts(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| until > now)
    }
}

impl Lanes {
    /// Remembers at most about this many lanes, and as many holds as [`MAX_HELD`].
    pub fn new(limit: usize) -> Lanes {
        Lanes { lanes: HashMap::new(), holds: HashMap::new(), limit, given_back: 0 }
    }

    /// Decides about a row, and remembers what follows.
    pub fn judge(&mut self, row: &Row, now: Instant) -> Verdict {
        if self.is_held(row.lane, now) {
            return Verdict::Held;
        }
        let known = self.lanes.get(&row.lane);
        // Of a lane with nothing in hand the database is asked from its beginning: what it shows then is not in hand.
        let anew = row.next_in_lane && known.is_some_and(|lane| lane.in_hand == 0);
        if !anew && known.is_some_and(|lane| row.seq <= lane.claimed) {
            return Verdict::Known;
        }
        match row.blocked {
            Blocked::No => {}
            Blocked::For(time) => {
                self.hold_until(row.lane, now + time);
                return Verdict::Held;
            }
            Blocked::Dead => {
                self.hold_until(row.lane, now + LOOK_AT_DEAD);
                return Verdict::Held;
            }
        }
        let continues = match known {
            _ if row.next_in_lane || row.version.is_none() => true,
            Some(lane) => lane.version.is_some() && lane.version == row.previous,
            None => row.previous.is_none(),
        };
        if !continues {
            return Verdict::Ask;
        }
        let lane = self.lanes.entry(row.lane).or_insert(Lane { claimed: 0, version: None, in_hand: 0 });
        *lane = Lane { claimed: row.seq, version: row.version, in_hand: lane.in_hand + 1 };
        Verdict::Take
    }

    /// From where on a lane is to be asked for: above what is in hand of it.
    pub fn above(&self, lane: i64) -> i64 {
        self.lanes.get(&lane).filter(|lane| lane.in_hand > 0).map_or(0, |lane| lane.claimed)
    }

    /// Whether a row that was found behind us needs to be asked for: it is not in hand, and its lane does not wait.
    pub fn is_missed(&self, lane: i64, seq: i64, now: Instant) -> bool {
        let in_hand = self.lanes.get(&lane).is_some_and(|known| known.in_hand > 0 && seq <= known.claimed);
        !in_hand && !self.is_held(lane, now)
    }

    /// A claimed row is confirmed.
    pub fn done(&mut self, lane: i64) {
        if let Some(lane) = self.lanes.get_mut(&lane) {
            lane.in_hand = lane.in_hand.saturating_sub(1);
        }
        // Nothing of a held lane is in hand but what was sent before; what it says of the failures since is out of date.
        if self.holds.get(&lane).is_some_and(|hold| hold.until.is_none()) {
            self.holds.remove(&lane);
        }
    }

    /// A claimed row is given back, and all behind it in its lane with it, each by a call: the lane goes on before the
    /// lowest of them, in whatever order they come.
    pub fn give_back_from(&mut self, lane: i64, seq: i64, previous: Option<i64>) {
        self.given_back += 1;
        if let Some(lane) = self.lanes.get_mut(&lane) {
            lane.in_hand = lane.in_hand.saturating_sub(1);
            if seq <= lane.claimed {
                (lane.claimed, lane.version) = (seq - 1, previous);
            }
        }
    }

    /// How often something was given back. What was asked before that is out of date: it may begin behind what was given
    /// back.
    pub fn given_back(&self) -> u64 {
        self.given_back
    }

    /// Makes room. Only before rows are read: a row that was read earlier may be confirmed meanwhile, and would be taken
    /// for a new one by whoever has forgotten its lane.
    pub fn make_room(&mut self) {
        if self.lanes.len() > self.limit {
            self.lanes.retain(|_, lane| lane.in_hand > 0);
        }
        if self.holds.len() > MAX_HELD / 2 {
            self.holds.retain(|_, hold| hold.until.is_some());
        }
    }

    /// All claims are given back; holds stay.
    pub fn give_back(&mut self) {
        self.lanes.clear();
    }

    /// Holds a lane until then.
    pub fn hold_until(&mut self, lane: i64, until: Instant) {
        let failures = self.holds.get(&lane).map_or(0, |hold| hold.failures);
        self.insert(lane, Hold { until: Some(until), failures });
    }

    /// Holds a lane for a while, longer with each failure in a row; says for how long.
    pub fn hold(&mut self, lane: i64, now: Instant, backoff: &Backoff, jitter: f64) -> Duration {
        let failures = self.holds.get(&lane).map_or(0, |hold| hold.failures).saturating_add(1);
        let delay = backoff.delay(failures, jitter);
        self.insert(lane, Hold { until: Some(now + delay), failures });
        delay
    }

    fn insert(&mut self, lane: i64, hold: Hold) {
        self.holds.insert(lane, hold);
        if self.holds.len() > MAX_HELD
            && let free = self.holds.iter().filter(|(lane, _)| !self.is_in_hand(**lane))
            && let Some(soonest) = free.min_by_key(|(_, hold)| hold.until).map(|(lane, _)| *lane)
        {
            self.holds.remove(&soonest);
        }
    }

    /// Somebody changed something in this lane, or its time has come: it is asked for, as soon as nothing of it is in hand.
    pub fn release(&mut self, lane: i64, now: Instant) {
        if let Some(hold) = self.holds.get_mut(&lane)
            && hold.until.is_some()
        {
            hold.until = Some(now);
        }
    }

    /// Whether a lane waits now. What was claimed behind the row that holds it would overtake that row: until all of it was
    /// given back or is confirmed, the lane waits on, also when its time is over.
    pub fn is_held(&self, lane: i64, now: Instant) -> bool {
        self.holds.get(&lane).is_some_and(|hold| hold.lasts(now) || (hold.until.is_some() && self.is_in_hand(lane)))
    }

    fn is_in_hand(&self, lane: i64) -> bool {
        self.lanes.get(&lane).is_some_and(|lane| lane.in_hand > 0)
    }

    /// The lanes that wait now.
    pub fn held(&self, now: Instant) -> Vec<i64> {
        self.holds.keys().filter(|lane| self.is_held(**lane, now)).copied().collect()
    }

    /// The lanes whose wait is over: each is to be asked for once. Their failures are remembered until something goes.
    pub fn over(&mut self, now: Instant) -> Vec<i64> {
        let in_hand = |lane: &i64| self.lanes.get(lane).is_some_and(|lane| lane.in_hand > 0);
        let over = self.holds.iter_mut().filter(|(_, hold)| hold.until.is_some_and(|until| until <= now));
        let over = over.filter(|(lane, _)| !in_hand(lane));
        over.map(|(lane, hold)| {
            hold.until = None;
            *lane
        })
        .collect()
    }

    /// When the next lane is to be asked for.
    pub fn next_over(&self) -> Option<Instant> {
        let free = self.holds.iter().filter(|(lane, _)| !self.is_in_hand(**lane));
        free.filter_map(|(_, hold)| hold.until).min()
    }
}

/// The most lanes held in memory; beyond it those that would be free soonest are asked for early.
pub const MAX_HELD: usize = 10_000;
/// A lane behind a dead head is asked for so often, beside the hint that resolving it leaves.
const LOOK_AT_DEAD: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BACKOFF: Backoff = Backoff { min: Duration::from_millis(10), max: Duration::from_secs(1) };

    fn row(seq: i64, lane: i64, version: i64) -> Row {
        Row {
            seq,
            lane,
            version: Some(version),
            previous: Some(version - 1).filter(|previous| *previous > 0),
            blocked: Blocked::No,
            next_in_lane: false,
        }
    }

    #[test]
    fn a_row_that_continues_its_lane_is_taken_once() {
        let (mut lanes, now) = (Lanes::new(10), Instant::now());
        assert_eq!(lanes.judge(&row(1, 7, 1), now), Verdict::Take);
        assert_eq!(lanes.judge(&row(1, 7, 1), now), Verdict::Known);
        assert_eq!(lanes.judge(&row(5, 7, 2), now), Verdict::Take);
    }

    #[test]
    fn what_may_stand_behind_something_unseen_is_asked_for() {
        let (mut lanes, now) = (Lanes::new(10), Instant::now());
        assert_eq!(lanes.judge(&row(9, 7, 3), now), Verdict::Ask, "its predecessor was never seen");
        assert_eq!(lanes.judge(&Row { next_in_lane: true, ..row(9, 7, 3) }, now), Verdict::Take);
        assert_eq!(lanes.judge(&row(12, 7, 5), now), Verdict::Ask, "version 4 is missing");
        assert_eq!(lanes.above(7), 9);
    }

    #[test]
    fn a_blocked_row_holds_all_behind_it() {
        let (mut lanes, now) = (Lanes::new(10), Instant::now());
        let dead = Row { blocked: Blocked::Dead, next_in_lane: true, ..row(1, 7, 1) };
        assert_eq!(lanes.judge(&dead, now), Verdict::Held);
        assert_eq!(lanes.judge(&row(2, 7, 2), now), Verdict::Held);
        assert_eq!(lanes.held(now), [7]);
        lanes.release(7, now);
        assert_eq!(lanes.judge(&row(2, 7, 2), now), Verdict::Ask);
    }

    #[test]
    fn what_is_given_back_is_claimed_anew_from_the_lowest_on() {
        for order in [[1, 2, 3], [3, 2, 1], [2, 3, 1]] {
            let (mut lanes, now) = (Lanes::new(10), Instant::now());
            (1..=3).for_each(|n| assert_eq!(lanes.judge(&row(n, 7, n), now), Verdict::Take));
            for n in order {
                lanes.give_back_from(7, n, Some(n - 1).filter(|previous| *previous > 0));
            }
            assert_eq!(lanes.given_back(), 3);
            assert_eq!(lanes.judge(&row(2, 7, 2), now), Verdict::Ask, "version 1 is not in hand: {order:?}");
            assert_eq!(lanes.judge(&row(3, 7, 3), now), Verdict::Ask, "nor is version 2: {order:?}");
            assert_eq!(lanes.judge(&Row { next_in_lane: true, ..row(1, 7, 1) }, now), Verdict::Take);
            (2..=3).for_each(|n| assert_eq!(lanes.judge(&row(n, 7, n), now), Verdict::Take));
        }
    }

    #[test]
    fn a_lane_whose_head_was_given_back_waits_until_nothing_behind_it_is_in_hand() {
        let (mut lanes, now) = (Lanes::new(10), Instant::now());
        (1..=3).for_each(|n| assert_eq!(lanes.judge(&row(n, 7, n), now), Verdict::Take));
        lanes.hold_until(7, now + Duration::from_secs(60));
        lanes.give_back_from(7, 1, None);
        lanes.release(7, now);
        for (seq, left) in [(2, 2), (3, 1)] {
            assert!(lanes.is_held(7, now), "{left} of it are in hand");
            assert!(lanes.over(now).is_empty() && lanes.next_over().is_none() && !lanes.is_missed(7, 1, now));
            lanes.give_back_from(7, seq, Some(seq - 1));
        }
        assert!(!lanes.is_held(7, now));
        assert_eq!((lanes.over(now), lanes.above(7)), (vec![7], 0));
        assert_eq!(lanes.judge(&Row { next_in_lane: true, ..row(1, 7, 1) }, now), Verdict::Take);
    }

    #[test]
    fn a_lane_is_held_longer_with_each_failure_and_asked_for_once_when_that_is_over() {
        let (mut lanes, now) = (Lanes::new(10), Instant::now());
        assert_eq!(lanes.hold(1, now, &BACKOFF, 0.0), Duration::from_millis(10));
        assert_eq!(lanes.hold(1, now, &BACKOFF, 0.0), Duration::from_millis(20));
        assert_eq!(lanes.next_over(), Some(now + Duration::from_millis(20)));
        assert!(lanes.over(now).is_empty());
        let later = now + Duration::from_millis(20);
        assert_eq!(lanes.over(later), [1]);
        assert!(lanes.over(later).is_empty());
        assert_eq!(lanes.hold(1, later, &BACKOFF, 0.0), Duration::from_millis(40), "its failures are remembered");
    }

    #[test]
    fn memory_is_bounded_and_keeps_what_is_in_hand() {
        let (mut lanes, now) = (Lanes::new(10), Instant::now());
        (0..MAX_HELD as i64 + 50).for_each(|lane| lanes.hold_until(lane, now + Duration::from_secs(60)));
        assert_eq!(lanes.holds.len(), MAX_HELD);
        let mut lanes = Lanes::new(10);
        (1..100).for_each(|n| assert_eq!(lanes.judge(&row(n, n, 1), now), Verdict::Take));
        (1..90).for_each(|n| lanes.done(n));
        lanes.make_room();
        assert_eq!(lanes.lanes.len(), 10);
        assert_eq!(lanes.judge(&row(95, 95, 1), now), Verdict::Known);
    }

    proptest! {
        /// Rows of a lane become visible in their order, at any time; however they are read, they are taken in order.
        #[test]
        fn a_lane_is_taken_in_its_order(steps in proptest::collection::vec((0i64..4, 0usize..3, any::<bool>()), 1..200)) {
            let (mut lanes, now) = (Lanes::new(4), Instant::now());
            let mut seq = 0;
            let mut hidden: HashMap<i64, Vec<Row>> = HashMap::new();
            let mut visible: Vec<Row> = Vec::new();
            let mut versions: HashMap<i64, i64> = HashMap::new();
            let mut taken: HashMap<i64, i64> = HashMap::new();
            let mut open: Vec<i64> = Vec::new();
            for (lane, what, confirm) in steps {
                match what {
                    0 => {
                        seq += 1;
                        let version = versions.entry(lane).or_default();
                        *version += 1;
                        hidden.entry(lane).or_default().push(row(seq, lane, *version));
                    }
                    1 => visible.append(hidden.entry(lane).or_default()),
                    _ => {
                        lanes.make_room();
                        visible.sort_by_key(|row| row.seq);
                        // Half of the time a cursor hides what came late.
                        let from = if confirm { 0 } else { seq / 2 };
                        let mut rows: Vec<Row> = visible.iter().copied().filter(|row| row.seq > from).collect();
                        let mut again = Vec::new();
                        for row in rows.drain(..) {
                            match lanes.judge(&row, now) {
                                Verdict::Take => again.push(row),
                                Verdict::Ask => {
                                    let above = lanes.above(row.lane);
                                    let next = visible.iter().find(|next| next.lane == row.lane && next.seq > above);
                                    let next = Row { next_in_lane: true, ..*next.expect("the row itself is there") };
                                    prop_assert_eq!(lanes.judge(&next, now), Verdict::Take);
                                    again.push(next);
                                }
                                Verdict::Known | Verdict::Held => {}
                            }
                        }
                        for row in again {
                            let last = taken.entry(row.lane).or_default();
                            prop_assert_eq!(row.version, Some(*last + 1));
                            *last += 1;
                            open.push(row.lane);
                            if confirm {
                                visible.retain(|there| there.seq != row.seq);
                                lanes.done(row.lane);
                            }
                        }
                    }
                }
            }
        }
    }
}
