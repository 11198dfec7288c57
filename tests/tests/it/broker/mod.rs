//! One publisher against a real server: what it believes, and what becomes of it when the server does not answer.

mod atomic;
mod endings;
mod publisher;

use std::time::Duration;

use async_nats::jetstream;
use bytes::Bytes;
use tidings::JetStream;
use tidings::broker::{Broker, Message, Outcome, Publisher, Stored, StreamSpec};
use tidings::services::Nats;

const SOON: Duration = Duration::from_secs(60);

/// A source that no other test has, with its only partition.
fn spec() -> StreamSpec {
    StreamSpec { source: format!("broker-{}", uuid::Uuid::new_v4().simple()), partition: 0, partitions: 1 }
}

fn stream_name(spec: &StreamSpec) -> String {
    format!("{}_0", spec.source)
}

async fn publisher(jetstream: &JetStream, spec: &StreamSpec) -> Box<dyn Publisher> {
    jetstream.publisher(spec.clone()).await.expect("a publisher")
}

fn message(spec: &StreamSpec, n: u64) -> Message {
    of_bytes(spec, n, Bytes::from(format!("event {n}")))
}

fn of_bytes(spec: &StreamSpec, n: u64, payload: Bytes) -> Message {
    let headers = vec![("ce-source".into(), spec.source.clone()), ("ce-id".into(), n.to_string())];
    Message::new(format!("{}.0.evt.order.created", spec.source), format!("{}/{n}", spec.source), headers, payload)
}

/// Sends one and waits for what is answered, as long as a test may take.
async fn sent(publisher: &dyn Publisher, message: Message, expected: Option<u64>) -> Outcome {
    let answer = publisher.send(message, expected).await;
    tokio::time::timeout(SOON, answer).await.expect("an answer")
}

fn stored(stream_seq: u64) -> Outcome {
    Outcome::Stored(Stored { stream_seq, duplicate: false })
}

/// A client beside the framework.
async fn beside(nats: &Nats) -> jetstream::Context {
    jetstream::new(nats.connect_options().connect(format!("127.0.0.1:{}", nats.port())).await.expect("a connection"))
}
