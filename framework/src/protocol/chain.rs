//! One writer's run along a stream: each message says after which sequence it may be stored, predicted from the one
//! before it, so that many are in flight and none is stored out of order.
//!
//! The broker stores a message only right after the sequence it names. When one is not stored, all behind it are refused
//! for that reason alone: their answers are *echoes*. The machine tells an echo from a foreign message, and says when a
//! run has ended and how the next one begins.
//!
//! ```text
//!  Chain::at(last) ─► expected, sent, expected, sent … ◄─ answered, in any order
//!                       │ as predicted: go on
//!                       │ not as predicted: broken, nothing more is sent in this run
//!                       ▼ when all is answered, or given up
//!            GoOn · Predict (every cause is known: a new run from the last place) · Reconcile (read the stream)
//! ```
//!
//! What it does *not* do: a message of an earlier owner that is still on its way is refused only as long as the place it
//! names is not the stream's last. It fits again if the new owner has stored exactly as many messages in between. So an
//! old message lands either before the first one of the new owner (which is then refused, and reads the stream), or
//! within as many messages as the old owner had in flight, or never. See
//! `docs/decisions/0007` for what follows.

use std::collections::VecDeque;

use super::outcome::{Outage, Outcome, Refusal, Stored, Unclear};

#[cfg(test)]
mod properties;

/// The machine of one run after another, by one writer over one connection.
#[derive(Debug, Clone)]
pub struct Chain {
    /// Where the run began.
    base: u64,
    /// Up to here everything of the run is stored as predicted.
    last: u64,
    /// The last sequence of the stream once everything sent is stored.
    predicted: u64,
    /// What was sent and is behind `last`.
    slots: VecDeque<Slot>,
    /// The ticket of the first slot.
    first: u64,
    in_flight: usize,
    broken: bool,
}

/// Stands for one message, or one batch, that was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ticket(u64);

/// What follows from an answer for the rows of its ticket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// They are in the stream from `first` to `last`: confirm them.
    Stored {
        /// The sequence of the first message.
        first: u64,
        /// The sequence of the last message.
        last: u64,
    },
    /// The event can never be stored.
    Refused(Refusal),
    /// The batch was not taken as a batch: give its rows back, and send them one at a time.
    Singly,
    /// Not stored because something before it was not: give it back, and count nothing.
    Echo,
    /// Not stored, and the event is not to blame: give it back, and count nothing.
    Unavailable(Outage),
    /// Perhaps stored: only the stream can say.
    Unclear(Unclear),
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum End {
    /// Everything is stored as predicted.
    GoOn,
    /// Something was not stored, and it is known what: the machine predicts anew from the last place, and may be used on.
    Predict,
    /// Something is unclear, or a message of somebody else is in the stream: drop the connection, read the stream, and
    /// begin with another machine.
    Reconcile,
}

impl Chain {
    /// A run along a stream whose last sequence is `last`.
    pub fn at(last: u64) -> Chain {
        Chain { base: last, last, predicted: last, slots: VecDeque::new(), first: 0, in_flight: 0, broken: false }
    }

    /// After which sequence the next message may be stored.
    pub fn expected(&self) -> u64 {
        self.predicted
    }

    /// Up to here everything of the run is stored as predicted.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Counts what was sent with the expectation of [`expected`](Self::expected): one message, or a batch of `messages`.
    pub fn sent(&mut self, messages: u64) -> Ticket {
        let ticket = Ticket(self.first + self.slots.len() as u64);
        self.slots.push_back(Slot { after: self.predicted, messages, answer: None });
        self.predicted += messages;
        self.in_flight += 1;
        ticket
    }

    /// What follows from an answer; `None` if the ticket was answered already, or given up.
    pub fn answered(&mut self, ticket: Ticket, outcome: &Outcome) -> Option<Step> {
        let at = usize::try_from(ticket.0.checked_sub(self.first)?).ok()?;
        let slot = self.slots.get_mut(at).filter(|slot| slot.answer.is_none())?;
        let (answer, step) = slot.judge(self.base, outcome);
        slot.answer = Some(answer);
        self.in_flight -= 1;
        self.broken |= answer != Answer::AsPredicted;
        while let Some(Slot { answer: Some(Answer::AsPredicted), after, messages }) = self.slots.front() {
            self.last = after + messages;
            self.first += 1;
            self.slots.pop_front();
        }
        Some(step)
    }

