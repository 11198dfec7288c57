//! What follows when an event could not be applied.

use std::time::Duration;

use super::backoff::Backoff;

/// How often an event is tried before it is set aside, and how long between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// Failures of the event itself, across all processes.
    pub attempts: u32,
    /// Between two of them.
    pub backoff: Backoff,
}

/// Why applying an event did not succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// Two transactions could not be put in an order.
    Serialization,
    /// A unique constraint of the user's own tables said no.
    UniqueInEffect,
    /// A deadlock, a lock or statement timeout, or a fault in a statement: the driver cannot tell them apart.
    Database,
    /// The handler failed in a way that may pass, timed out, or panicked.
    Transient,
    /// Trying again cannot help: said by the handler, or the data cannot be decoded.
    Permanent,
    /// The handler committed or rolled back the transaction it was lent.
    EndedTransaction,
    /// The database is not there, or the outcome of the commit is unknown: nothing is known against the event.
    Outage,
}

/// What has been tried in this delivery, without being counted against the event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Restarts {
    /// After serialization failures.
    pub serialization: u32,
    /// After a unique violation in the effect.
    pub unique: u32,
    /// After outages.
    pub outage: u32,
}

/// What follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Run it again here after this long; nothing is counted.
    Restart(Duration),
    /// Record a failed attempt; [`counted`] then says whether it was the last.
    Count,
    /// Set it aside now.
    Die,
}

/// Decides what follows a failure, and notes the restart.
pub fn after(failure: Failure, restarts: &mut Restarts, jitter: f64) -> Next {
    match failure {
        Failure::Serialization if restarts.serialization < MAX_SERIALIZATION_RESTARTS => {
            restarts.serialization += 1;
            Next::Restart(RESTART.delay(restarts.serialization, jitter))
        }
        Failure::UniqueInEffect if restarts.unique < 1 => {
            restarts.unique += 1;
            Next::Restart(RESTART.delay(1, jitter))
        }
        Failure::Outage => {
            restarts.outage = restarts.outage.saturating_add(1);
            Next::Restart(OUTAGE.delay(restarts.outage, jitter))
        }
        Failure::Serialization | Failure::UniqueInEffect | Failure::Database | Failure::Transient => Next::Count,
        Failure::Permanent | Failure::EndedTransaction => Next::Die,
    }
}

/// After failed attempt number `attempts` was recorded: how long until the next, or `None` if it was the last.
pub fn counted(policy: &Policy, attempts: u32, jitter: f64) -> Option<Duration> {
    (attempts < policy.attempts).then(|| policy.backoff.delay(attempts, jitter))
}

/// Serialization failures in a row before one counts as an attempt.
pub const MAX_SERIALIZATION_RESTARTS: u32 = 20;

const RESTART: Backoff = Backoff { min: Duration::from_millis(5), max: Duration::from_millis(500) };
const OUTAGE: Backoff = Backoff { min: Duration::from_millis(50), max: Duration::from_secs(2) };

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_failure() -> impl Strategy<Value = Failure> {
        use Failure::*;
        proptest::sample::select(vec![
            Serialization,
            UniqueInEffect,
            Database,
            Transient,
            Permanent,
            EndedTransaction,
            Outage,
        ])
    }

    proptest! {
        #[test]
        fn an_outage_never_counts_and_never_kills(history in proptest::collection::vec(any_failure(), 0..50)) {
            let mut restarts = Restarts::default();
            for failure in history {
                let next = after(failure, &mut restarts, 0.5);
                prop_assert_eq!(failure == Failure::Outage && !matches!(next, Next::Restart(_)), false);
            }
        }

        #[test]
        fn nothing_of_the_events_own_restarts_for_ever(failure in any_failure()) {
            prop_assume!(failure != Failure::Outage);
            let mut restarts = Restarts::default();
            let uncounted = (0..100).take_while(|_| matches!(after(failure, &mut restarts, 0.0), Next::Restart(_))).count();
            prop_assert!(uncounted <= MAX_SERIALIZATION_RESTARTS as usize);
        }

        #[test]
        fn the_last_attempt_is_the_last(attempts in 1u32..20) {
            let policy = Policy { attempts, backoff: RESTART };
            prop_assert!(counted(&policy, attempts, 0.0).is_none());
            prop_assert!(attempts == 1 || counted(&policy, attempts - 1, 0.0).is_some());
        }
    }
}
