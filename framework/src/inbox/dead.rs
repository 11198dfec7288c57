//! Set an event aside that a consumer cannot apply: the whole message, in our tables before the broker may forget it.

use diesel::sql_types::{BigInt, Binary, Integer, Json, Nullable, Text};
use diesel_async::{AsyncPgConnection, RunQueryDsl};

use super::apply::Key;
use super::attempts::short;
use crate::broker::Delivery;
use crate::postgres::statement;

/// Writes the dead letter and the inbox row `dead` in one statement. An event that was applied meanwhile stays applied.
pub(super) async fn dead(
    connection: &mut AsyncPgConnection,
    key: &Key,
    delivery: &Delivery,
    class: &str,
    reason: &str,
) -> diesel::QueryResult<()> {
    let headers = delivery.message.headers.iter().map(|(name, value)| serde_json::json!([name, value])).collect();
    let Key { consumer, generation, source, event_id } = key.clone();
    let statement = Dead {
        consumer,
        generation,
        source,
        event_id,
        class: class.to_owned(),
        reason: short(reason),
        stream: delivery.stream.clone(),
        stream_seq: i64::try_from(delivery.stream_seq).unwrap_or(i64::MAX),
        subject: delivery.message.subject.clone(),
        headers: serde_json::Value::Array(headers),
        data: delivery.message.payload.to_vec(),
    };
    RunQueryDsl::execute(statement, connection).await.map(drop)
}

statement! {
    /// A row left `open` by a handler that committed by itself becomes `dead`; any other that is there already stays.
    struct Dead {
        consumer: Text = String, generation: Integer = i32, source: Text = String, event_id: Text = String,
        class: Text = String, reason: Text = String, stream: Text = String, stream_seq: BigInt = i64, subject: Text = String,
        headers: Json = serde_json::Value, data: Binary = Vec<u8>,
    } -> Nullable<Text>;
    "WITH died AS (
        INSERT INTO tidings.inbox AS i (consumer, generation, source, event_id, outcome)
        VALUES ({consumer}, {generation}, {source}, {event_id}, 'dead')
        ON CONFLICT (consumer, generation, source, event_id) DO UPDATE SET outcome = 'dead' WHERE i.outcome = 'open'
        RETURNING 1
     ), attempted AS (
        DELETE FROM tidings.attempt
         WHERE consumer = {consumer} AND generation = {generation} AND source = {source} AND event_id = {event_id}
        RETURNING attempts
     )
     INSERT INTO tidings.consumer_dead_letter
            (consumer, generation, source, event_id, class, reason, attempts, stream, stream_seq, subject, headers, data)
     SELECT {consumer}, {generation}, {source}, {event_id}, {class}, {reason},
            coalesce((SELECT attempts FROM attempted), 1), {stream}, {stream_seq}, {subject}, {headers}, {data}
       FROM died
     ON CONFLICT (consumer, generation, source, event_id) DO NOTHING"
}
