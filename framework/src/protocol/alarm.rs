//! When an alarm is raised, and when it is cleared: once each, whatever the readings do in between.

use std::fmt;
use std::time::Duration;

/// What is wrong. Its name is the label of the metric, the key of the configuration, and the heading in
/// `docs/operating.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Kind {
    /// An event that could go has waited for too long; of a partition.
    OldestPending,
    /// Too many events wait.
    Pending,
    /// Events have waited behind a dead one for too long; of a partition.
    Held,
    /// Dead letters that nobody has resolved.
    Dead,
    /// The broker is there, but takes nothing of some lanes; of a partition.
    Unroutable,
    /// What was sent has no answer that can be believed; of a partition.
    Unconfirmed,
    /// No relay owns the partition.
    Unowned,
    /// No relay is able: none runs, or none reaches the broker.
    NoAbleNode,
    /// The partition stands still until an operator decides.
    Stopped,
    /// An operator has paused the relay, and not resumed it since.
    Paused,
    /// The database does not answer this watch, so none of the others can be told.
    Blind,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 11] = [
        Kind::OldestPending,
        Kind::Pending,
        Kind::Held,
        Kind::Dead,
        Kind::Unroutable,
        Kind::Unconfirmed,
        Kind::Unowned,
        Kind::NoAbleNode,
        Kind::Stopped,
        Kind::Paused,
        Kind::Blind,
    ];

    /// `oldest_pending`, `no_able_node`, …
    pub fn name(self) -> &'static str {
        match self {
            Kind::OldestPending => "oldest_pending",
            Kind::Pending => "pending",
            Kind::Held => "held",
            Kind::Dead => "dead",
            Kind::Unroutable => "unroutable",
            Kind::Unconfirmed => "unconfirmed",
            Kind::Unowned => "unowned",
            Kind::NoAbleNode => "no_able_node",
            Kind::Stopped => "stopped",
            Kind::Paused => "paused",
            Kind::Blind => "blind",
        }
    }

    /// Whether there is one of it for each partition.
    pub fn is_per_partition(self) -> bool {
        match self {
            Kind::OldestPending | Kind::Held | Kind::Unroutable | Kind::Unconfirmed | Kind::Unowned | Kind::Stopped => {
                true
            }
            Kind::Pending | Kind::Dead | Kind::NoAbleNode | Kind::Paused | Kind::Blind => false,
        }
    }

    /// Whether events stand still with nobody at work on it, so that it is logged as an error.
    pub fn is_grave(self) -> bool {
        match self {
            Kind::OldestPending | Kind::Unowned | Kind::NoAbleNode | Kind::Stopped | Kind::Blind => true,
            Kind::Pending | Kind::Held | Kind::Dead | Kind::Unroutable | Kind::Unconfirmed | Kind::Paused => false,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One reading, compared with its limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// Nothing to say.
    Quiet,
    /// Neither: what is raised stays so, what is not does not become so. Without it a value at the limit would raise and
    /// clear at every look.
    Between,
    /// At the limit, or above it.
    Loud,
}

impl Level {
    /// Loud from the limit, quiet up to half of it. A limit of 0 is one of 1: nothing is never loud.
    pub fn of(value: u64, limit: u64) -> Level {
        let limit = limit.max(1);
        match value {
            _ if value >= limit => Level::Loud,
            _ if value > limit / 2 => Level::Between,
            _ => Level::Quiet,
        }
    }

    /// Loud if it is so.
    pub fn when(so: bool) -> Level {
        if so { Level::Loud } else { Level::Quiet }
    }
}

/// What one look changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Change {
    /// It is so now, and has been for long enough.
    Raised,
    /// It is over.
    Cleared,
}

/// One alarm between looks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Watch {
    raised: bool,
    /// Since when, and for how many looks, the readings have spoken against the present state.
    against: Option<(Duration, u32)>,
}

