//! What the tests of consumers share with the program that they start: an event, and consumers whose handler is a closure.

use std::time::Duration;

use diesel::sql_types::{BigInt, Text};
use diesel_async::RunQueryDsl;
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use tidings::consumer::{Accepts, Dispatch, Options, handle, unhandled};
use tidings::{Consumer, Envelope, Event, Handle, HandlerError, Received, Tx};

/// Whose events it all is. Every test has a broker of its own.
pub const SOURCE: &str = "test.consumer";
/// The names that [`Listener`] can have.
pub const NAMES: [&str; 3] = ["alpha", "beta", "gamma"];
/// The table of effects: nothing in it keeps an event from being applied twice.
pub const TABLE: &str = "CREATE TABLE heard (n bigint NOT NULL, by text NOT NULL)";

/// Event `n` of a lane.
#[derive(Debug, Clone, Event, Serialize, Deserialize)]
#[event(type = "said", aggregate = "lane", key = lane)]
pub struct Said {
    /// The aggregate.
    pub lane: String,
    /// Which.
    pub n: i64,
}

/// What came of a handler.
pub type Handled = Result<(), HandlerError>;

/// A consumer of [`Said`] with the name `NAMES[NAME]`, whose handler is a closure.
pub struct Listener<F, const NAME: usize = 0>(pub F);

/// A listener named `alpha`.
pub fn alpha<F>(handler: F) -> Listener<F, 0>
where
    F: for<'a> Fn(Received<Said>, &'a mut Tx<'_>) -> BoxFuture<'a, Handled> + Send + Sync + 'static,
{
    Listener(handler)
}

/// A listener named `beta`.
pub fn beta<F>(handler: F) -> Listener<F, 1>
where
    F: for<'a> Fn(Received<Said>, &'a mut Tx<'_>) -> BoxFuture<'a, Handled> + Send + Sync + 'static,
{
    Listener(handler)
}

impl<F, const NAME: usize> Handle<Said> for Listener<F, NAME>
where
    F: for<'a> Fn(Received<Said>, &'a mut Tx<'_>) -> BoxFuture<'a, Handled> + Send + Sync + 'static,
{
    async fn handle(&self, event: Received<Said>, tx: &mut Tx<'_>) -> Handled {
        (self.0)(event, tx).await
    }
}

impl<F, const NAME: usize> Consumer for Listener<F, NAME>
where
    F: for<'a> Fn(Received<Said>, &'a mut Tx<'_>) -> BoxFuture<'a, Handled> + Send + Sync + 'static,
{
    const NAME: &'static str = NAMES[NAME];
    const SOURCE: &'static str = SOURCE;
    const ACCEPTS: &'static [Accepts] = &[Accepts::of::<Said>()];

    fn options() -> Options {
        options()
    }

    fn dispatch<'a>(&'a self, envelope: &'a Envelope, tx: &'a mut Tx<'_>) -> Dispatch<'a> {
        match envelope.r#type.as_str() {
            Said::TYPE => Box::pin(handle::<Self, Said>(self, envelope, tx)),
            _ => unhandled(envelope),
        }
    }
}

/// Short waits, and one attempt only: what is counted once is dead, so that a test sees it.
pub fn options() -> Options {
    Options {
        attempts: 1,
        delay_min: Duration::from_millis(50),
        delay_max: Duration::from_millis(200),
        ..Options::default()
    }
}

/// The effect of event `n`.
///
/// # Errors
/// Those of the database.
pub async fn hear(tx: &mut Tx<'_>, n: i64, by: &str) -> Handled {
    diesel::sql_query("INSERT INTO heard (n, by) VALUES ($1, $2)")
        .bind::<BigInt, _>(n)
        .bind::<Text, _>(by)
        .execute(tx.conn())
        .await?;
    Ok(())
}
