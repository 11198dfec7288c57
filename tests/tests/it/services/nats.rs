use async_nats::jetstream;
use tidings::services::{Error, Nats, NatsOptions, Version};

use super::{SILENCE, block_on, connect_nats, state, user_of};

fn started() -> Nats {
    Nats::start().expect("nats-server starts")
}

async fn store(url: &str, text: &'static str) -> u64 {
    let client = connect_nats(url).await.expect("a connection");
    let context = jetstream::new(client);
    let config =
        jetstream::stream::Config { name: "KEPT".to_owned(), subjects: vec!["kept".to_owned()], ..Default::default() };
    context.get_or_create_stream(config).await.expect("a stream");
    context.publish("kept", text.into()).await.expect("sent").await.expect("stored").sequence
}

#[test]
fn it_has_jetstream_and_keeps_port_and_data() {
    let mut nats = started();
    assert!(nats.version() >= Version { major: 2, minor: 12, patch: None });
    let (url, port) = (nats.url(), nats.port());
    assert_eq!(block_on(store(&url, "one")), 1);

    nats.stop().expect("it stops");
    assert!(!nats.is_running());
    assert!(block_on(connect_nats(&url)).is_err());
    nats.start_again().expect("it starts again");
    assert_eq!(block_on(store(&url, "two")), 2);

    let pid = nats.pid().expect("it runs");
    nats.kill();
    assert_eq!(state(pid), None);
    nats.start_again().expect("it starts again");
    assert_eq!(nats.port(), port);
    assert_eq!(block_on(store(&url, "three")), 3);
}

#[test]
fn it_refuses_who_does_not_know_the_password_and_does_not_show_it() {
    let nats = started();
    let url = nats.url();
    let secret = url.split_once('@').and_then(|(before, _)| before.rsplit_once(':')).expect("a password").1;
    block_on(connect_nats(&url)).expect("the password opens it");
    assert!(block_on(connect_nats(&url.replace(secret, "wrong"))).is_err());
    assert!(block_on(async_nats::connect(format!("127.0.0.1:{}", nats.port()))).is_err());
    assert!(!format!("{nats:?}").contains(secret));
    let log = std::fs::read_to_string(nats.folder().join("log")).expect("a log");
    assert!(!log.contains(secret));
}

#[test]
fn its_process_is_not_roots() {
    assert_ne!(user_of(started().pid().expect("it runs")), 0);
}

#[tokio::test]
async fn frozen_it_is_silent_and_thawed_it_answers() {
    let nats = started();
    let client = nats.connect_options().connect(nats.url()).await.expect("a connection");
    nats.freeze();
    assert_eq!(state(nats.pid().expect("it runs")), Some('T'));
    let context = jetstream::new(client);
    let mut answer = std::pin::pin!(context.query_account());
    assert!(tokio::time::timeout(SILENCE, &mut answer).await.is_err(), "a frozen server answers nothing");
    nats.thaw();
    answer.await.expect("an answer");
}

#[tokio::test]
async fn options_reach_the_server() {
    let options = NatsOptions::new().max_payload(2048).sync_interval("always").config("max_subscriptions: 7");
    let nats = Nats::start_with(options).expect("it starts");
    let client = nats.connect_options().connect(nats.url()).await.expect("a connection");
    assert_eq!(client.server_info().max_payload, 2048);
    let config = std::fs::read_to_string(nats.folder().join("nats.conf")).expect("a configuration");
    assert!(config.contains("sync_interval: \"always\"") && config.contains("max_subscriptions: 7"), "{config}");
}

#[test]
fn a_configuration_that_is_refused_is_told_with_the_log() {
    let error = Nats::start_with(NatsOptions::new().config("no_such_option: 1")).expect_err("it is refused");
    assert!(matches!(&error, Error::Start { log, .. } if log.contains("no_such_option")), "{error}");
}
