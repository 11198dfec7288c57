//! Where a relay works: a database, a NATS, and what can be read in both without the framework.

use std::collections::HashMap;

use async_nats::jetstream;
use async_nats::jetstream::stream::RawMessageErrorKind;
use diesel::sql_types::{BigInt, Integer, Nullable, Text};
use diesel_async::{AsyncConnection, AsyncPgConnection, RunQueryDsl, SimpleAsyncConnection};
use futures_util::{StreamExt, TryStreamExt};
use tidings::services::Services;
use tidings::{Database, testing};
use tidings_tests::eventually;

use super::SOON;

#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) database: String,
    pub(crate) nats: String,
    pub(crate) source: String,
}

/// A message as it stands in a stream.
#[derive(Debug, Clone)]
pub(crate) struct Stored {
    pub(crate) partition: i32,
    pub(crate) seq: u64,
    pub(crate) subject: String,
    pub(crate) bytes: usize,
    pub(crate) headers: HashMap<String, String>,
}

impl Stored {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }
}

#[derive(diesel::QueryableByName)]
struct Number {
    #[diesel(sql_type = BigInt)]
    number: i64,
}

#[derive(diesel::QueryableByName)]
struct Words {
    #[diesel(sql_type = Text)]
    words: String,
}

#[derive(diesel::QueryableByName)]
struct Settled {
    #[diesel(sql_type = Text)]
    id: String,
    #[diesel(sql_type = Integer)]
    partition: i32,
    #[diesel(sql_type = Nullable<Text>)]
    aggregate: Option<String>,
    #[diesel(sql_type = Nullable<BigInt>)]
    version: Option<i64>,
    #[diesel(sql_type = BigInt)]
    confirmations: i64,
    #[diesel(sql_type = Nullable<BigInt>)]
    stream_seq: Option<i64>,
}

impl Place {
    /// A database of its own on the shared servers.
    pub(crate) async fn shared(partitions: u16) -> Place {
        let database = testing::empty_database().await.unwrap();
        tidings::migrate(&database.database().partitions(partitions)).await.unwrap();
        let nats = testing::servers().nats.url();
        Place { database: database.url().to_owned(), nats, source: database.source().to_owned() }
    }

    /// Servers of its own, to be stopped and frozen.
    pub(crate) async fn private(partitions: u16) -> (Services, Place) {
        let services = tokio::task::spawn_blocking(|| Services::start().unwrap()).await.unwrap();
        let (database, nats) = (services.postgres.url(), services.nats.url());
        let place = Place { database, nats, source: "test.relay".to_owned() };
        tidings::migrate(&Database::url(&place.database).partitions(partitions)).await.unwrap();
        (services, place)
    }

    pub(crate) async fn connection(&self) -> AsyncPgConnection {
        AsyncPgConnection::establish(&self.database).await.unwrap()
    }

    pub(crate) async fn execute(&self, sql: &str) {
        self.connection().await.batch_execute(sql).await.unwrap();
    }

    /// What a query with one column `number` answers; `None` while there is no server.
    pub(crate) async fn ask(&self, sql: &str) -> Option<i64> {
        let mut connection = AsyncPgConnection::establish(&self.database).await.ok()?;
        diesel::sql_query(sql).get_result::<Number>(&mut connection).await.ok().map(|row| row.number)
    }

    pub(crate) async fn number(&self, sql: &str) -> i64 {
        self.ask(sql).await.expect(sql)
    }

    /// What a query with one column `words` answers.
    pub(crate) async fn words(&self, sql: &str) -> Vec<String> {
        let rows: Vec<Words> = diesel::sql_query(sql).get_results(&mut self.connection().await).await.unwrap();
        rows.into_iter().map(|row| row.words).collect()
    }

    /// Waits until a query with one column `number` answers this.
    pub(crate) async fn becomes(&self, sql: &str, wanted: i64) {
        let mut connection = None;
        eventually(&format!("{wanted} for {sql}"), SOON, async || {
            if connection.is_none() {
                connection = AsyncPgConnection::establish(&self.database).await.ok();
            }
            let asked = diesel::sql_query(sql).get_result::<Number>(connection.as_mut()?).await;
            if asked.is_err() {
                connection = None;
            }
            (asked.ok()?.number == wanted).then_some(())
        })
        .await;
    }

    /// Events of so many aggregates, in turn. Plain SQL: no relay is woken.
    pub(crate) async fn append(&self, ids: &str, events: i64, aggregates: i64) {
        append(&mut self.connection().await, ids, events, aggregates).await;
    }

