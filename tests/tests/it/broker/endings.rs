use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::future::{BoxFuture, join_all};
use futures_util::stream;
use tidings::JetStream;
use tidings::broker::{Outage, Outcome, Publisher, StreamSpec, Unclear};
use tidings::services::Nats;
use tidings::services::proxy::Proxy;

use super::{SOON, message, of_bytes, publisher, sent, spec, stored};

fn nats() -> Nats {
    Nats::start().expect("nats-server starts")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_connection_answers_everything_at_once_and_for_good() {
    let nats = nats();
    let proxy = Proxy::start(nats.port()).unwrap();
    let jetstream = JetStream::url(nats.url_through(&proxy)).ack_timeout(SOON);
    let spec = spec();
    let publisher = publisher(&jetstream, &spec).await;
    assert_eq!(sent(&*publisher, message(&spec, 0), Some(0)).await, stored(1));
    proxy.freeze();
    let mut answers = Vec::new();
    for n in 1..=200 {
        answers.push(publisher.send(message(&spec, n), Some(n)).await);
    }
    let lost = publisher.lost();
    let started = Instant::now();
    proxy.cut();
    all_lost(answers).await;
    lost.await;
    assert!(started.elapsed() < SOON / 2, "not by a deadline");
    proxy.thaw();
    assert_eq!(sent(&*publisher, message(&spec, 1), Some(1)).await, Outcome::Unavailable(Outage::Down));
    let error = publisher.position().await.unwrap_err().to_string();
    assert!(error.contains("was lost"), "{error}");
    assert!(!publisher.probe().await);

    let next = super::publisher(&jetstream, &spec).await;
    let last = next.position().await.unwrap().last_seq;
    assert_eq!(sent(&*next, message(&spec, last), Some(last)).await, stored(last + 1));
}

/// A client that reconnects sends what still waits in it. This one does not, dropped or not.
#[tokio::test(flavor = "multi_thread")]
async fn what_waits_in_a_lost_publisher_is_not_sent_to_a_server_that_comes_back() {
    let mut nats = nats();
    let jetstream = JetStream::url(nats.url());
    let spec = spec();
    let publisher = publisher(&jetstream, &spec).await;
    assert_eq!(sent(&*publisher, message(&spec, 0), Some(0)).await, stored(1));
    nats.freeze();
    let answers = filled(&*publisher, &spec, |_| None).await;
    nats.kill();
    all_lost(answers).await;
    nats.start_again().unwrap();
    let next = super::publisher(&jetstream, &spec).await;
    for _ in 0..100 {
        assert_eq!(next.position().await.unwrap().last_seq, 1);
    }
    drop(publisher);
    assert_eq!(sent(&*next, message(&spec, 1), Some(1)).await, stored(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn handing_over_to_a_frozen_server_is_bounded() {
    let nats = nats();
    let within = Duration::from_millis(300);
    let jetstream = JetStream::url(nats.url()).ack_timeout(within);
    let spec = spec();
    let publisher = publisher(&jetstream, &spec).await;
    nats.freeze();
    // More than the client's queue and the sockets between us hold.
    let mut handed_over = 0;
    let payload = bytes::Bytes::from(vec![b'x'; 64 * 1024]);
    let refused = loop {
        let started = Instant::now();
        let sending = publisher.send(of_bytes(&spec, handed_over, payload.clone()), Some(handed_over));
        let answer = tokio::time::timeout(SOON, sending).await.expect("it hangs");
        if started.elapsed() >= within {
            break answer.await;
        }
        handed_over += 1;
        assert!(handed_over < 20_000, "it takes everything");
    };
    assert_eq!(refused, Outcome::Unconfirmed(Unclear::TimedOut));
    let started = Instant::now();
    let error = publisher.position().await.unwrap_err().to_string();
    assert!(error.contains("no answer") && started.elapsed() < SOON, "{error}");
    nats.thaw();
}

/// A connection that is let go with its queue full would write it out when the server reads again. Here only what the
/// sockets hold arrives.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_drop_a_frozen_server_gets_a_prefix_without_gaps_and_never_the_clients_queue() {
    let nats = nats();
    let jetstream = JetStream::url(nats.url());
    let spec = spec();
    let before = publisher(&jetstream, &spec).await;
    assert_eq!(sent(&*before, message(&spec, 0), Some(0)).await, stored(1));
    nats.freeze();
    let answers = filled(&*before, &spec, Some).await;
    let handed_over = answers.len() as u64;
    drop(before);
    all_lost(answers).await;
    nats.thaw();

    // The next owner reads where the stream stands and goes on; late messages of the one before make it read again.
    let next = publisher(&jetstream, &spec).await;
    let mut last = next.position().await.unwrap().last_seq;
    let mut own = 0;
    while last <= handed_over {
        match sent(&*next, message(&spec, last), Some(last)).await {
            Outcome::Stored(stored) if !stored.duplicate => (last, own) = (stored.stream_seq, own + 1),
            Outcome::Stored(_) | Outcome::OutOfStep => last = next.position().await.unwrap().last_seq,
            other => panic!("{other:?}"),
        }
    }
    assert!(own > 1_000, "the client's queue of 2,048 was sent: {own} of {handed_over} were left to do");
    let reading = stream::iter(1..=last).map(|seq| {
        let next = &next;
        async move { (seq, next.read(seq).await.unwrap().expect("it is there")) }
    });
    let read: Vec<_> = reading.buffered(100).collect().await;
    for (seq, there) in read {
        assert_eq!(there.message_id, message(&spec, seq - 1).message_id, "at {seq}");
    }
}

/// Hands over to a server that stands still until sockets and client are full.
async fn filled(
    publisher: &dyn Publisher,
    spec: &StreamSpec,
    expected: impl Fn(u64) -> Option<u64>,
) -> Vec<BoxFuture<'static, Outcome>> {
    let payload = bytes::Bytes::from(vec![b'x'; 16 * 1024]);
    let mut answers = Vec::new();
    for n in 1..=20_000 {
        let sending = publisher.send(of_bytes(spec, n, payload.clone()), expected(n));
        let Ok(answer) = tokio::time::timeout(Duration::from_secs(1), sending).await else { return answers };
        answers.push(answer);
    }
    panic!("it takes everything");
}

async fn all_lost(answers: Vec<BoxFuture<'static, Outcome>>) {
    let answers = tokio::time::timeout(SOON, join_all(answers)).await.expect("answers at once");
    for answer in answers {
        assert_eq!(answer, Outcome::Unconfirmed(Unclear::ConnectionLost));
    }
}
