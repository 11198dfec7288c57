//! The queues of the aggregates inside a partition: what may be sent at once, and what is held.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use super::backoff::Backoff;

/// Lanes held in memory, after something that is no fault of their events and so is not written down.
#[derive(Debug, Default)]
pub struct Lanes {
    held: HashMap<i64, Hold>,
}

#[derive(Debug, Clone, Copy)]
struct Hold {
    until: Instant,
    failures: u32,
}

/// The most lanes held in memory; beyond it those that would be free soonest are let go early.
pub const MAX_HELD: usize = 10_000;

impl Lanes {
    /// Holds a lane for a while, longer with each failure in a row.
    pub fn hold(&mut self, lane: i64, now: Instant, backoff: &Backoff, jitter: f64) {
        let failures = self.held.get(&lane).map_or(0, |hold| hold.failures).saturating_add(1);
        self.held.insert(lane, Hold { until: now + backoff.delay(failures, jitter), failures });
        if self.held.len() > MAX_HELD
            && let Some(soonest) = self.held.iter().min_by_key(|(_, hold)| hold.until).map(|(lane, _)| *lane)
        {
            self.held.remove(&soonest);
        }
    }

    /// Something of the lane was stored: its failures are over.
    pub fn free(&mut self, lane: i64) {
        self.held.remove(&lane);
    }

    /// The lanes that must not be claimed now.
    pub fn held(&self, now: Instant) -> Vec<i64> {
        self.held.iter().filter(|(_, hold)| hold.until > now).map(|(lane, _)| *lane).collect()
    }

    /// When the next held lane becomes free.
    pub fn next_free(&self, now: Instant) -> Option<Instant> {
        self.held.values().map(|hold| hold.until).filter(|until| *until > now).min()
    }
}

/// Sorts claimed rows, in the order of the outbox, into one queue a lane, each in that order.
pub fn queues<R>(rows: impl IntoIterator<Item = R>, lane: impl Fn(&R) -> i64) -> Vec<VecDeque<R>> {
    let mut places: HashMap<i64, usize> = HashMap::new();
    let mut queues: Vec<VecDeque<R>> = Vec::new();
    for row in rows {
        let place = *places.entry(lane(&row)).or_insert_with(|| {
            queues.push(VecDeque::new());
            queues.len() - 1
        });
        queues[place].push_back(row);
    }
    queues
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    const BACKOFF: Backoff = Backoff { min: Duration::from_millis(10), max: Duration::from_secs(1) };

    proptest! {
        #[test]
        fn a_lane_keeps_its_order_and_nothing_is_lost(lanes in proptest::collection::vec(0i64..5, 0..60)) {
            let rows: Vec<(usize, i64)> = lanes.into_iter().enumerate().collect();
            let queues = queues(rows.clone(), |row| row.1);
            prop_assert_eq!(queues.iter().map(VecDeque::len).sum::<usize>(), rows.len());
            for queue in queues {
                prop_assert!(queue.iter().all(|row| row.1 == queue[0].1));
                prop_assert!(queue.iter().zip(queue.iter().skip(1)).all(|(a, b)| a.0 < b.0));
            }
        }
    }

    #[test]
    fn a_lane_is_held_longer_with_each_failure_and_free_after_a_success() {
        let (mut lanes, now) = (Lanes::default(), Instant::now());
        lanes.hold(1, now, &BACKOFF, 0.0);
        assert_eq!(lanes.next_free(now), Some(now + Duration::from_millis(10)));
        lanes.hold(1, now, &BACKOFF, 0.0);
        assert_eq!(lanes.next_free(now), Some(now + Duration::from_millis(20)));
        assert_eq!(lanes.held(now), [1]);
        assert!(lanes.held(now + Duration::from_millis(21)).is_empty());
        lanes.free(1);
        assert!(lanes.held(now).is_empty());
    }

    #[test]
    fn memory_for_held_lanes_is_bounded() {
        let (mut lanes, now) = (Lanes::default(), Instant::now());
        (0..MAX_HELD as i64 + 50).for_each(|lane| lanes.hold(lane, now, &BACKOFF, 0.0));
        assert_eq!(lanes.held.len(), MAX_HELD);
    }
}
