use std::fmt;

use super::{DATABASE_URL, Error, NATS_URL, Nats, NatsOptions, Postgres, PostgresOptions, Services};

/// A PostgreSQL and a NATS to work with: those the environment names, private ones where it names none.
///
/// Dropping it ends what was started for it, and nothing else.
pub struct Provided {
    database: Place<Postgres>,
    nats: Place<Nats>,
}

enum Place<S> {
    Named(String),
    Private(S),
}

/// For programs such as the examples: takes the servers that `TIDINGS_DATABASE_URL` and `TIDINGS_NATS_URL` name, and
/// starts a private one for each that is not set or empty.
///
/// The URLs are not tried. Blocks for about a second if PostgreSQL is started.
///
/// # Errors
/// When a variable is not text, or a private server is not found or does not start.
pub fn from_env_or_start() -> Result<Provided, Error> {
    Ok(match (named(DATABASE_URL)?, named(NATS_URL)?) {
        (Some(database), Some(nats)) => Provided { database: Place::Named(database), nats: Place::Named(nats) },
        (Some(database), None) => {
            let nats = Nats::start_with(NatsOptions::new())?;
            Provided { database: Place::Named(database), nats: Place::Private(nats) }
        }
        (None, Some(nats)) => {
            let postgres = Postgres::start_with(PostgresOptions::new())?;
            Provided { database: Place::Private(postgres), nats: Place::Named(nats) }
        }
        (None, None) => {
            let Services { postgres, nats } = Services::start()?;
            Provided { database: Place::Private(postgres), nats: Place::Private(nats) }
        }
    })
}

impl Provided {
    /// The URL of the database, with its credentials.
    pub fn database_url(&self) -> String {
        match &self.database {
            Place::Named(url) => url.clone(),
            Place::Private(postgres) => postgres.url(),
        }
    }

    /// The URL of the broker, with its credentials.
    pub fn nats_url(&self) -> String {
        match &self.nats {
            Place::Named(url) => url.clone(),
            Place::Private(nats) => nats.url(),
        }
    }
}

impl fmt::Debug for Provided {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Provided").field("database", &self.database).field("nats", &self.nats).finish()
    }
}

impl<S: fmt::Debug> fmt::Debug for Place<S> {
    /// A named URL holds credentials, so it is not shown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Named(_) => f.write_str("named by the environment"),
            Place::Private(server) => server.fmt(f),
        }
    }
}

fn named(variable: &'static str) -> Result<Option<String>, Error> {
    match std::env::var(variable) {
        Ok(value) if value.trim().is_empty() => Ok(None),
        Ok(value) => Ok(Some(value)),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(std::env::VarError::NotUnicode(_)) => Err(Error::Variable { variable, why: "is not valid UTF-8" }),
    }
}