    /// No answer is awaited any more: what has none is unclear. The rows of these tickets are perhaps stored.
    pub fn gave_up(&mut self) -> Vec<Ticket> {
        let mut given_up = Vec::with_capacity(self.in_flight);
        for (slot, number) in self.slots.iter_mut().zip(self.first..) {
            if slot.answer.is_none() {
                slot.answer = Some(Answer::Unclear);
                given_up.push(Ticket(number));
            }
        }
        self.in_flight = 0;
        self.broken |= !given_up.is_empty();
        given_up
    }

    /// Something was not stored as predicted, so nothing that is sent now could be.
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// How many tickets have no answer yet.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// How the run ended; `None` while answers are outstanding. After [`End::Predict`] the next run begins.
    pub fn end(&mut self) -> Option<End> {
        if self.in_flight > 0 {
            return None;
        }
        if !self.broken {
            return Some(End::GoOn);
        }
        if self.needs_the_stream() {
            return Some(End::Reconcile);
        }
        self.first += self.slots.len() as u64;
        self.slots.clear();
        self.base = self.last;
        self.predicted = self.last;
        self.broken = false;
        Some(End::Predict)
    }

    /// Whether something is not explained by the answers themselves.
    fn needs_the_stream(&self) -> bool {
        let mut hole = false;
        for slot in &self.slots {
            match slot.answer {
                // Its place can only have come up because somebody else's message fills the hole before it.
                Some(Answer::AsPredicted) if hole => return true,
                Some(Answer::AsPredicted) => {}
                Some(Answer::Hole) => hole = true,
                // Nothing of ours explains it.
                Some(Answer::Echo) if !hole => return true,
                Some(Answer::Echo) => {}
                Some(Answer::Unclear) | None => return true,
            }
        }
        false
    }
}

#[derive(Debug, Clone)]
struct Slot {
    after: u64,
    messages: u64,
    answer: Option<Answer>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    AsPredicted,
    /// Known not to be stored at its place.
    Hole,
    Echo,
    Unclear,
}

impl Slot {
    fn judge(&self, base: u64, outcome: &Outcome) -> (Answer, Step) {
        match outcome {
            Outcome::Stored(stored) => self.place(base, stored),
            Outcome::Refused(_) if self.messages > 1 => (Answer::Hole, Step::Singly),
            Outcome::Refused(refusal) => (Answer::Hole, Step::Refused(*refusal)),
            Outcome::Abandoned => (Answer::Hole, Step::Singly),
            Outcome::OutOfStep => (Answer::Echo, Step::Echo),
            Outcome::Unavailable(outage @ (Outage::Absent | Outage::Full)) => {
                (Answer::Hole, Step::Unavailable(*outage))
            }
            // It comes with a lost connection or a change of leader, where more than this one may be missing.
            Outcome::Unavailable(Outage::Down) => (Answer::Unclear, Step::Unavailable(Outage::Down)),
            Outcome::Unconfirmed(unclear) => (Answer::Unclear, Step::Unclear(*unclear)),
        }
    }

    /// A copy that came in first is at the predicted place too. A duplicate from before this run leaves a hole in it. Any
    /// other place is one that the broker was told not to use.
    fn place(&self, base: u64, stored: &Stored) -> (Answer, Step) {
        let last = self.after + self.messages;
        if stored.stream_seq == last {
            return (Answer::AsPredicted, Step::Stored { first: self.after + 1, last });
        }
        if stored.duplicate && stored.stream_seq <= base && self.messages == 1 {
            return (Answer::Hole, Step::Stored { first: stored.stream_seq, last: stored.stream_seq });
        }
        (Answer::Unclear, Step::Unclear(Unclear::Elsewhere))
    }
}
