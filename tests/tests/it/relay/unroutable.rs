//! A message that finds no way to a stream that is there: what stands behind it in its aggregate stays behind it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use tidings::broker::{
    Broker, Error, Message, Outage, Outcome, Position, Publisher, StreamInfo, StreamSpec, Subscription,
    SubscriptionSpec,
};
use tidings::{Database, JetStream, Relay, Tidings};

use super::place::Place;

/// JetStream, but for each event whose number is so, the first times it is sent there is no way.
struct NoWay {
    jetstream: JetStream,
    id: &'static str,
    times: Arc<AtomicU32>,
}

struct NoWayFor {
    publisher: Box<dyn Publisher>,
    id: &'static str,
    times: Arc<AtomicU32>,
}

impl Broker for NoWay {
    fn reachable(&self) -> BoxFuture<'_, Result<(), Error>> {
        self.jetstream.reachable()
    }

    fn publisher(&self, stream: StreamSpec) -> BoxFuture<'_, Result<Box<dyn Publisher>, Error>> {
        async move {
            let publisher = self.jetstream.publisher(stream).await?;
            let (id, times) = (self.id, Arc::clone(&self.times));
            Ok(Box::new(NoWayFor { publisher, id, times }) as Box<dyn Publisher>)
        }
        .boxed()
    }

    fn streams<'a>(&'a self, source: &'a str) -> BoxFuture<'a, Result<Vec<StreamInfo>, Error>> {
        self.jetstream.streams(source)
    }

    fn subscribe(&self, subscription: SubscriptionSpec) -> BoxFuture<'_, Result<Box<dyn Subscription>, Error>> {
        self.jetstream.subscribe(subscription)
    }

    fn flush(&self) -> BoxFuture<'_, ()> {
        self.jetstream.flush()
    }
}

impl Publisher for NoWayFor {
    fn send(&self, message: Message, expected: Option<u64>) -> BoxFuture<'_, BoxFuture<'static, Outcome>> {
        let none = message.message_id.ends_with(self.id)
            && self.times.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |times| times.checked_sub(1)).is_ok();
        if none {
            let nobody: BoxFuture<'static, Outcome> = ready(Outcome::Unavailable(Outage::Absent)).boxed();
            return ready(nobody).boxed();
        }
        self.publisher.send(message, expected)
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

    fn answers_within(&self) -> Duration {
        self.publisher.answers_within()
    }

    fn lost(&self) -> BoxFuture<'static, ()> {
        self.publisher.lost()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_stands_behind_it_stays_behind_it() {
    let place = Place::shared(1).await;
    // The ids are e1, e2, …; all of one aggregate, and all read at once.
    place.append("e", 40, 1).await;
    let broker = NoWay { jetstream: JetStream::url(&place.nats), id: "#e3", times: Arc::new(AtomicU32::new(3)) };
    let times = Arc::clone(&broker.times);
    let running = Tidings::new(Database::url(&place.database), broker)
        .source(&place.source)
        // The wait is over before it has been written down.
        .relay(Relay::default().in_flight(1).backoff(Duration::from_micros(1), Duration::from_millis(1)))
        .start()
        .await
        .unwrap();
    place.settles().await;
    assert_eq!(times.load(Ordering::SeqCst), 0, "there was no way for it three times");
    running.drain(Duration::from_secs(20)).await.unwrap();
}
