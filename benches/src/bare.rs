//! The bare loop: what the relay is measured against.
//!
//! FROZEN. Change it only if what it measures was wrong, say so in the changelog, and print all figures anew: a figure
//! means something only beside the same loop as before.
//!
//! It is what one writes in an afternoon, written well: one table, prepared statements on a connection of its own, a
//! fetch of the oldest rows, all of them published without waiting, the acknowledgements awaited together, one delete.
//! No lease, no order after a fault, no evidence, no retry, no second process. It sends what the relay sends: the same
//! subjects, the same CloudEvents headers, a `Nats-Msg-Id`, the same data. It commits as
//! the relay does, with the server's `synchronous_commit`.

use std::time::SystemTime;

use async_nats::HeaderMap;
use async_nats::jetstream::Context;
use async_nats::jetstream::message::PublishMessage;
use bytes::Bytes;
use chrono::{DateTime, SecondsFormat, Utc};
use tokio::sync::watch;
use tokio_postgres::{Client, Statement};

/// The outbox in one table.
pub(crate) const TABLE: &str = "CREATE TABLE outbox (
    id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event_id       text NOT NULL UNIQUE,
    partition      integer NOT NULL,
    type           text NOT NULL,
    aggregate_type text NOT NULL,
    aggregate_id   text NOT NULL,
    version        bigint NOT NULL,
    content_type   text NOT NULL,
    data           bytea NOT NULL,
    created_at     timestamptz NOT NULL DEFAULT now())";

/// The batches to try; the best of them counts.
pub(crate) const BATCHES: [i64; 3] = [100, 500, 1_000];

pub(crate) type Error = Box<dyn std::error::Error + Send + Sync>;

/// One loop over one table.
pub(crate) struct Loop {
    client: Client,
    select: Statement,
    delete: Statement,
    context: Context,
    source: String,
    batch: i64,
}

struct Row {
    id: i64,
    event_id: String,
    partition: i32,
    r#type: String,
    aggregate_type: String,
    aggregate_id: String,
    version: i64,
    content_type: String,
    data: Bytes,
    created_at: SystemTime,
}

impl Loop {
    pub(crate) async fn new(client: Client, context: Context, source: &str, batch: i64) -> Result<Loop, Error> {
        let select = client
            .prepare(
                "SELECT id, event_id, partition, type, aggregate_type, aggregate_id, version, content_type, data, created_at
                   FROM outbox ORDER BY id LIMIT $1",
            )
            .await?;
        let delete = client.prepare("DELETE FROM outbox WHERE id = ANY ($1)").await?;
        Ok(Loop { client, select, delete, context, source: source.to_owned(), batch })
    }

    /// Until the table is empty.
    pub(crate) async fn drain(&self) -> Result<(), Error> {
        while self.pass().await? > 0 {}
        Ok(())
    }

    /// For ever: whenever it is woken, until the table is empty.
    pub(crate) async fn follow(&self, mut woken: watch::Receiver<u64>) -> Result<(), Error> {
        loop {
            self.drain().await?;
            woken.changed().await?;
        }
    }

    async fn pass(&self) -> Result<usize, Error> {
        let rows = self.client.query(&self.select, &[&self.batch]).await?;
        let mut ids = Vec::with_capacity(rows.len());
        let mut acknowledgements = Vec::with_capacity(rows.len());
        for row in rows.iter().map(read) {
            let subject =
                format!("{}.{}.evt.{}.{}", self.source, row.partition, token(&row.aggregate_type), token(&row.r#type));
            ids.push(row.id);
            let message = PublishMessage::build().headers(self.headers(&row)).payload(row.data);
            acknowledgements.push(self.context.send_publish(subject, message).await?);
        }
        for acknowledgement in acknowledgements {
            acknowledgement.await?;
        }
        if !ids.is_empty() {
            self.client.execute(&self.delete, &[&ids]).await?;
        }
        Ok(ids.len())
    }

    fn headers(&self, row: &Row) -> HeaderMap {
        let time = DateTime::<Utc>::from(row.created_at).to_rfc3339_opts(SecondsFormat::Micros, true);
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Msg-Id", format!("{}#{}", self.source, row.event_id));
        headers.insert("ce-specversion", "1.0");
        headers.insert("ce-id", row.event_id.as_str());
        headers.insert("ce-source", self.source.as_str());
        headers.insert("ce-type", row.r#type.as_str());
        headers.insert("ce-kind", "event");
        headers.insert("ce-schemaversion", "1");
        headers.insert("ce-aggregatetype", row.aggregate_type.as_str());
        headers.insert("ce-aggregateid", row.aggregate_id.as_str());
        headers.insert("ce-partitionkey", row.aggregate_id.as_str());
        headers.insert("ce-aggregateversion", row.version.to_string());
        if row.version > 1 {
            headers.insert("ce-previousversion", (row.version - 1).to_string());
        }
        headers.insert("ce-time", time.as_str());
        headers.insert("ce-recordedtime", time);
        headers.insert("content-type", row.content_type.as_str());
        headers
    }
}

fn read(row: &tokio_postgres::Row) -> Row {
    Row {
        id: row.get(0),
        event_id: row.get(1),
        partition: row.get(2),
        r#type: row.get(3),
        aggregate_type: row.get(4),
        aggregate_id: row.get(5),
        version: row.get(6),
        content_type: row.get(7),
        data: Bytes::copy_from_slice(row.get(8)),
        created_at: row.get(9),
    }
}

/// The names used here have nothing to escape but dots.
fn token(name: &str) -> String {
    name.replace('.', "_")
}
