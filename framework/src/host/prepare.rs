//! What must be right before anything runs.

use std::time::Duration;

use diesel_async::AsyncPgConnection;

use super::Error;
use crate::inbox::register::register;
use crate::outbox::lease::{partition_count, settle_source};
use crate::postgres::{Database, Error as DatabaseError, check_schema};
use crate::protocol::backoff::Backoff;

pub(super) struct Prepared {
    pub(super) partitions: i32,
    pub(super) generations: Vec<i32>,
}

/// What must be right before anything runs. Only a missing connection is waited for.
pub(super) async fn prepare(
    database: Database,
    source: Option<String>,
    consumers: Vec<(&'static str, &'static str)>,
    within: Duration,
) -> Result<Prepared, Error> {
    let waiting = async {
        let mut failures = 0;
        loop {
            match database.open().await {
                Ok(connection) => return connection,
                Err(error) => {
                    failures += 1;
                    tracing::warn!(%error, "waiting for the database");
                    tokio::time::sleep(CONNECT.delay(failures, rand::random())).await;
                }
            }
        }
    };
    let mut connection: AsyncPgConnection = match tokio::time::timeout(within, waiting).await {
        Ok(connection) => connection,
        Err(_) => return Err(Error::Database(database.open().await.err().unwrap_or(DatabaseError::ConnectTimeout))),
    };
    let settling = settle(&mut connection, &database, source, consumers);
    tokio::time::timeout(within, settling).await.unwrap_or(Err(Error::Database(DatabaseError::NoAnswer)))
}

async fn settle(
    connection: &mut AsyncPgConnection,
    database: &Database,
    source: Option<String>,
    consumers: Vec<(&'static str, &'static str)>,
) -> Result<Prepared, Error> {
    check_schema(connection, database).await?;
    if let Some(source) = source {
        let settled = settle_source(connection, &source).await.map_err(DatabaseError::from)?;
        if settled != source {
            return Err(Error::Config(format!(
                "the database is the source {settled:?} and this process says {source:?}: a database is one source, for ever; consumers know its events by it"
            )));
        }
    }
    let mut generations = Vec::new();
    for (name, source) in consumers {
        let (generation, registered) = register(connection, name, source).await.map_err(DatabaseError::from)?;
        if registered != source {
            return Err(Error::Config(format!(
                "consumer {name:?} is registered for the source {registered:?} and this process says {source:?}: give it another name"
            )));
        }
        generations.push(generation);
    }
    let partitions = partition_count(connection).await.map_err(DatabaseError::from)?;
    Ok(Prepared { partitions, generations })
}

const CONNECT: Backoff = Backoff { min: Duration::from_millis(100), max: Duration::from_secs(3) };