impl Watch {
    /// Takes a reading; `now` counts from anywhere, and `patience` is how long it must have been loud.
    ///
    /// Raised after two loud readings at least, with no quiet one between them; cleared after two quiet ones in a row. So
    /// one odd look says nothing, and raised and cleared take turns.
    pub fn read(&mut self, now: Duration, level: Level, patience: Duration) -> Option<Change> {
        let against = match (self.raised, level) {
            (false, Level::Loud) | (true, Level::Quiet) => true,
            (false, Level::Quiet) | (true, Level::Loud | Level::Between) => false,
            (false, Level::Between) => return None,
        };
        if !against {
            self.against = None;
            return None;
        }
        let (since, looks) = self.against.map_or((now, 1), |(since, looks)| (since, looks.saturating_add(1)));
        self.against = Some((since, looks));
        let patience = if self.raised { Duration::ZERO } else { patience };
        if looks < LOOKS || now.saturating_sub(since) < patience {
            return None;
        }
        self.against = None;
        self.raised = !self.raised;
        Some(if self.raised { Change::Raised } else { Change::Cleared })
    }

    /// Whether it is raised now.
    pub fn is_raised(&self) -> bool {
        self.raised
    }
}

const LOOKS: u32 = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn levels() -> impl Strategy<Value = Vec<(u64, Level)>> {
        let level = prop_oneof![Just(Level::Quiet), Just(Level::Between), Just(Level::Loud)];
        proptest::collection::vec((0u64..20, level), 0..200)
    }

    proptest! {
        #[test]
        fn raised_once_and_cleared_once_by_turns_and_never_by_one_look(looks in levels(), patience in 0u64..60) {
            let (mut watch, mut now, mut last) = (Watch::default(), 0, Change::Cleared);
            let mut history: Vec<(u64, Level)> = Vec::new();
            for (step, level) in looks {
                now += step;
                history.push((now, level));
                let before = watch.is_raised();
                let change = watch.read(Duration::from_secs(now), level, Duration::from_secs(patience));
                let Some(change) = change else {
                    prop_assert_eq!(watch.is_raised(), before);
                    continue;
                };
                prop_assert_ne!(change, last);
                last = change;
                prop_assert_eq!(watch.is_raised(), change == Change::Raised);
                let run = |stops: fn(Level) -> bool| {
                    history.iter().rev().take_while(|(_, level)| !stops(*level)).copied().collect::<Vec<_>>()
                };
                match change {
                    Change::Raised => {
                        let loud: Vec<u64> = run(|level| level == Level::Quiet)
                            .iter().filter(|(_, level)| *level == Level::Loud).map(|(at, _)| *at).collect();
                        prop_assert!(loud.len() >= 2);
                        prop_assert!(now - loud[loud.len() - 1] >= patience);
                    }
                    Change::Cleared => prop_assert!(run(|level| level != Level::Quiet).len() >= 2),
                }
            }
        }

        #[test]
        fn what_lasts_is_said_in_the_end(before in levels(), patience in 0u64..60) {
            let (mut watch, mut now) = (Watch::default(), 0);
            let patience = Duration::from_secs(patience);
            for (step, level) in before {
                now += step;
                watch.read(Duration::from_secs(now), level, patience);
            }
            for _ in 0..62 {
                now += 1;
                watch.read(Duration::from_secs(now), Level::Loud, patience);
            }
            prop_assert!(watch.is_raised());
            for _ in 0..2 {
                watch.read(Duration::from_secs(now), Level::Quiet, patience);
            }
            prop_assert!(!watch.is_raised());
        }

        #[test]
        fn a_value_that_swings_between_half_the_limit_and_the_limit_changes_nothing(limit in 4u64..1_000, swings in proptest::collection::vec(0.51f64..0.99, 1..50)) {
            let mut watch = Watch::default();
            let mut read = |value: u64| watch.read(Duration::ZERO, Level::of(value, limit), Duration::ZERO);
            prop_assert_eq!((read(limit), read(limit)), (None, Some(Change::Raised)));
            for swing in swings {
                let value = ((limit as f64 * swing) as u64).max(limit / 2 + 1);
                prop_assert_eq!((read(value), read(limit)), (None, None));
            }
        }

        #[test]
        fn nothing_is_never_loud_and_the_limit_always_is(limit: u64) {
            prop_assert_eq!(Level::of(0, limit), Level::Quiet);
            prop_assert_eq!(Level::of(limit.max(1), limit), Level::Loud);
        }
    }
}
