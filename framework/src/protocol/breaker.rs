//! When to stop asking a broker that does not answer.

use std::time::{Duration, Instant};

use super::backoff::Backoff;

/// Closed: publish. Open: wait, then probe. It opens only when a probe fails, never on a failed publish alone.
#[derive(Debug, Clone, Copy)]
pub struct Breaker {
    backoff: Backoff,
    failures: u32,
    probe_at: Option<Instant>,
}

/// What to do before publishing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// Publish.
    Publish,
    /// Ask whether the stream is there, and report the answer.
    Probe,
    /// Nothing for this long.
    Wait(Duration),
}

impl Breaker {
    /// A closed breaker.
    pub fn new(backoff: Backoff) -> Breaker {
        Breaker { backoff, failures: 0, probe_at: None }
    }

    /// What to do now.
    pub fn ask(&self, now: Instant) -> Ask {
        match self.probe_at {
            None => Ask::Publish,
            Some(at) if at <= now => Ask::Probe,
            Some(at) => Ask::Wait(at - now),
        }
    }

    /// Publishes had no answer, or the answer that the broker is not available: probe before the next one.
    pub fn suspect(&mut self, now: Instant) {
        self.probe_at.get_or_insert(now);
    }

    /// The probe was answered.
    pub fn close(&mut self) {
        self.failures = 0;
        self.probe_at = None;
    }

    /// The probe was not answered.
    pub fn open(&mut self, now: Instant, jitter: f64) {
        self.failures = self.failures.saturating_add(1);
        self.probe_at = Some(now + self.backoff.delay(self.failures, jitter));
    }

    /// Probes that failed in a row.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Whether a probe failed and none has succeeded since.
    pub fn is_open(&self) -> bool {
        self.failures > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_opens_only_when_the_probe_fails_and_closes_when_it_succeeds() {
        let now = Instant::now();
        let backoff = Backoff { min: Duration::from_millis(100), max: Duration::from_secs(5) };
        let mut breaker = Breaker::new(backoff);
        assert_eq!(breaker.ask(now), Ask::Publish);
        breaker.suspect(now);
        assert_eq!((breaker.ask(now), breaker.is_open()), (Ask::Probe, false));
        breaker.open(now, 0.0);
        assert_eq!((breaker.ask(now), breaker.is_open()), (Ask::Wait(Duration::from_millis(100)), true));
        breaker.suspect(now);
        assert_eq!(breaker.ask(now), Ask::Wait(Duration::from_millis(100)));
        assert_eq!(breaker.ask(now + Duration::from_millis(100)), Ask::Probe);
        breaker.close();
        assert_eq!((breaker.ask(now), breaker.is_open()), (Ask::Publish, false));
    }
}
