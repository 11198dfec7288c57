//! The tables, as they stand.

use tokio_postgres::{Client, Error};

/// An event that was committed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Event {
    /// Its place in the outbox.
    pub seq: i64,
    /// Its identity.
    pub id: String,
    /// `thing.said`.
    pub r#type: String,
    /// The type and the id of its aggregate.
    pub aggregate: Option<(String, String)>,
    /// Within the aggregate.
    pub version: Option<i64>,
    /// The version before.
    pub previous: Option<i64>,
    /// Where it belongs.
    pub partition: i32,
    /// Byte for byte.
    pub data: Vec<u8>,
    /// The consumer it is for.
    pub recipient: Option<String>,
}

/// A duty that is left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pending {
    /// Of which event.
    pub seq: i64,
    /// In which state.
    pub state: String,
    /// Why.
    pub last_error: Option<String>,
}

/// The evidence for one event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Confirmation {
    /// Of which event.
    pub seq: i64,
    /// In which partition.
    pub partition: i32,
    /// Of the stream.
    pub incarnation: i64,
    /// In the stream.
    pub stream_seq: i64,
    /// Under which it was written.
    pub epoch: i64,
    /// When, in microseconds.
    pub at: i64,
}

impl std::fmt::Display for Confirmation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Confirmation { seq, partition, incarnation, stream_seq, epoch, .. } = self;
        write!(f, "seq {seq} at {stream_seq} of partition {partition} (stream of {incarnation}) under epoch {epoch}")
    }
}

/// Someone owned a partition from then on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// Which.
    pub partition: i32,
    /// Who; nobody.
    pub owner: Option<String>,
    /// Under which epoch.
    pub epoch: i64,
    /// Since when, in microseconds.
    pub at: i64,
}

/// The anchor of a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Anchor {
    /// Which.
    pub partition: i32,
    /// Of the stream.
    pub incarnation: Option<i64>,
    /// In the stream.
    pub stream_seq: Option<i64>,
    /// The events whose id has the anchor's hash.
    pub ids: Vec<String>,
}

/// All that is looked at.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tables {
    /// In the order of the outbox.
    pub events: Vec<Event>,
    /// What is left to do.
    pub pending: Vec<Pending>,
    /// The evidence.
    pub confirmations: Vec<Confirmation>,
    /// The owners since the witness stands there, in their order.
    pub owners: Vec<Owner>,
    /// Of each partition.
    pub anchors: Vec<Anchor>,
    /// The heads of the aggregates.
    pub heads: Vec<((String, String), i64)>,
}

/// Writes down each change of owner, in the transaction that makes it.
pub const WITNESS: &str = "
    CREATE SCHEMA witness;
    CREATE TABLE witness.owner (n bigserial, partition integer, owner uuid, epoch bigint, at timestamptz);
    CREATE FUNCTION witness.note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO witness.owner (partition, owner, epoch, at) VALUES (NEW.id, NEW.owner, NEW.epoch, clock_timestamp());
        RETURN NULL;
    END $$;
    CREATE TRIGGER note AFTER UPDATE ON tidings.partition FOR EACH ROW
        WHEN (OLD.owner IS DISTINCT FROM NEW.owner OR OLD.epoch <> NEW.epoch) EXECUTE FUNCTION witness.note()";

/// Reads them.
///
/// # Errors
/// Those of the server.
pub async fn read(client: &Client) -> Result<Tables, Error> {
    let events = client.query(
        "SELECT seq, id, type, aggregate_type, aggregate_id, version, previous, partition, data, recipient
           FROM tidings.event ORDER BY seq",
        &[],
    );
    let events = events.await?.into_iter().map(|row| Event {
        seq: row.get(0),
        id: row.get(1),
        r#type: row.get(2),
        aggregate: row.get::<_, Option<String>>(3).zip(row.get::<_, Option<String>>(4)),
        version: row.get(5),
        previous: row.get(6),
        partition: row.get(7),
        data: row.get(8),
        recipient: row.get(9),
    });
    let pending = client.query("SELECT seq, state::text, last_error FROM tidings.pending ORDER BY seq", &[]).await?;
    let pending = pending.into_iter().map(|row| Pending { seq: row.get(0), state: row.get(1), last_error: row.get(2) });
    let confirmations = client.query(
        "SELECT seq, partition, incarnation, stream_seq, epoch, (extract(epoch FROM confirmed_at) * 1000000)::bigint
           FROM tidings.confirmation",
        &[],
    );
    let confirmations = confirmations.await?.into_iter().map(|row| Confirmation {
        seq: row.get(0),
        partition: row.get(1),
        incarnation: row.get(2),
        stream_seq: row.get(3),
        epoch: row.get(4),
        at: row.get(5),
    });
    let owners = client.query(
        "SELECT partition, owner::text, epoch, (extract(epoch FROM at) * 1000000)::bigint FROM witness.owner ORDER BY n",
        &[],
    );
    let owners = owners.await?.into_iter().map(|row| Owner {
        partition: row.get(0),
        owner: row.get(1),
        epoch: row.get(2),
        at: row.get(3),
    });
    let anchors = client.query(
        "SELECT p.id, p.anchor_incarnation, p.anchor_stream_seq,
                ARRAY(SELECT e.id FROM tidings.event e WHERE hashtextextended(e.id, 0) = p.anchor_id_hash)
           FROM tidings.partition p ORDER BY p.id",
        &[],
    );
    let anchors = anchors.await?.into_iter().map(|row| Anchor {
        partition: row.get(0),
        incarnation: row.get(1),
        stream_seq: row.get(2),
        ids: row.get(3),
    });
    let heads = client.query("SELECT type, id, head_version FROM tidings.aggregate", &[]).await?;
    let heads = heads.into_iter().map(|row| ((row.get(0), row.get(1)), row.get(2)));
    Ok(Tables {
        events: events.collect(),
        pending: pending.collect(),
        confirmations: confirmations.collect(),
        owners: owners.collect(),
        anchors: anchors.collect(),
        heads: heads.collect(),
    })
}