    pub(crate) async fn jetstream(&self) -> jetstream::Context {
        let address: async_nats::ServerAddr = self.nats.parse().unwrap();
        let (user, password) = (address.username().unwrap().to_owned(), address.password().unwrap().to_owned());
        let options = async_nats::ConnectOptions::with_user_and_password(user, password);
        jetstream::new(options.connect(address).await.unwrap())
    }

    /// The streams of the source, found as any consumer may: by what their metadata says.
    pub(crate) async fn streams(&self, jetstream: &jetstream::Context) -> Vec<jetstream::stream::Info> {
        let all: Vec<_> = jetstream.streams().try_collect().await.unwrap();
        all.into_iter().filter(|info| info.config.metadata.get("tidings-source") == Some(&self.source)).collect()
    }

    /// Everything that stands in the streams of the source, each in its order.
    pub(crate) async fn stored(&self) -> Vec<Stored> {
        let jetstream = self.jetstream().await;
        let mut stored = Vec::new();
        for info in self.streams(&jetstream).await {
            let partition: i32 = info.config.metadata["tidings-partition"].parse().unwrap();
            let stream = jetstream.get_stream(&info.config.name).await.unwrap();
            let sequences = stream.cached_info().state.first_sequence.max(1)..=stream.cached_info().state.last_sequence;
            // A message that somebody deleted is not there.
            let messages: Vec<_> = futures_util::stream::iter(sequences)
                .map(|seq| stream.get_raw_message(seq))
                .buffered(64)
                .filter_map(async |found| match found {
                    Err(error) if error.kind() == RawMessageErrorKind::NoMessageFound => None,
                    other => Some(other.unwrap()),
                })
                .collect()
                .await;
            stored.extend(messages.into_iter().map(|message| {
                Stored {
                    partition,
                    seq: message.sequence,
                    subject: message.subject.to_string(),
                    bytes: message.payload.len(),
                    headers: message
                        .headers
                        .iter()
                        .map(|(name, values)| (name.to_string(), values[0].as_str().to_owned()))
                        .collect(),
                }
            }));
        }
        stored
    }

    /// Waits until nothing is pending, and holds the streams against the tables: every event stands in the stream of its
    /// partition once, under its one id; each aggregate in the order of its versions; and the evidence of each is true.
    pub(crate) async fn settles(&self) {
        self.becomes("SELECT count(*) AS number FROM tidings.pending", 0).await;
        assert_eq!(self.number("SELECT count(*) AS number FROM tidings.dead_letter").await, 0);
        self.holds_its_promises(self.stored().await).await;
    }

    async fn holds_its_promises(&self, stored: Vec<Stored>) {
        let events: Vec<Settled> = diesel::sql_query(
            "SELECT e.id, e.partition, e.aggregate_type || ' ' || e.aggregate_id AS aggregate, e.version,
                    count(c.seq) AS confirmations, max(c.stream_seq) AS stream_seq
               FROM tidings.event e LEFT JOIN tidings.confirmation c ON c.seq = e.seq GROUP BY e.seq",
        )
        .get_results(&mut self.connection().await)
        .await
        .unwrap();
        assert_eq!(stored.len(), events.len(), "one copy of each event");
        let events: HashMap<&str, &Settled> = events.iter().map(|event| (event.id.as_str(), event)).collect();
        let mut versions: HashMap<&str, i64> = HashMap::new();
        for message in &stored {
            let id = message.header("ce-id");
            let event = events.get(id).unwrap_or_else(|| panic!("{id:?} is no event"));
            assert_eq!(message.header("Nats-Msg-Id"), format!("{}#{id}", self.source));
            assert_eq!(message.partition, event.partition, "{id}");
            assert_eq!((event.confirmations, event.stream_seq), (1, Some(message.seq.cast_signed())), "{id}");
            if let (Some(aggregate), Some(version)) = (&event.aggregate, event.version) {
                let before = versions.insert(aggregate, version).unwrap_or(0);
                assert_eq!(version, before + 1, "{aggregate}: {version} stands after {before}");
            }
        }
    }
}

/// The same on a connection that is there already.
pub(crate) async fn append(connection: &mut AsyncPgConnection, ids: &str, events: i64, aggregates: i64) {
    diesel::sql_query(
        "SELECT count(tidings.append('relay.tested', convert_to('{\"n\": ' || g || '}', 'UTF8'), id => $1 || g,
                aggregate_type => 'thing', aggregate_id => 'thing-' || g % $3)) AS number
           FROM generate_series(1, $2) g",
    )
    .bind::<Text, _>(ids)
    .bind::<BigInt, _>(events)
    .bind::<BigInt, _>(aggregates)
    .get_result::<Number>(connection)
    .await
    .unwrap();
}
