//! What is appended is what the table has, and what the stream has, byte for byte.

use std::collections::BTreeMap;

use async_nats::jetstream;
use diesel::sql_types::{Binary, Integer, Text};
use diesel_async::RunQueryDsl;
use tidings::protocol::token::escape;
use tidings::{NewEvent, Relay, Tidings, testing};
use tidings_tests::eventually;

use super::{LIMIT, database, events, number, of, run, say, say_all};

#[derive(diesel::QueryableByName)]
struct Stored {
    #[diesel(sql_type = Text)]
    id: String,
    #[diesel(sql_type = Integer)]
    partition: i32,
    #[diesel(sql_type = Binary)]
    data: Vec<u8>,
}

/// The awkward ones, by the id of their event.
fn payloads() -> BTreeMap<String, Vec<u8>> {
    let every_byte: Vec<u8> = (0..=255).collect();
    let all = [
        Vec::new(),
        vec![0],
        vec![0; 1_000],
        every_byte.repeat(3),
        vec![0xff, 0xfe, 0xc3, 0x28],
        b"\r\n.\r\nPUB evil 2\r\nhi\r\n".to_vec(),
        br"\x00 \\ '' {} ".to_vec(),
        "{\"a\": 1,  \"a\": 1.0, \"\\u0000\": \"\u{feff}\"}".into(),
        (0..400_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect(),
    ];
    all.into_iter().enumerate().map(|(n, data)| (format!("evt/{n}.ü"), data)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_bytes_arrive_unchanged() {
    let (database, mut conn) = database().await;
    // A seq that no 32-bit number and no JSON number of another language can hold goes the same road.
    run(&mut conn, "ALTER SEQUENCE tidings.event_seq_seq RESTART 9007199254740993").await;
    let payloads = payloads();
    let event = |id: &str, data: &[u8]| {
        NewEvent::raw("job.progressed", data).id(id).aggregate("job", "a.b/c..заказ").header("tenant", "académie")
    };
    let (one_by_one, in_one_call) = (payloads.len() / 2, payloads.len());
    for (id, data) in payloads.iter().take(one_by_one) {
        say(&mut conn, event(id, data)).await.unwrap();
    }
    let rest = payloads.iter().take(in_one_call).skip(one_by_one).map(|(id, data)| event(id, data)).collect();
    say_all(&mut conn, rest).await.unwrap();
    assert_eq!(events(&mut conn).await, payloads.len() as i64);

    let rows: Vec<Stored> =
        diesel::sql_query("SELECT id, partition, data FROM tidings.event ORDER BY seq").load(&mut conn).await.unwrap();
    let stored: BTreeMap<String, Vec<u8>> = rows.iter().map(|row| (row.id.clone(), row.data.clone())).collect();
    assert!(stored == payloads, "the table has other bytes");

    let running = Tidings::new(database.database(), testing::jetstream())
        .source(database.source())
        .relay(Relay::default())
        .start()
        .await
        .unwrap();
    eventually("everything is confirmed", LIMIT, async || {
        (number(&mut conn, "SELECT count(*) AS n FROM tidings.pending").await == 0).then_some(())
    })
    .await;
    running.drain(LIMIT).await.unwrap();

    let stream = stream(database.source(), rows[0].partition).await;
    let mut sent = BTreeMap::new();
    for (n, row) in rows.iter().enumerate() {
        let message = stream.get_raw_message(n as u64 + 1).await.unwrap();
        let header = |name: &str| message.headers.get(name).map(|value| value.as_str().to_owned());
        assert_eq!(header("ce-id"), Some(row.id.replace('ü', "%C3%BC")));
        assert_eq!(header("ce-aggregateid").as_deref(), Some("a.b/c..%D0%B7%D0%B0%D0%BA%D0%B0%D0%B7"));
        assert_eq!(header("ce-aggregateversion"), Some((n + 1).to_string()));
        assert_eq!(header("ce-previousversion"), (n > 0).then(|| n.to_string()));
        assert_eq!(header("tenant").as_deref(), Some("académie"));
        assert_eq!(header("content-type").as_deref(), Some("application/octet-stream"));
        sent.insert(row.id.clone(), message.payload.to_vec());
    }
    assert!(sent == payloads, "the stream has other bytes");
}

/// The stream of a partition, read as a client without any Tidings code reads it.
async fn stream(source: &str, partition: i32) -> jetstream::stream::Stream {
    let url = testing::servers().nats.url();
    let (user, password) = url
        .strip_prefix("nats://")
        .and_then(|rest| rest.split_once('@'))
        .and_then(|(credentials, _)| credentials.split_once(':'))
        .unwrap();
    let client =
        async_nats::ConnectOptions::with_user_and_password(user.into(), password.into()).connect(&url).await.unwrap();
    jetstream::new(client).get_stream(format!("{}_{partition}", escape(source))).await.unwrap()
}

#[tokio::test]
async fn a_large_batch_goes_in_as_it_is() {
    let (_database, mut conn) = database().await;
    let batch: Vec<NewEvent> = (0..10_000).map(|n| of(&format!("job-{}", n % 100))).collect();
    let rows = say_all(&mut conn, batch).await.unwrap();
    for (n, row) in rows.iter().enumerate() {
        assert_eq!((row.seq, row.version.map(|v| v.0)), (rows[0].seq + n as i64, Some(n as i64 / 100 + 1)));
    }
    assert_eq!(events(&mut conn).await, 10_000);
}
