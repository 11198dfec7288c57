//! What cannot work is refused at the start, by name.

use std::time::Duration;

use futures_util::FutureExt;
use tidings::consumer::Options;
use tidings::host::Error;
use tidings::{Consumer, Database, Event, Handle, HandlerError, JetStream, Received, Relay, Tidings, Tx, testing};
use tidings_tests::consumer::{Said, alpha, hear, options};

/// Nothing is reached by these: they are refused before.
fn nowhere() -> Tidings {
    Tidings::new(Database::url("postgres://127.0.0.1:1/none"), JetStream::url("nats://127.0.0.1:1"))
}

async fn refused(tidings: Tidings) -> String {
    match tidings.start().await {
        Err(Error::Config(why)) => why,
        other => panic!("{other:?}"),
    }
}

macro_rules! listener {
    () => {
        alpha(|event, tx| async move { hear(tx, event.n, "alpha").await }.boxed())
    };
}

#[tokio::test]
async fn nothing_to_run() {
    let why = refused(nowhere()).await;
    assert!(why.starts_with("nothing to run"), "{why}");
}

#[tokio::test]
async fn a_relay_without_a_source() {
    let why = refused(nowhere().relay(Relay::default())).await;
    assert!(why.starts_with("a relay needs a source"), "{why}");
}

#[tokio::test]
async fn two_consumers_of_one_name() {
    let why = refused(nowhere().consumer(listener!()).consumer(listener!())).await;
    assert!(why.starts_with(r#"two consumers are named "alpha""#), "{why}");
}

#[tokio::test]
async fn settings_of_a_consumer_that_cannot_work() {
    let cases = [
        (Options { attempts: 0, ..options() }, "attempts"),
        (Options { concurrency: 0, ..options() }, "concurrency"),
        (Options { timeout: Duration::ZERO, ..options() }, "timeout"),
        (Options { delay_min: Duration::ZERO, ..options() }, "delay_min"),
        (Options { delay_max: Duration::from_millis(1), ..options() }, "delay_min"),
        (Options { ack_wait: Duration::from_nanos(2), ..options() }, "ack_wait"),
    ];
    for (options, field) in cases {
        let why = refused(nowhere().consumer_with(listener!(), options)).await;
        assert!(why.starts_with(&format!(r#"consumer "alpha": `Options::{field}` is "#)), "{why}");
    }
}

/// Takes its events from elsewhere than the other consumer of its name.
#[derive(Consumer)]
#[consumer(name = "alpha", source = "test.elsewhere", events(Said))]
struct Elsewhere;

impl Handle<Said> for Elsewhere {
    async fn handle(&self, event: Received<Said>, tx: &mut Tx<'_>) -> Result<(), HandlerError> {
        assert_eq!(Said::TYPE, "said");
        hear(tx, event.n, "elsewhere").await
    }
}

#[tokio::test]
async fn a_consumer_that_is_registered_for_another_source() {
    let db = testing::database().await.unwrap();
    let first = Tidings::new(db.database(), testing::jetstream()).consumer(Elsewhere).start().await.unwrap();
    first.drain(super::LIMIT).await.unwrap();
    let why = refused(Tidings::new(db.database(), testing::jetstream()).consumer(listener!())).await;
    assert!(why.contains(r#"consumer "alpha" is registered for the source "test.elsewhere""#), "{why}");
}

#[tokio::test]
async fn a_database_that_is_not_there_in_time() {
    let starting = nowhere().consumer(listener!()).start_timeout(Duration::from_millis(200)).start();
    assert!(matches!(starting.await, Err(Error::Database(_))));
}
