//! The answers to what one publisher sent: one inbox, a number for each message, and no timer.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_nats::{Message, StatusCode, Subscriber};
use futures_util::StreamExt;
use serde::Deserialize;
use tokio::sync::{oneshot, watch};

use crate::protocol::outcome::{Outage, Outcome, Unclear, of_error};

/// What is waited for, and whether the connection that would bring it is still there.
pub(super) struct Acks {
    inbox: String,
    stream: String,
    waiting: Mutex<Waiting>,
    lost: watch::Sender<bool>,
}

/// A ring: answers come about in the order of the questions.
#[derive(Default)]
struct Waiting {
    first: u64,
    senders: VecDeque<Option<oneshot::Sender<Answer>>>,
    lost: bool,
}

/// The stream's word that it has a message, or why not.
pub(super) type Answer = Result<Ack, Outcome>;

/// Where the stream has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ack {
    /// Of the last message, where it was a batch.
    pub(super) stream_seq: u64,
    pub(super) duplicate: bool,
    /// How many messages the batch had.
    pub(super) batch: Option<u64>,
}

/// One question. Dropping it forgets it.
pub(super) struct Ask {
    number: u64,
    answer: oneshot::Receiver<Answer>,
    acks: Arc<Acks>,
}

impl Acks {
    pub(super) fn new(inbox: String, stream: String) -> Arc<Acks> {
        Arc::new(Acks { inbox, stream, waiting: Mutex::default(), lost: watch::Sender::new(false) })
    }

    /// What to subscribe to.
    pub(super) fn subject(&self) -> String {
        format!("{}.*", self.inbox)
    }

    /// Makes room for one answer; `None` if the connection is lost.
    pub(super) fn ask(self: &Arc<Acks>) -> Option<Ask> {
        let mut waiting = self.waiting();
        if waiting.lost {
            return None;
        }
        let (sender, answer) = oneshot::channel();
        let number = waiting.first + waiting.senders.len() as u64;
        waiting.senders.push_back(Some(sender));
        Some(Ask { number, answer, acks: Arc::clone(self) })
    }

    /// Whatever is waited for will not come, and nothing more is asked.
    pub(super) fn lose(&self) {
        let senders = {
            let mut waiting = self.waiting();
            waiting.lost = true;
            std::mem::take(&mut waiting.senders)
        };
        drop(senders);
        self.lost.send_replace(true);
    }

    pub(super) fn is_lost(&self) -> bool {
        *self.lost.borrow()
    }

    /// Resolves when the connection is lost.
    pub(super) fn lost(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut lost = self.lost.subscribe();
        async move {
            // The sender is gone only with the publisher, and the connection with it.
            let _ = lost.wait_for(|lost| *lost).await;
        }
    }

    /// Hands the answers on until the connection ends.
    pub(super) async fn listen(self: Arc<Acks>, mut subscriber: Subscriber) {
        while let Some(message) = subscriber.next().await {
            let number = message.subject.as_str().rsplit('.').next().and_then(|number| number.parse().ok());
            if let Some(sender) = number.and_then(|number| self.take(number)) {
                // Nobody waits any more: the one who asked has given up.
                let _ = sender.send(read(&message, &self.stream));
            }
        }
        self.lose();
    }

    fn take(&self, number: u64) -> Option<oneshot::Sender<Answer>> {
        let mut waiting = self.waiting();
        let at = usize::try_from(number.checked_sub(waiting.first)?).ok()?;
        let sender = waiting.senders.get_mut(at)?.take();
        while let Some(None) = waiting.senders.front() {
            waiting.senders.pop_front();
            waiting.first += 1;
        }
        sender
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    fn room_taken(&self) -> usize {
        self.waiting().senders.len()
    }
}

impl Ask {
    /// Where the answer is to be sent.
    pub(super) fn reply(&self) -> String {
        format!("{}.{}", self.acks.inbox, self.number)
    }

    /// Names the batch that this is the answer to: no other in the stream has the name.
    pub(super) fn batch_id(&self) -> String {
        let inbox = self.acks.inbox.rsplit('.').next().unwrap_or_default();
        format!("{inbox}-{}", self.number)
    }

