//! A broker in between: it writes down what passes, and ends its own process at a chosen step.
//!
//! No special build is needed for that: [`Broker`] and [`Publisher`] are public, and everything the relay hands to the
//! broker passes through them.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tidings::broker::{
    Broker, Error, Message, Outcome, Position, Publisher, StreamInfo, StreamSpec, Subscription, SubscriptionSpec,
};

use crate::journal::Writer;

/// Where a relay process dies, by SIGKILL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Crash {
    /// When so many acknowledgements have arrived, before the relay hears of the last one: that event is stored by the
    /// broker, and its pending row is still there.
    Acknowledged(u64),
    /// When so many messages of one partition were sent, with more than that claimed: in the middle of a batch. The
    /// broker has what was sent, the relay has heard of none of it, and the rest was never handed over.
    Sent {
        /// Of the partition.
        partition: i32,
        /// So many.
        messages: u64,
    },
}

/// As an argument of the relay process: `acknowledged:20`, `sent:2:6`.
impl fmt::Display for Crash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Crash::Acknowledged(count) => write!(f, "acknowledged:{count}"),
            Crash::Sent { partition, messages } => write!(f, "sent:{partition}:{messages}"),
        }
    }
}

impl FromStr for Crash {
    type Err = String;

    fn from_str(text: &str) -> Result<Crash, String> {
        let wrong = || format!("{text:?} is neither `acknowledged:<count>` nor `sent:<partition>:<messages>`");
        let parts: Vec<&str> = text.split(':').collect();
        let number = |text: &str| text.parse::<u64>().map_err(|_| wrong());
        match parts.as_slice() {
            ["acknowledged", count] => Ok(Crash::Acknowledged(number(count)?)),
            ["sent", partition, messages] => {
                Ok(Crash::Sent { partition: partition.parse().map_err(|_| wrong())?, messages: number(messages)? })
            }
            _ => Err(wrong()),
        }
    }
}

/// The broker in between.
pub struct Witness<B> {
    broker: B,
    script: Arc<Script>,
}

struct Script {
    journal: Writer,
    crash: Option<Crash>,
    acknowledged: AtomicU64,
    sent: AtomicU64,
}

impl<B> Witness<B> {
    /// Stands before `broker`, writes to `journal`, and dies as told.
    pub fn new(broker: B, journal: Writer, crash: Option<Crash>) -> Witness<B> {
        let script = Script { journal, crash, acknowledged: AtomicU64::new(0), sent: AtomicU64::new(0) };
        Witness { broker, script: Arc::new(script) }
    }
}

impl<B> fmt::Debug for Witness<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Witness").field("crash", &self.script.crash).finish_non_exhaustive()
    }
}

impl<B: Broker> Broker for Witness<B> {
    fn check(&self) -> Result<(), String> {
        self.broker.check()
    }

    fn reachable(&self) -> BoxFuture<'_, Result<(), Error>> {
        self.broker.reachable()
    }

    fn publisher(&self, stream: StreamSpec) -> BoxFuture<'_, Result<Box<dyn Publisher>, Error>> {
        async move {
            let partition = stream.partition;
            let publisher = self.broker.publisher(stream).await?;
            let script = Arc::clone(&self.script);
            Ok(Box::new(WitnessPublisher { publisher, partition, script }) as Box<dyn Publisher>)
        }
        .boxed()
    }

    fn streams<'a>(&'a self, source: &'a str) -> BoxFuture<'a, Result<Vec<StreamInfo>, Error>> {
        self.broker.streams(source)
    }

    fn subscribe(&self, subscription: SubscriptionSpec) -> BoxFuture<'_, Result<Box<dyn Subscription>, Error>> {
        self.broker.subscribe(subscription)
    }

    fn flush(&self) -> BoxFuture<'_, ()> {
        self.broker.flush()
    }
}

struct WitnessPublisher {
    publisher: Box<dyn Publisher>,
    partition: i32,
    script: Arc<Script>,
}

impl Publisher for WitnessPublisher {
    #[expect(
        clippy::async_yields_async,
        reason = "the outer future hands the message over, the inner one is the answer"
    )]
    fn send(&self, message: Message, expected: Option<u64>) -> BoxFuture<'_, BoxFuture<'static, Outcome>> {
        async move {
            let (partition, id) = (self.partition, event_id(&message));
            self.script.journal.sent(partition, &id);
            let answer = self.publisher.send(message, expected).await;
            if self.script.ends_with(partition) {
                // Messages go out in order: that this one is stored says that all before it are.
                let outcome = answer.await;
                self.script.journal.answered(partition, &id, &outcome);
                if matches!(outcome, Outcome::Stored(_)) {
                    die();
                }
                self.script.sent.store(0, Ordering::SeqCst);
                return ready(outcome).boxed();
            }
            let script = Arc::clone(&self.script);
            async move {
                let outcome = answer.await;
                script.journal.answered(partition, &id, &outcome);
                if matches!(outcome, Outcome::Stored(_)) {
                    script.acknowledged();
                }
                outcome
            }
            .boxed()
        }
        .boxed()
    }

    fn position(&self) -> BoxFuture<'_, Result<Position, Error>> {
        self.publisher.position()
    }

    fn read(&self, stream_seq: u64) -> BoxFuture<'_, Result<Option<Message>, Error>> {
        self.publisher.read(stream_seq)
    }

    fn probe(&self) -> BoxFuture<'_, bool> {
        self.publisher.probe()
    }

    fn incarnation(&self) -> i64 {
        self.publisher.incarnation()
    }

    fn max_message_bytes(&self) -> usize {
        self.publisher.max_message_bytes()
    }
}

impl Script {
    /// Whether this message is the last one that this process sends.
    fn ends_with(&self, partition: i32) -> bool {
        match self.crash {
            Some(Crash::Sent { partition: chosen, messages }) if chosen == partition => {
                self.sent.fetch_add(1, Ordering::SeqCst) + 1 == messages
            }
            Some(Crash::Sent { .. } | Crash::Acknowledged(_)) | None => false,
        }
    }

    fn acknowledged(&self) {
        if let Some(Crash::Acknowledged(count)) = self.crash
            && self.acknowledged.fetch_add(1, Ordering::SeqCst) + 1 == count
        {
            die();
        }
    }
}

/// As `kill -9` from outside: nothing is flushed, released or given up.
fn die() -> ! {
    let _ = kill(Pid::this(), Signal::SIGKILL);
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

fn event_id(message: &Message) -> String {
    let id = message.headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("ce-id"));
    id.map_or_else(|| message.message_id.clone(), |(_, value)| value.clone())
}
