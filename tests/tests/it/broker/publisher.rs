use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::{self, FuturesUnordered};
use tidings::broker::{Message, Outage, Outcome, Refusal, Stored, Unclear};
use tidings::testing;

use super::{SOON, beside, message, of_bytes, publisher, sent, spec, stored, stream_name};

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_stored_only_where_it_is_expected() {
    let spec = spec();
    let publisher = publisher(&testing::jetstream(), &spec).await;
    assert_eq!(sent(&*publisher, message(&spec, 1), Some(0)).await, stored(1));
    assert_eq!(sent(&*publisher, message(&spec, 2), Some(0)).await, Outcome::OutOfStep);
    assert_eq!(sent(&*publisher, message(&spec, 2), Some(5)).await, Outcome::OutOfStep);
    assert_eq!(sent(&*publisher, message(&spec, 2), Some(1)).await, stored(2));
    assert_eq!(sent(&*publisher, message(&spec, 3), None).await, stored(3), "without an expectation, anywhere");
    assert_eq!(publisher.position().await.unwrap().last_seq, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn five_thousand_in_flight_are_answered_each_for_itself() {
    let spec = spec();
    let publisher = publisher(&testing::jetstream(), &spec).await;
    let mut answers = Vec::new();
    for n in 0..5_000 {
        answers.push(publisher.send(message(&spec, n), Some(n)).await);
    }
    for (n, answer) in (1..).zip(answers) {
        assert_eq!(tokio::time::timeout(SOON, answer).await.expect("an answer"), stored(n));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_nobody_waits_for_are_no_hindrance() {
    let spec = spec();
    let publisher = publisher(&testing::jetstream(), &spec).await;
    for n in 0..1_000 {
        drop(publisher.send(message(&spec, n), Some(n)).await);
    }
    assert_eq!(sent(&*publisher, message(&spec, 1_000), Some(1_000)).await, stored(1_001));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_sent_is_refused_for_what_it_is() {
    let spec = spec();
    let publisher = publisher(&testing::jetstream(), &spec).await;
    let too_large = of_bytes(&spec, 1, Bytes::from(vec![b'x'; 2 * 1024 * 1024]));
    assert_eq!(sent(&*publisher, too_large, Some(0)).await, Outcome::Refused(Refusal::TooLarge));
    for (name, value) in [("Nats-Rollup", "all"), ("nats-msg-id", "x"), ("a", "b\r\nc: d"), ("a b:", "c")] {
        let mut with_header = message(&spec, 1);
        with_header.headers.push((name.into(), value.into()));
        assert_eq!(sent(&*publisher, with_header, Some(0)).await, Outcome::Refused(Refusal::Header), "{name}");
    }
    let mut with_space = message(&spec, 1);
    with_space.subject.push_str(" x");
    assert_eq!(sent(&*publisher, with_space, Some(0)).await, Outcome::Refused(Refusal::Subject));
    let mut elsewhere = message(&spec, 1);
    elsewhere.subject = format!("{}.nobody.listens", spec.source);
    assert_eq!(sent(&*publisher, elsewhere, Some(0)).await, Outcome::Unavailable(Outage::Absent));
    assert_eq!(sent(&*publisher, message(&spec, 1), Some(0)).await, stored(1), "none of them was stored");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_stream_and_a_missing_one_are_told_apart() {
    let spec = spec();
    let publisher = publisher(&testing::jetstream(), &spec).await;
    assert_eq!(sent(&*publisher, message(&spec, 1), Some(0)).await, stored(1));
    let context = beside(&testing::servers().nats).await;
    let mut config = context.get_stream(stream_name(&spec)).await.unwrap().cached_info().config.clone();
    config.max_messages = 1;
    context.update_stream(config).await.unwrap();
    assert_eq!(sent(&*publisher, message(&spec, 2), Some(1)).await, Outcome::Unavailable(Outage::Full));
    context.delete_stream(stream_name(&spec)).await.unwrap();
    assert_eq!(sent(&*publisher, message(&spec, 2), Some(1)).await, Outcome::Unavailable(Outage::Absent));
    let error = publisher.position().await.unwrap_err().to_string();
    assert!(error.contains(&stream_name(&spec)), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_duplicate_is_believed_when_the_message_is_there() {
    let spec = spec();
    let publisher = publisher(&testing::jetstream(), &spec).await;
    for n in 0..3 {
        assert_eq!(sent(&*publisher, message(&spec, n), Some(n)).await, stored(n + 1));
    }
    let again = Outcome::Stored(Stored { stream_seq: 2, duplicate: true });
    assert_eq!(sent(&*publisher, message(&spec, 1), Some(3)).await, again);

    let mut of_another = message(&spec, 1);
    of_another.headers[0].1 = "somebody else".into();
    assert_eq!(sent(&*publisher, of_another, Some(3)).await, Outcome::Unconfirmed(Unclear::NotOurs));

    let stream = beside(&testing::servers().nats).await.get_stream(stream_name(&spec)).await.unwrap();
    stream.purge().await.unwrap();
    assert_eq!(sent(&*publisher, message(&spec, 1), Some(3)).await, Outcome::Unconfirmed(Unclear::NotOurs), "purged");
}

#[tokio::test(flavor = "multi_thread")]
async fn position_and_messages_are_read_also_where_some_are_gone() {
    let spec = spec();
    let publisher = publisher(&testing::jetstream(), &spec).await;
    let empty = publisher.position().await.unwrap();
    assert_eq!((empty.first_seq, empty.last_seq, empty.incarnation), (0, 0, publisher.incarnation()));
    assert_eq!(publisher.read(1).await.unwrap(), None);
    for n in 0..300 {
        publisher.send(message(&spec, n), Some(n)).await.await;
    }
    let stream = beside(&testing::servers().nats).await.get_stream(stream_name(&spec)).await.unwrap();
    stream.purge().sequence(101).await.unwrap();
    stream.delete_message(200).await.unwrap();
    let position = publisher.position().await.unwrap();
    assert_eq!((position.first_seq, position.last_seq), (101, 300));

    let reading = stream::iter(1..=301u64).map(|seq| {
        let publisher = &publisher;
        async move { (seq, publisher.read(seq).await.unwrap()) }
    });
    let read: Vec<(u64, Option<Message>)> = reading.buffered(100).collect().await;
    for (seq, there) in read {
        let wanted = (101..=300).contains(&seq) && seq != 200;
        assert_eq!(there.is_some(), wanted, "{seq}");
        if let Some(there) = there {
            let sent = message(&spec, seq - 1);
            assert_eq!((&there.message_id, &there.payload), (&sent.message_id, &sent.payload));
            assert!(sent.headers.iter().all(|header| there.headers.contains(header)), "{:?}", there.headers);
        }
    }
    stream.purge().await.unwrap();
    let position = publisher.position().await.unwrap();
    assert_eq!((position.first_seq, position.last_seq), (301, 300));
    assert_eq!(sent(&*publisher, message(&spec, 300), Some(300)).await, stored(301));
}

/// A run whose prediction fails in the middle: what is behind it is an echo, and nothing of it is stored.
#[tokio::test(flavor = "multi_thread")]
async fn what_stands_behind_a_message_that_is_not_stored_is_not_stored_either() {
    let spec = spec();
    let publisher = publisher(&testing::jetstream(), &spec).await;
    let mut answers = FuturesUnordered::new();
    for n in 0..100u64 {
        let mut next = message(&spec, n);
        if n == 40 {
            next.subject = format!("{}.nobody.listens", spec.source);
        }
        let answer = publisher.send(next, Some(n)).await;
        answers.push(async move { (n, answer.await) });
    }
    let started = Instant::now();
    while let Some((n, outcome)) = answers.next().await {
        let wanted = match n {
            0..40 => stored(n + 1),
            40 => Outcome::Unavailable(Outage::Absent),
            _ => Outcome::OutOfStep,
        };
        assert_eq!(outcome, wanted, "{n}");
    }
    assert!(started.elapsed() < Duration::from_secs(4), "nobody had to wait for a deadline");
    assert_eq!(publisher.position().await.unwrap().last_seq, 40);
}
