//! One connection of a tenure: its run along the stream, and what is in hand over it. It dies with all that it has not sent.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;

use super::claim::{Claimed, ClaimedRow};
use super::confirm::Evidence;
use super::lease::Tenancy;
use super::publish::{BATCH, BATCHES_IN_FLIGHT, Limits};
use super::read::{Bounds, Reader};
use crate::broker::jetstream::subject_of;
use crate::broker::{Message, Outage, Outcome, Publisher, Refusal};
use crate::protocol::chain::{Chain, Ticket};

/// What lives as long as one connection: it begins with a reconciled stream.
pub(super) struct Link {
    /// Which life of the database it was reconciled with.
    pub(super) history: u64,
    pub(super) publisher: Box<dyn Publisher>,
    pub(super) chain: Chain,
    pub(super) reader: Reader,
    pub(super) queue: VecDeque<ClaimedRow>,
    pub(super) queue_bytes: i64,
    pub(super) in_flight: FuturesUnordered<BoxFuture<'static, (Ticket, Outcome)>>,
    pub(super) sent: HashMap<Ticket, Vec<ClaimedRow>>,
    /// Of the events in `sent`.
    pub(super) sent_bytes: i64,
    pub(super) deadlines: VecDeque<(Ticket, Instant)>,
    pub(super) broken_at: Option<Instant>,
    /// Up to this sequence a message of an earlier connection may still come in. It would take the place of one of ours, and
    /// those behind it would fit again, so none of them may be of the same lane, until the stream has reached it.
    pub(super) careful_until: u64,
    /// Rows of a broken run that were not stored.
    pub(super) back: Vec<ClaimedRow>,
    pub(super) outage: Option<Outage>,
    pub(super) stored: VecDeque<(i64, Evidence)>,
    pub(super) stored_at: Option<Instant>,
    pub(super) position_at: Instant,
}

impl Link {
    /// Goes on after the sequence `last`; `earlier` if something of an earlier connection may still be on its way.
    pub(super) fn new(
        publisher: Box<dyn Publisher>,
        tenancy: Tenancy,
        limits: &Limits,
        last: u64,
        earlier: bool,
        history: u64,
    ) -> Link {
        let now = Instant::now();
        // What the earlier one may have had in flight: messages, or batches.
        let in_flight = u64::try_from(limits.in_flight.max(BATCHES_IN_FLIGHT * BATCH)).unwrap_or(u64::MAX);
        let bounds = Bounds {
            rows: limits.window,
            bytes: i64::try_from(limits.window_bytes).unwrap_or(i64::MAX),
            row_bytes: i64::try_from(publisher.max_message_bytes()).unwrap_or(i64::MAX),
            ceiling_ms: i64::try_from(limits.backoff.max.as_millis()).unwrap_or(i64::MAX),
        };
        Link {
            history,
            publisher,
            chain: Chain::at(last),
            reader: Reader::new(tenancy, bounds, now),
            queue: VecDeque::new(),
            queue_bytes: 0,
            in_flight: FuturesUnordered::new(),
            sent: HashMap::new(),
            sent_bytes: 0,
            deadlines: VecDeque::new(),
            broken_at: None,
            careful_until: if earlier { last.saturating_add(in_flight) } else { 0 },
            back: Vec::new(),
            outage: None,
            stored: VecDeque::new(),
            stored_at: None,
            position_at: now,
        }
    }

    pub(super) fn is_in_flight(&self, lane: i64) -> bool {
        self.sent.values().flatten().any(|claimed| claimed.row.lane == lane)
    }

    /// When the oldest answer is overdue. In a broken run all that can still come is there soon: what the broker lost has
    /// no answer, and what stands behind it is refused at once.
    pub(super) fn deadline(&self, now: Instant) -> Option<Instant> {
        let (_, oldest) = self.deadlines.front()?;
        let broken = self.broken_at.map_or(now + FOREVER, |at| at + BROKEN_GRACE);
        Some(broken.min(*oldest))
    }
}

/// The message of a row, or why there can be none.
pub(super) fn message_of(claimed: &Claimed, partition: i32, max_bytes: usize) -> Result<Message, Refusal> {
    if let Some(refusal) = claimed.unreadable.or_else(|| claimed.envelope.refusal()) {
        return Err(refusal);
    }
    let envelope = &claimed.envelope;
    let headers = envelope.to_headers();
    let bytes = envelope.data.len() + headers.iter().map(|(n, v)| n.len() + v.len() + 4).sum::<usize>();
    if bytes > max_bytes {
        return Err(Refusal::TooLarge);
    }
    Ok(Message::new(subject_of(envelope, partition), envelope.message_id(), headers, envelope.data.clone()))
}

const BROKEN_GRACE: Duration = Duration::from_millis(500);
const FOREVER: Duration = Duration::from_secs(3600);
