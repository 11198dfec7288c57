//! What a business transaction does in the measurements: on either side the same, but for the row of the outbox.

use diesel::pg::Pg;
use diesel::query_builder::{AstPass, QueryFragment, QueryId};
use diesel::sql_types::{BigInt, Binary, Integer, Text};
use diesel_async::{AsyncConnection, AsyncPgConnection, RunQueryDsl};
use tidings::NewEvent;

use crate::ground::{Error, Ground};

/// The table of the business: a counter for each of [`AGGREGATES`] aggregates, which are known to Tidings too.
pub(super) async fn lay_out(ground: &Ground) -> Result<(), Error> {
    let tables = format!(
        "CREATE TABLE business (id integer PRIMARY KEY, n bigint NOT NULL) WITH (fillfactor = 70);
         INSERT INTO business SELECT i, 0 FROM generate_series(0, {AGGREGATES} - 1) i;
         INSERT INTO tidings.aggregate (type, id, partition)
         SELECT 'order', 'order-' || i, tidings.partition_of(tidings.lane('order', 'order-' || i, NULL), 4)
           FROM generate_series(0, {AGGREGATES} - 1) i"
    );
    ground.admin.batch_execute(&tables).await?;
    ground.settle().await
}

/// A producer of either side.
pub(super) struct Producer {
    connection: AsyncPgConnection,
    random: u64,
}

/// Which side it produces for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Tidings,
    /// One plain insert into the table of the bare loop.
    Bare,
}

impl Producer {
    pub(super) async fn new(ground: &Ground, number: u64) -> Result<Producer, Error> {
        Ok(Producer { connection: AsyncPgConnection::establish(&ground.url).await?, random: number * 2 + 1 })
    }

    /// One update and one event of an aggregate at random. The data is made when it is appended.
    pub(super) async fn business(&mut self, side: Side, data: fn() -> Vec<u8>) -> Result<(), Error> {
        let id = self.any_aggregate();
        match side {
            Side::Tidings => {
                tidings::transaction(&mut self.connection, async |tx| {
                    RunQueryDsl::execute(Count { id }, tx.conn()).await?;
                    tx.append(event(id, data())).await?;
                    Ok::<_, Error>(())
                })
                .await
            }
            Side::Bare => {
                self.connection
                    .transaction(async |connection| {
                        RunQueryDsl::execute(Count { id }, connection).await?;
                        RunQueryDsl::execute(Insert::new(id, data()), connection).await?;
                        Ok::<_, Error>(())
                    })
                    .await
            }
        }
    }

    /// So many events in one transaction and one call.
    pub(super) async fn in_one_call(&mut self, events: usize, data: fn() -> Vec<u8>) -> Result<(), Error> {
        let ids: Vec<i32> = (0..events).map(|_| self.any_aggregate()).collect();
        tidings::transaction(&mut self.connection, async |tx| {
            tx.append_all(ids.into_iter().map(|id| event(id, data()))).await?;
            Ok::<_, Error>(())
        })
        .await
    }

    /// So many events in one transaction, each with a call of its own.
    pub(super) async fn one_by_one(&mut self, events: usize, data: fn() -> Vec<u8>) -> Result<(), Error> {
        let ids: Vec<i32> = (0..events).map(|_| self.any_aggregate()).collect();
        tidings::transaction(&mut self.connection, async |tx| {
            for id in ids {
                tx.append(event(id, data())).await?;
            }
            Ok::<_, Error>(())
        })
        .await
    }

    /// Xorshift: the same aggregates in the same order in every run.
    fn any_aggregate(&mut self) -> i32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        i32::try_from(self.random % AGGREGATES).unwrap_or(0)
    }
}

fn event(id: i32, data: Vec<u8>) -> NewEvent {
    NewEvent::raw("order.created", data).aggregate("order", format!("order-{id}"))
}

struct Count {
    id: i32,
}

struct Insert {
    event_id: String,
    aggregate_id: String,
    partition: i32,
    version: i64,
    data: Vec<u8>,
}

impl Insert {
    fn new(id: i32, data: Vec<u8>) -> Insert {
        let event_id = uuid::Uuid::now_v7().to_string();
        Insert { event_id, aggregate_id: format!("order-{id}"), partition: id % 4, version: 1, data }
    }
}

impl QueryFragment<Pg> for Count {
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Pg>) -> diesel::QueryResult<()> {
        out.push_sql("UPDATE business SET n = n + 1 WHERE id = ");
        out.push_bind_param::<Integer, _>(&self.id)
    }
}

impl QueryFragment<Pg> for Insert {
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Pg>) -> diesel::QueryResult<()> {
        out.push_sql(
            "INSERT INTO outbox (type, aggregate_type, content_type, event_id, aggregate_id, partition, version, data)
             VALUES ('order.created', 'order', 'application/json', ",
        );
        out.push_bind_param::<Text, _>(&self.event_id)?;
        out.push_sql(", ");
        out.push_bind_param::<Text, _>(&self.aggregate_id)?;
        out.push_sql(", ");
        out.push_bind_param::<Integer, _>(&self.partition)?;
        out.push_sql(", ");
        out.push_bind_param::<BigInt, _>(&self.version)?;
        out.push_sql(", ");
        out.push_bind_param::<Binary, _>(&self.data)?;
        out.push_sql(")");
        Ok(())
    }
}

/// Their text never changes, so they are prepared once a connection.
macro_rules! prepared {
    ($($statement:ident),*) => {$(
        impl QueryId for $statement {
            type QueryId = $statement;
            const HAS_STATIC_QUERY_ID: bool = true;
        }

        impl<C> diesel::RunQueryDsl<C> for $statement {}
    )*};
}

prepared!(Count, Insert);

const AGGREGATES: u64 = 10_000;
