//! Who owns a partition, and for how long it may trust that it does.
//!
//! ```text
//!            take (epoch + 1)              renew
//!   unowned ───────────────► owned, trusted ──┐
//!      ▲                        │   ▲─────────┘
//!      │ give up (drained)      │ no renewal for ttl − margin
//!      └────────────────────────┤
//!                               ▼
//!                         owned, not trusted ──► another node takes it (epoch + 1)
//! ```
//!
//! Trust is politeness; safety is the check of owner and epoch in every statement that changes a claimed row.

use std::time::{Duration, Instant};

/// Grows by one with each change of owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Epoch(pub i64);

/// A fixed share of the aggregates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Partition(pub i32);

impl std::fmt::Display for Partition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// How long a lease lasts, and how much earlier its holder stops trusting it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// From the renewal, by the database's clock.
    pub ttl: Duration,
    /// Stops this much before the end.
    pub margin: Duration,
    /// Time between renewals.
    pub renew_every: Duration,
}

impl Terms {
    /// A third of the lease between renewals, a fifth as the margin.
    pub fn of(ttl: Duration) -> Terms {
        Terms { ttl, margin: ttl / 5, renew_every: ttl / 3 }
    }

    /// Until when a renewal may be trusted: counted from before it was sent, by the local monotonic clock, so that
    /// neither the way there nor a step of any wall clock lengthens it.
    pub fn trusted_until(&self, sent: Instant) -> Instant {
        sent + self.ttl.saturating_sub(self.margin)
    }
}

/// A node's fair share of the partitions.
pub fn fair_share(partitions: usize, able_nodes: usize) -> usize {
    partitions.div_ceil(able_nodes.max(1))
}

/// What a node should do about its number of partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Balance {
    /// Take up to this many free ones.
    Take(usize),
    /// Give up this many.
    GiveUp(usize),
    /// Nothing.
    Keep,
}

/// Compares what a node owns with its share. One that cannot reach the broker leaves the partitions to those that can.
pub fn balance(owned: usize, partitions: usize, able: bool, able_nodes: usize) -> Balance {
    if !able {
        return if able_nodes > 0 && owned > 0 { Balance::GiveUp(owned) } else { Balance::Keep };
    }
    let share = fair_share(partitions, able_nodes);
    match owned.cmp(&share) {
        std::cmp::Ordering::Less => Balance::Take(share - owned),
        std::cmp::Ordering::Equal => Balance::Keep,
        std::cmp::Ordering::Greater => Balance::GiveUp(owned - share),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_shares_of_all_nodes_cover_every_partition(partitions in 1usize..1024, nodes in 1usize..64) {
            prop_assert!(fair_share(partitions, nodes) * nodes >= partitions);
        }

        #[test]
        fn a_node_at_its_share_is_at_rest(partitions in 1usize..1024, nodes in 1usize..64) {
            let share = fair_share(partitions, nodes);
            prop_assert_eq!(balance(share, partitions, true, nodes), Balance::Keep);
        }

        #[test]
        fn a_node_without_a_broker_takes_nothing_and_leaves_all_to_those_that_have_one(owned in 1usize..64, others in 1usize..64) {
            prop_assert_eq!(balance(owned, 64, false, others), Balance::GiveUp(owned));
            prop_assert_eq!(balance(owned, 64, false, 0), Balance::Keep);
        }

        #[test]
        fn trust_ends_before_the_lease(ttl in 10u64..100_000) {
            let terms = Terms::of(Duration::from_millis(ttl));
            let sent = Instant::now();
            prop_assert!(terms.trusted_until(sent) < sent + terms.ttl);
            prop_assert!(terms.renew_every * 2 < terms.ttl - terms.margin);
        }
    }
}
