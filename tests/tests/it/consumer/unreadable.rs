//! Messages that cannot be read: set aside where nobody ever will, given back where another release can.

use futures_util::FutureExt;
use serde::{Deserialize, Serialize};
use tidings::{Consumer, Event, Handle, HandlerError, Received, Tx};
use tidings_tests::consumer::{Said, alpha, hear, options};
use tidings_tests::eventually;

use super::{Bench, LIMIT, SUBJECT, data, said};

/// Stands where a payload could leak from.
const SECRET: &str = "4929-7182-3344";

#[tokio::test]
async fn a_malformed_message_is_a_dead_letter_that_names_the_attribute_and_the_rest_flows() {
    let with = |name: &'static str, value: Option<&str>| {
        let mut headers = said(7, "lane-7");
        headers.retain(|(header, _)| *header != name);
        headers.extend(value.map(|value| (name, value.to_owned())));
        headers
    };
    let good = format!(r#"{{"lane":"{SECRET}","n":7}}"#);
    let cases = [
        (with("ce-id", None), good.clone(), "the CloudEvents attribute `id` is missing"),
        (with("ce-id", Some("a%00b")), good.clone(), "the CloudEvents attribute `id` is not text"),
        (with("ce-id", Some("a%0Ab")), good.clone(), "the CloudEvents attribute `id` is not text"),
        (with("ce-id", Some("%FF")), good.clone(), "the CloudEvents attribute `id` is not text"),
        (with("ce-source", None), good.clone(), "the CloudEvents attribute `source` is missing"),
        (with("ce-type", None), good.clone(), "the CloudEvents attribute `type` is missing"),
        (with("ce-specversion", Some("0.3")), good.clone(), "the CloudEvents `specversion` is not 1.0"),
        (with("ce-aggregateid", None), good.clone(), "the CloudEvents attribute `aggregateid` is missing"),
        (with("ce-aggregateversion", Some("-1")), good.clone(), "`aggregateversion` is not a positive number"),
        (with("ce-time", Some("yesterday")), good, "`time` is not a time"),
        (with("ce-id", Some("no-json")), format!("<{SECRET}>"), "a syntax error at line 1, column 1"),
        (with("ce-id", Some("cut")), format!(r#"{{"lane":"{SECRET}"#), "an end-of-input error at line 1, column 23"),
        (with("ce-id", Some("shape")), format!(r#"{{"lane":"x","n":"{SECRET}"}}"#), "a missing or mistyped field"),
        (with("ce-id", Some("empty")), String::new(), "an end-of-input error at line 1, column 0"),
    ];
    let mut bench = Bench::new().await;
    let consumer = alpha(|event, tx| async move { hear(tx, event.n, "alpha").await }.boxed());
    let running = bench.tidings().consumer_with(consumer, options()).start().await.unwrap();
    for (number, (headers, data, _)) in cases.iter().enumerate() {
        bench.publish(SUBJECT, &format!("bad-{number}"), headers, data).await;
    }
    bench.say(1).await;
    bench.eventually_heard(&[1]).await;
    assert_eq!(bench.number("SELECT count(*) FROM tidings.consumer_dead_letter").await, cases.len() as i64);
    for (number, (_, data, reason)) in cases.iter().enumerate() {
        let kept = format!("FROM tidings.consumer_dead_letter WHERE stream_seq = {}", number + 1);
        let said = bench.text(&format!("SELECT reason {kept}")).await.unwrap();
        assert!(said.contains(reason) && !said.contains(SECRET), "{said}");
        assert_eq!(bench.text(&format!("SELECT convert_from(data, 'UTF8') {kept}")).await.as_ref(), Some(data));
    }
    running.drain(LIMIT).await.unwrap();
}

/// The next release of `alpha`: another shape of `said`, and one type more.
#[derive(Consumer)]
#[consumer(name = "alpha", source = "test.consumer", events(SaidLouder, Shouted))]
struct NextRelease;

#[derive(Event, Serialize, Deserialize)]
#[event(type = "said", version = 2, aggregate = "lane", key = lane)]
struct SaidLouder {
    lane: String,
    number: i64,
}

#[derive(Event, Serialize, Deserialize)]
#[event(type = "shouted", aggregate = "lane", key = lane)]
struct Shouted {
    lane: String,
    n: i64,
}

impl Handle<SaidLouder> for NextRelease {
    async fn handle(&self, event: Received<SaidLouder>, tx: &mut Tx<'_>) -> Result<(), HandlerError> {
        hear(tx, event.number, "next release").await
    }
}

impl Handle<Shouted> for NextRelease {
    async fn handle(&self, event: Received<Shouted>, tx: &mut Tx<'_>) -> Result<(), HandlerError> {
        hear(tx, event.n, "next release").await
    }
}

#[tokio::test]
async fn what_another_release_can_read_is_given_back_for_it() {
    assert_eq!(Said::TYPE, SaidLouder::TYPE);
    let mut bench = Bench::new().await;
    // The next release has been here once, so that the durable asks for its types too.
    let next = bench.tidings().consumer(NextRelease).start().await.unwrap();
    let types = async || Some(bench.durable("alpha").await?.config.filter_subjects.len());
    eventually("its types are asked for", LIMIT, async || (types().await? == 2).then_some(())).await;
    next.drain(LIMIT).await.unwrap();

    let consumer = alpha(|event, tx| async move { hear(tx, event.n, "alpha").await }.boxed());
    let running = bench.tidings().consumer_with(consumer, options()).start().await.unwrap();
    let mut louder = said(1, "lane-1");
    louder.push(("ce-schemaversion", "2".into()));
    bench.publish(SUBJECT, "id-1", &louder, r#"{"lane":"lane-1","number":1}"#).await;
    let mut shouted = said(2, "lane-2");
    shouted.iter_mut().filter(|(name, _)| *name == "ce-type").for_each(|(_, value)| *value = "shouted".into());
    bench.publish(&SUBJECT.replace("said", "shouted"), "id-2", &shouted, &data(2)).await;
    bench.say(3).await;
    eventually("the third goes by", LIMIT, async || (bench.heard().await == [3]).then_some(())).await;
    eventually("the others are given back", LIMIT, async || {
        let durable = bench.durable("alpha").await?;
        (durable.num_pending == 0 && durable.num_ack_pending == 2 && durable.ack_floor.stream_sequence == 0)
            .then_some(())
    })
    .await;
    running.drain(LIMIT).await.unwrap();
    bench.assert_nothing_counted().await;
    assert_eq!(bench.number("SELECT count(*) FROM tidings.inbox").await, 1);

    let next = bench.tidings().consumer(NextRelease).start().await.unwrap();
    bench.eventually_heard(&[1, 2, 3]).await;
    bench.assert_nothing_counted().await;
    next.drain(LIMIT).await.unwrap();
}
