//! What tests need: private servers, and a fresh migrated database for each of them.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! use tidings::testing;
//!
//! let database = testing::database().await?;
//! let running = tidings::Tidings::new(database.database(), testing::jetstream())
//!     .source(database.source())
//!     .relay(tidings::Relay::default())
//!     .start()
//!     .await?;
//! # drop(running);
//! # Ok(())
//! # }
//! ```

use std::sync::LazyLock;

use crate::broker::JetStream;
use crate::postgres::{Database, migrate};
use crate::services::Services;

static SERVERS: LazyLock<Result<Services, String>> =
    LazyLock::new(|| Services::start().map_err(|error| error.to_string()));

/// The pair of servers that all tests of this process share, started at first use. They end with the process.
///
/// # Panics
/// If they cannot be started; the message says what to install.
pub fn servers() -> &'static Services {
    match &*SERVERS {
        Ok(servers) => servers,
        Err(error) => panic!("the servers for the tests cannot be started: {error}"),
    }
}

/// The shared NATS server.
pub fn jetstream() -> JetStream {
    JetStream::url(servers().nats.url())
}

/// A database of its own on the shared PostgreSQL, with the schema `tidings` in it.
///
/// # Errors
/// Those of the server and of [`migrate`].
pub async fn database() -> Result<TestDatabase, Box<dyn std::error::Error + Send + Sync>> {
    let database = empty_database().await?;
    migrate(&database.database()).await?;
    Ok(database)
}

/// A database of its own on the shared PostgreSQL, with nothing in it.
///
/// # Errors
/// Those of the server.
pub async fn empty_database() -> Result<TestDatabase, Box<dyn std::error::Error + Send + Sync>> {
    let name = format!("test_{}", uuid::Uuid::new_v4().simple());
    let (done, made) = tokio::sync::oneshot::channel();
    let create = name.clone();
    // Starting servers and making a database block; no runtime of the caller waits for that.
    std::thread::spawn(move || {
        let _ = done.send(servers().postgres.create_database(&create));
    });
    made.await??;
    Ok(TestDatabase { url: servers().postgres.url_of(&name), name })
}

/// A database for one test. It stays until the servers end, so that a failed test can be looked at.
#[derive(Clone)]
pub struct TestDatabase {
    name: String,
    url: String,
}

impl std::fmt::Debug for TestDatabase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TestDatabase").field("name", &self.name).finish_non_exhaustive()
    }
}

impl TestDatabase {
    /// Its URL, with the password.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// How to connect to it.
    pub fn database(&self) -> Database {
        Database::url(self.url.clone())
    }

    /// A CloudEvents source that no other test has.
    pub fn source(&self) -> &str {
        &self.name
    }
}
