//! What a plain consumer in any language finds: CloudEvents 1.0.2 in binary mode, under subjects that say what is what.

use std::collections::BTreeMap;

use async_nats::jetstream::consumer::{AckPolicy, pull};
use futures_util::TryStreamExt;

use super::node::Node;
use super::place::Place;

async fn read_plainly(place: &Place) -> Vec<(String, BTreeMap<String, String>, Vec<u8>)> {
    let jetstream = place.jetstream().await;
    let name = place.streams(&jetstream).await.remove(0).config.name;
    let stream = jetstream.get_stream(name).await.unwrap();
    let config = pull::Config { ack_policy: AckPolicy::None, ..pull::Config::default() };
    let messages = stream.create_consumer(config).await.unwrap().fetch().max_messages(100).messages().await.unwrap();
    let all: Vec<_> = messages.try_collect().await.unwrap();
    all.into_iter()
        .map(|message| {
            let headers = message.headers.clone().unwrap_or_default();
            let headers = headers.iter().map(|(name, values)| (name.to_string(), values[0].to_string())).collect();
            (message.subject.to_string(), headers, message.payload.to_vec())
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_subjects_and_bytes() {
    let place = Place::shared(1).await;
    let _node = Node::start(&place, &[]).await;
    place
        .execute(
            r#"SELECT tidings.append('orders.created', '\x00ff0d0a'::bytea, id => 'e-1', aggregate_type => 'order',
                      aggregate_id => 'über/7', schema_version => 3, content_type => 'application/octet-stream',
                      headers => '{"Tenant": "north"}', correlation_id => 'c 1', causation_id => 'cause',
                      traceparent => '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01', tracestate => 'vendor=1',
                      occurred_at => '2026-01-02 03:04:05.678901Z');
               SELECT tidings.append('orders.created', '', id => 'e-2', aggregate_type => 'order', aggregate_id => 'über/7');
               SELECT tidings.append('stock.reserve', 'do', id => 'c-1', recipient => 'the.inventory');
               SELECT tidings.append('tick', 'x', id => 'u-1')"#,
        )
        .await;
    place.settles().await;
    let read = read_plainly(&place).await;
    let found = |id: &str| read.iter().find(|(_, headers, _)| headers["ce-id"] == id).unwrap();

    let (subject, headers, data) = found("e-1");
    let prefix = place.streams(&place.jetstream().await).await[0].config.subjects[0].replace(".>", "");
    assert_eq!(*subject, format!("{prefix}.evt.order.orders_created"));
    assert_eq!(data, b"\x00\xff\r\n");
    let recorded = chrono::DateTime::parse_from_rfc3339(&headers["ce-recordedtime"]).unwrap();
    assert!(recorded > chrono::DateTime::UNIX_EPOCH);
    let mut headers = headers.clone();
    headers.remove("ce-recordedtime");
    let expected = [
        ("Nats-Expected-Last-Sequence", "0".into()),
        ("Nats-Msg-Id", format!("{}#e-1", place.source)),
        ("ce-specversion", "1.0".into()),
        ("ce-id", "e-1".into()),
        ("ce-source", place.source.clone()),
        ("ce-type", "orders.created".into()),
        ("ce-kind", "event".into()),
        ("ce-schemaversion", "3".into()),
        ("ce-aggregatetype", "order".into()),
        ("ce-aggregateid", "%C3%BCber/7".into()),
        ("ce-partitionkey", "%C3%BCber/7".into()),
        ("ce-aggregateversion", "1".into()),
        ("ce-correlationid", "c%201".into()),
        ("ce-causationid", "cause".into()),
        ("ce-time", "2026-01-02T03:04:05.678901Z".into()),
        ("content-type", "application/octet-stream".into()),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into()),
        ("tracestate", "vendor=1".into()),
        ("tenant", "north".into()),
    ];
    assert_eq!(headers, expected.map(|(name, value)| (name.to_owned(), value)).into());

    let (_, headers, data) = found("e-2");
    assert_eq!((headers["ce-aggregateversion"].as_str(), headers["ce-previousversion"].as_str()), ("2", "1"));
    assert!(data.is_empty());
    let (subject, headers, _) = found("c-1");
    assert_eq!(*subject, format!("{prefix}.cmd.the_inventory.stock_reserve"));
    assert_eq!((headers["ce-kind"].as_str(), headers["ce-recipient"].as_str()), ("command", "the.inventory"));
    let (subject, headers, _) = found("u-1");
    assert_eq!(*subject, format!("{prefix}.evt._.tick"));
    assert!(!headers.contains_key("ce-aggregateid") && !headers.contains_key("ce-aggregateversion"));
}
