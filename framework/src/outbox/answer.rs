//! Step 3, its other half: what follows from the broker's answers for the rows that were sent.

use std::time::{Duration, Instant};

use super::confirm::Evidence;
use super::link::Link;
use super::publish::{Interrupted, Tenure};
use crate::broker::{Outage, Outcome};
use crate::failpoint::failpoint;
use crate::protocol::chain::{End, Step, Ticket};
use crate::telemetry;

impl Tenure {
    pub(super) async fn answered(
        &mut self,
        link: &mut Link,
        ticket: Ticket,
        outcome: Outcome,
    ) -> Result<(), Interrupted> {
        let Some(step) = link.chain.answered(ticket, &outcome) else { return Ok(()) };
        let rows = link.sent.remove(&ticket).unwrap_or_default();
        link.sent_bytes -= rows.iter().map(|claimed| claimed.bytes).sum::<i64>();
        while link.deadlines.front().is_some_and(|(first, _)| !link.sent.contains_key(first)) {
            link.deadlines.pop_front();
        }
        if link.chain.is_broken() {
            link.broken_at.get_or_insert_with(Instant::now);
        }
        match step {
            Step::Stored { first, .. } => {
                failpoint!("relay::acknowledged");
                self.barren = 0;
                if let Outcome::Stored(stored) = outcome
                    && stored.duplicate
                {
                    telemetry::publish_duplicates(self.tenancy.partition, 1);
                }
                for (claimed, stream_seq) in rows.into_iter().zip(first..) {
                    let stream_seq = i64::try_from(stream_seq).unwrap_or(i64::MAX);
                    let evidence = Evidence { seq: claimed.row.seq, id_hash: claimed.id_hash, stream_seq };
                    link.stored.push_back((claimed.row.lane, evidence));
                }
                link.stored_at.get_or_insert_with(Instant::now);
            }
            Step::Refused(refusal) => {
                for claimed in &rows {
                    self.withdraw(link, claimed);
                    self.set_aside(claimed, refusal).await?;
                }
            }
            Step::Singly => {
                self.singly += rows.len();
                link.back.extend(rows);
            }
            Step::Echo => link.back.extend(rows),
            Step::Unavailable(outage) => {
                link.outage = Some(outage);
                link.back.extend(rows);
            }
            Step::Unclear(unclear) => {
                for claimed in &rows {
                    if unclear.speaks_of_the_event() {
                        self.retry(claimed, &unclear.to_string(), 1).await?;
                    }
                }
            }
        }
        Ok(())
    }

    /// What follows when a run has ended.
    pub(super) async fn ended(&mut self, link: &mut Link) -> Result<(), Interrupted> {
        match link.chain.end() {
            None | Some(End::GoOn) => return Ok(()),
            Some(End::Reconcile) => {
                let why = match link.outage {
                    Some(Outage::Down) => "the broker is not available",
                    Some(Outage::Absent | Outage::Full) | None => "it is not clear what the broker has stored",
                };
                return Err(Interrupted::Unclear(why.into()));
            }
            Some(End::Predict) => {}
        }
        link.broken_at = None;
        let mut back = std::mem::take(&mut link.back);
        back.sort_by_key(|claimed| claimed.row.seq);
        let waited = back.len();
        let alone = back.len() == 1;
        for claimed in back.into_iter().rev() {
            link.queue_bytes += claimed.bytes;
            link.queue.push_front(claimed);
        }
        match link.outage.take() {
            None => Ok(()),
            Some(Outage::Full) => {
                self.barren = self.barren.saturating_add(1);
                self.say_full(waited);
                Ok(())
            }
            Some(Outage::Absent | Outage::Down) if !link.publisher.probe().await => {
                self.breaker.open(Instant::now(), rand::random());
                telemetry::breaker(self.tenancy.partition, true);
                Err(Interrupted::Unclear("the stream does not answer".into()))
            }
            // The stream is there, and this one message finds no way to it.
            Some(Outage::Absent | Outage::Down) if alone => {
                if let Some(claimed) = link.queue.pop_front() {
                    link.queue_bytes -= claimed.bytes;
                    self.withdraw(link, &claimed);
                    self.retry(&claimed, UNROUTABLE, 0).await?;
                    telemetry::unroutable(self.tenancy.partition);
                    self.ground.board.unroutable(self.tenancy.partition, self.ground.limits.backoff.max);
                }
                Ok(())
            }
            Some(Outage::Absent | Outage::Down) => {
                self.singly = self.singly.max(waited);
                Ok(())
            }
        }
    }

    fn say_full(&mut self, waited: usize) {
        let now = Instant::now();
        if self.said_full.is_none_or(|said| now - said > SAY_AGAIN) {
            self.said_full = Some(now);
            tracing::warn!(
                partition = self.tenancy.partition.0,
                waited,
                "the stream is full: nothing of this partition is published until there is room"
            );
        }
    }
}

const SAY_AGAIN: Duration = Duration::from_secs(10);
const UNROUTABLE: &str =
    "the stream is there, but takes no message with this subject: look at its subjects, and at the type of the event";
