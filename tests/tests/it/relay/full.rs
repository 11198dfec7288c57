//! A stream that takes nothing more is asked now and then, however much waits and however often somebody says so.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use diesel_async::{AsyncConnection, AsyncPgConnection};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tidings::broker::{
    Broker, Error, Message, Outcome, Position, Publisher, StreamInfo, StreamSpec, Subscription, SubscriptionSpec,
};
use tidings::{Database, JetStream, NewEvent, Relay, Tidings};

use super::place::Place;

/// Counts what is offered to the broker behind it.
struct Counting {
    broker: JetStream,
    offered: Arc<AtomicU64>,
}

struct CountingPublisher {
    publisher: Box<dyn Publisher>,
    offered: Arc<AtomicU64>,
}

impl Broker for Counting {
    fn check(&self) -> Result<(), String> {
        self.broker.check()
    }

    fn reachable(&self) -> BoxFuture<'_, Result<(), Error>> {
        self.broker.reachable()
    }

    fn publisher(&self, stream: StreamSpec) -> BoxFuture<'_, Result<Box<dyn Publisher>, Error>> {
        async move {
            let (publisher, offered) = (self.broker.publisher(stream).await?, Arc::clone(&self.offered));
            Ok(Box::new(CountingPublisher { publisher, offered }) as Box<dyn Publisher>)
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

impl Publisher for CountingPublisher {
    fn send(&self, message: Message, expected: Option<u64>) -> BoxFuture<'_, BoxFuture<'static, Outcome>> {
        self.offered.fetch_add(1, Ordering::SeqCst);
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
}

const BACKLOG: i64 = 3_000;
const HINTS: i64 = 60;

#[tokio::test(flavor = "multi_thread")]
async fn a_full_stream_is_asked_ever_more_slowly_and_nothing_is_counted() {
    let place = Place::shared(1).await;
    let offered = Arc::new(AtomicU64::new(0));
    let broker = Counting { broker: JetStream::url(&place.nats), offered: Arc::clone(&offered) };
    let running = Tidings::new(Database::url(&place.database), broker)
        .source(&place.source)
        .relay(Relay::default().in_flight(8))
        .start()
        .await
        .unwrap();
    place.append("a", 10, 10).await;
    place.settles().await;
    let jetstream = place.jetstream().await;
    let mut config = place.streams(&jetstream).await.remove(0).config;
    config.max_messages = 15;
    jetstream.update_stream(&config).await.unwrap();
    let backlog = format!(
        "SELECT tidings.append('relay.tested', 'x', id => 'unordered-' || g) FROM generate_series(1, {BACKLOG}) g"
    );
    place.execute(&backlog).await;
    place.becomes("SELECT count(*) AS number FROM tidings.confirmation", 15).await;

    let before = offered.load(Ordering::SeqCst);
    let mut conn = AsyncPgConnection::establish(&place.database).await.unwrap();
    // Each of these wakes the relay. How much is offered in the time of all of them is what is measured.
    let mut pace = tokio::time::interval(Duration::from_millis(50));
    for _ in 0..HINTS {
        pace.tick().await;
        let event = NewEvent::raw("relay.tested", "{}");
        tidings::transaction(&mut conn, async |tx| tx.append(event).await.map(drop)).await.unwrap();
    }
    let meanwhile = offered.load(Ordering::SeqCst) - before;
    assert!((1..40).contains(&meanwhile), "{meanwhile} publishes were offered to a full stream");

    let untouched = "SELECT count(*) AS number FROM tidings.pending WHERE state = 'ready' AND attempts = 0";
    assert_eq!(place.number(untouched).await, 10 + BACKLOG + HINTS - 15);
    config.max_messages = -1;
    jetstream.update_stream(&config).await.unwrap();
    place.settles().await;
    running.drain(Duration::from_secs(20)).await.unwrap();
}
