use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tidings::JetStream;
use tidings::broker::{Outage, Outcome, Unclear};
use tidings::services::Nats;
use tidings::services::proxy::Proxy;

use super::{SOON, beside, message, of_bytes, publisher, sent, spec, stored, stream_name};

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
    for answer in join_all(answers).await {
        assert_eq!(answer, Outcome::Unconfirmed(Unclear::ConnectionLost));
    }
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

/// What waits in the client goes out when the server is back, unless the connection ended with the publisher.
#[tokio::test(flavor = "multi_thread")]
async fn what_waits_in_a_dropped_publisher_is_not_sent_to_a_server_that_comes_back() {
    let mut nats = nats();
    let jetstream = JetStream::url(nats.url());
    let spec = spec();
    let publisher = publisher(&jetstream, &spec).await;
    assert_eq!(sent(&*publisher, message(&spec, 0), Some(0)).await, stored(1));
    nats.freeze();
    let mut answers = Vec::new();
    for n in 1..=1_000 {
        answers.push(publisher.send(message(&spec, n), None).await);
    }
    nats.kill();
    for answer in join_all(answers).await {
        assert_eq!(answer, Outcome::Unconfirmed(Unclear::ConnectionLost));
    }
    // The publisher is still there: not even then.
    nats.start_again().unwrap();
    let next = super::publisher(&jetstream, &spec).await;
    assert_eq!(next.position().await.unwrap().last_seq, 1);
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
        let answer = publisher.send(of_bytes(&spec, handed_over, payload.clone()), Some(handed_over)).await;
        assert!(started.elapsed() < SOON, "it hangs");
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

#[tokio::test(flavor = "multi_thread")]
async fn after_a_drop_a_frozen_server_gets_a_prefix_without_gaps_or_nothing() {
    let nats = nats();
    let jetstream = JetStream::url(nats.url());
    let spec = spec();
    let before = publisher(&jetstream, &spec).await;
    assert_eq!(sent(&*before, message(&spec, 0), Some(0)).await, stored(1));
    nats.freeze();
    let mut answers = Vec::new();
    let payload = bytes::Bytes::from(vec![b'x'; 4 * 1024]);
    for n in 1..=2_000 {
        let sending = before.send(of_bytes(&spec, n, payload.clone()), Some(n));
        let Ok(answer) = tokio::time::timeout(Duration::from_secs(1), sending).await else { break };
        answers.push(answer);
    }
    drop(before);
    for answer in join_all(answers).await {
        assert!(matches!(answer, Outcome::Unconfirmed(Unclear::ConnectionLost)), "{answer:?}");
    }
    nats.thaw();

    // The next owner reads where the stream stands and goes on; late messages of the one before make it read again.
    let next = publisher(&jetstream, &spec).await;
    let mut last = next.position().await.unwrap().last_seq;
    while last < 2_100 {
        match sent(&*next, message(&spec, last), Some(last)).await {
            Outcome::Stored(stored) => {
                last = if stored.duplicate { next.position().await.unwrap().last_seq } else { stored.stream_seq }
            }
            Outcome::OutOfStep => last = next.position().await.unwrap().last_seq,
            other => panic!("{other:?}"),
        }
    }
    let stream = beside(&nats).await.get_stream(stream_name(&spec)).await.unwrap();
    assert_eq!(stream.cached_info().state.messages, last);
    for seq in 1..=last {
        let there = next.read(seq).await.unwrap().expect("it is there");
        assert_eq!(there.message_id, message(&spec, seq - 1).message_id, "at {seq}");
    }
}