    /// The answer, however long it takes. A lost connection answers at once.
    pub(super) async fn answer(mut self) -> Answer {
        (&mut self.answer).await.unwrap_or(Err(Outcome::Unconfirmed(Unclear::ConnectionLost)))
    }
}

impl Drop for Ask {
    fn drop(&mut self) {
        drop(self.acks.take(self.number));
    }
}

#[derive(Deserialize)]
struct Reply {
    error: Option<Problem>,
    stream: Option<String>,
    seq: Option<u64>,
    #[serde(default)]
    duplicate: bool,
    count: Option<u64>,
}

#[derive(Deserialize)]
struct Problem {
    code: u16,
    #[serde(default)]
    err_code: u64,
}

fn read(message: &Message, stream: &str) -> Answer {
    if message.payload.is_empty() && message.status == Some(StatusCode::NO_RESPONDERS) {
        return Err(Outcome::Unavailable(Outage::Absent));
    }
    match serde_json::from_slice::<Reply>(&message.payload) {
        Ok(Reply { error: Some(problem), .. }) => Err(of_error(problem.err_code, problem.code)),
        Ok(Reply { stream: Some(there), seq: Some(stream_seq), duplicate, count, .. }) if there == stream => {
            Ok(Ack { stream_seq, duplicate, batch: count })
        }
        Ok(Reply { stream: Some(_), .. }) => Err(Outcome::Unconfirmed(Unclear::NotOurs)),
        Ok(_) | Err(_) => Err(Outcome::Unconfirmed(Unclear::Code(0))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acks() -> Arc<Acks> {
        Acks::new("_INBOX.abc".into(), "S".into())
    }

    fn message(payload: &'static str, status: Option<StatusCode>) -> Message {
        Message {
            subject: "_INBOX.abc.0".into(),
            reply: None,
            payload: payload.into(),
            headers: None,
            status,
            description: None,
            length: 0,
        }
    }

    #[test]
    fn answers_are_read_by_code() {
        let answer = |payload, status| read(&message(payload, status), "S");
        let ack = Ack { stream_seq: 7, duplicate: false, batch: None };
        assert_eq!(answer(r#"{"stream":"S","seq":7}"#, None), Ok(ack));
        assert_eq!(answer(r#"{"stream":"S","seq":7,"duplicate":true}"#, None), Ok(Ack { duplicate: true, ..ack }));
        let batch = r#"{"stream":"S","seq":7,"domain":"d","batch":"b","count":5}"#;
        assert_eq!(answer(batch, None), Ok(Ack { batch: Some(5), ..ack }));
        assert_eq!(answer(r#"{"stream":"T","seq":7}"#, None), Err(Outcome::Unconfirmed(Unclear::NotOurs)));
        let error =
            r#"{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 3"},"stream":"S","seq":0}"#;
        assert_eq!(answer(error, None), Err(Outcome::OutOfStep));
        assert_eq!(answer("", Some(StatusCode::NO_RESPONDERS)), Err(Outcome::Unavailable(Outage::Absent)));
        assert_eq!(answer("what?", None), Err(Outcome::Unconfirmed(Unclear::Code(0))));
    }

    #[test]
    fn what_is_answered_or_given_up_takes_no_room() {
        let acks = acks();
        let asked: Vec<Ask> = (0..5).filter_map(|_| acks.ask()).collect();
        let numbers: Vec<String> = asked.iter().map(Ask::reply).collect();
        assert_eq!(numbers[4], "_INBOX.abc.4");
        assert!(acks.take(3).is_some());
        assert!(acks.take(3).is_none(), "twice");
        assert_eq!(acks.room_taken(), 5, "those before are still awaited");
        drop(asked);
        assert_eq!(acks.room_taken(), 0);
        assert!(acks.take(17).is_none(), "never asked");
        assert!(acks.ask().is_some_and(|ask| ask.number == 5));
    }

    #[tokio::test]
    async fn a_lost_connection_answers_everything_at_once_and_takes_no_more() {
        let acks = acks();
        let (one, two) = (acks.ask().unwrap(), acks.ask().unwrap());
        acks.lose();
        let lost = Err(Outcome::Unconfirmed(Unclear::ConnectionLost));
        assert_eq!((one.answer().await, two.answer().await), (lost.clone(), lost));
        assert!(acks.ask().is_none());
        acks.lost().await;
    }
}
