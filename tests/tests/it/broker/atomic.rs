use futures_util::future::join_all;
use tidings::JetStream;
use tidings::broker::{Message, Outcome, Stored, StreamSpec};
use tidings::testing;

use super::{beside, message, publisher, sent, spec, stored, stream_name};

fn jetstream() -> JetStream {
    testing::jetstream().atomic_batches(true)
}

fn messages(spec: &StreamSpec, numbers: std::ops::Range<u64>) -> Vec<Message> {
    numbers.map(|n| message(spec, n)).collect()
}

fn last(stream_seq: u64) -> Outcome {
    Outcome::Stored(Stored { stream_seq, duplicate: false })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_is_stored_whole_or_not_at_all() {
    let spec = spec();
    let publisher = publisher(&jetstream(), &spec).await;
    assert_eq!(publisher.batch(), Some(1_000));
    assert_eq!(publisher.send_batch(messages(&spec, 0..1_000), 0).await.await, last(1_000));
    assert_eq!(publisher.send_batch(messages(&spec, 1_000..1_001), 1_000).await.await, last(1_001), "of one");

    let drifted = publisher.send_batch(messages(&spec, 2_000..2_010), 999).await.await;
    assert_eq!(drifted, Outcome::OutOfStep);
    let overlapping = publisher.send_batch(messages(&spec, 995..1_005), 1_001).await.await;
    assert_eq!(overlapping, Outcome::Abandoned);
    let mut unsendable = messages(&spec, 2_000..2_010);
    unsendable[4].headers.push(("Nats-Rollup".into(), "all".into()));
    assert_eq!(publisher.send_batch(unsendable, 1_001).await.await, Outcome::Abandoned);
    let mut too_large = messages(&spec, 2_000..2_010);
    too_large[4].payload = vec![b'x'; 2 * 1024 * 1024].into();
    assert_eq!(publisher.send_batch(too_large, 1_001).await.await, Outcome::Abandoned);
    let too_many = publisher.send_batch(messages(&spec, 2_000..3_001), 1_001).await.await;
    assert_eq!(too_many, Outcome::Abandoned);
    assert_eq!(publisher.position().await.unwrap().last_seq, 1_001);

    assert_eq!(sent(&*publisher, message(&spec, 1_001), Some(1_001)).await, stored(1_002));
    let there = publisher.read(500).await.unwrap().unwrap();
    assert_eq!((there.message_id, there.payload), (message(&spec, 499).message_id, message(&spec, 499).payload));
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_and_single_messages_are_chained() {
    let spec = spec();
    let publisher = publisher(&jetstream(), &spec).await;
    let mut answers = Vec::new();
    for batch in 0..4u64 {
        let first = batch * 101;
        answers.push(publisher.send_batch(messages(&spec, first..first + 100), first).await);
        answers.push(publisher.send(message(&spec, first + 100), Some(first + 100)).await);
    }
    let outcomes = join_all(answers).await;
    let wanted: Vec<Outcome> = (0..4).flat_map(|batch| [last(batch * 101 + 100), last(batch * 101 + 101)]).collect();
    assert_eq!(outcomes, wanted);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_was_made_without_batches_is_changed() {
    let spec = spec();
    let plain = publisher(&testing::jetstream(), &spec).await;
    assert_eq!(plain.batch(), None);
    assert_eq!(plain.send_batch(messages(&spec, 0..2), 0).await.await, Outcome::Abandoned);
    let allowed = async || {
        let context = beside(&testing::servers().nats).await;
        context.get_stream(stream_name(&spec)).await.unwrap().cached_info().config.allow_atomic_publish
    };
    assert!(!allowed().await);
    let batching = publisher(&jetstream(), &spec).await;
    assert!(allowed().await);
    assert_eq!(batching.send_batch(messages(&spec, 0..2), 0).await.await, last(2));
    assert_eq!(batching.incarnation(), plain.incarnation(), "it is the same stream");
}
