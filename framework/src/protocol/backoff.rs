//! How long to wait before the next try.

use std::time::Duration;

/// Exponential from `min`, never past `max`, with jitter inside that ceiling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// The wait after the first failure.
    pub min: Duration,
    /// The ceiling.
    pub max: Duration,
}

impl Backoff {
    /// The wait after failure number `failures` (from 1). `jitter`, from 0 to 1, takes up to half of it away, so that
    /// many waiters do not come back at once and none comes back late.
    pub fn delay(&self, failures: u32, jitter: f64) -> Duration {
        let doublings = failures.saturating_sub(1).min(63);
        let factor = 2f64.powi(i32::try_from(doublings).unwrap_or(63));
        let full = (self.min.as_secs_f64() * factor).min(self.max.as_secs_f64());
        Duration::from_secs_f64(full * (1.0 - jitter.clamp(0.0, 1.0) / 2.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn never_past_its_ceiling_and_never_an_overflow(min in 1u64..10_000, more in 0u64..1_000_000, failures: u32, jitter in 0.0f64..1.0) {
            let backoff = Backoff { min: Duration::from_millis(min), max: Duration::from_millis(min + more) };
            let delay = backoff.delay(failures, jitter);
            prop_assert!(delay <= backoff.max);
            prop_assert!(delay >= backoff.min / 2);
        }
    }
}
