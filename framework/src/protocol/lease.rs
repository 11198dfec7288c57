//! For how long the owner of a partition may trust that it is. Who takes and who gives up is in `membership`.
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn trust_ends_before_the_lease(ttl in 10u64..100_000) {
            let terms = Terms::of(Duration::from_millis(ttl));
            let sent = Instant::now();
            prop_assert!(terms.trusted_until(sent) < sent + terms.ttl);
            prop_assert!(terms.renew_every * 2 < terms.ttl - terms.margin);
        }
    }
}
