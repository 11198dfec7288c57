//! What a consumer is: the [`Consumer`] trait that the derive fills in, and the [`Handle`] impls that users write.

#[doc(hidden)]
pub mod check;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use crate::envelope::{Envelope, Received};
use crate::event::Event;
use crate::protocol::attempt::Policy;
use crate::protocol::backoff::Backoff;
use crate::transaction::Tx;

/// A struct that handles events, each exactly once in its effect. Derive it.
///
/// ```
/// use diesel_async::RunQueryDsl;
/// use serde::{Deserialize, Serialize};
/// use tidings::consumer::HandlerError;
/// use tidings::{Consumer, Event, Handle, Received, Tx};
///
/// #[derive(Event, Serialize, Deserialize)]
/// #[event(type = "exports.completed", aggregate = "job", key = job_id)]
/// struct ExportCompleted { job_id: String, rows: i64 }
///
/// #[derive(Consumer)]
/// #[consumer(name = "statistics", source = "academy.exports", events(ExportCompleted), timeout = "30s")]
/// struct Statistics;
///
/// impl Handle<ExportCompleted> for Statistics {
///     async fn handle(&self, event: Received<ExportCompleted>, tx: &mut Tx<'_>) -> Result<(), HandlerError> {
///         diesel::sql_query("UPDATE totals SET exports = exports + 1, rows = rows + $1")
///             .bind::<diesel::sql_types::BigInt, _>(event.rows)
///             .execute(tx.conn())
///             .await?;
///         Ok(())
///     }
/// }
///
/// assert_eq!(Statistics::NAME, "statistics");
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a consumer",
    label = "not a consumer",
    note = "add `#[derive(Consumer)]` and `#[consumer(name = \"…\", source = \"…\", events(…))]` to `{Self}`"
)]
pub trait Consumer: Send + Sync + 'static {
    /// Its name: with source and event id the key of the inbox, and the name of its durables.
    const NAME: &'static str;
    /// Whose events it takes.
    const SOURCE: &'static str;
    /// The types it handles.
    const ACCEPTS: &'static [Accepts];

    /// Its settings, as the attribute says them.
    fn options() -> Options;

    /// Runs the handler of the event's type.
    fn dispatch<'a>(&'a self, envelope: &'a Envelope, tx: &'a mut Tx<'_>) -> Dispatch<'a>;
}

/// What a consumer does with one type of event.
///
/// The effect goes through `tx`: it commits together with the record that this event was applied, or not at all. Do not
/// commit or roll back on its connection, and do nothing outside the database that must happen exactly once.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not handle `{E}`: missing `impl Handle<{E}> for {Self}`",
    label = "listed here, but not handled",
    note = "write `impl Handle<{E}> for {Self}`, or remove `{E}` from the list"
)]
pub trait Handle<E: Event>: Send + Sync + 'static {
    /// Applies one event.
    ///
    /// # Errors
    /// Anything that is an error converts with `?`. A database error keeps its kind: a serialization failure restarts
    /// the transaction without counting an attempt. [`HandlerError::permanent`] says that trying again cannot help.
    fn handle(&self, event: Received<E>, tx: &mut Tx<'_>) -> impl Future<Output = Result<(), HandlerError>> + Send;
}

/// A type that a consumer handles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Accepts {
    /// The type.
    pub r#type: &'static str,
    /// The newest version of its shape that is understood.
    pub schema_version: u32,
    /// The consumer a command is for.
    pub recipient: Option<&'static str>,
    /// The aggregate type of an ordered event.
    pub aggregate: Option<&'static str>,
}

impl Accepts {
    /// What the derives say of a type.
    pub const fn of<E: Event>() -> Accepts {
        Accepts { r#type: E::TYPE, schema_version: E::SCHEMA_VERSION, recipient: E::RECIPIENT, aggregate: E::AGGREGATE }
    }
}

/// The settings of a consumer: those of `#[consumer(…)]`, and what
/// [`consumer_with`](crate::Tidings::consumer_with) may change at start.
///
/// Beside what is applied, a process holds up to four times `concurrency` messages and 16 MiB of each stream in hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Failures of the event itself before it is set aside, across all processes. Default 8.
    pub attempts: u32,
    /// The wait after the first of them. Default 200 ms.
    pub delay_min: Duration,
    /// The longest wait between two of them. Default 5 min.
    pub delay_max: Duration,
    /// How long the handler may take. Default 30 s.
    pub timeout: Duration,
    /// Events applied at once by one process; each takes a connection of the pool meanwhile. Default 16.
    pub concurrency: usize,
    /// The isolation of the transaction. Default READ COMMITTED.
    pub isolation: Isolation,
    /// After this long without a sign of life, which a living process gives three times as often, the broker delivers
    /// again. Default 30 s.
    pub ack_wait: Duration,
}

impl Options {
    /// What the attribute refuses at compile time; names the field.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        match self {
            Options { attempts: 0, .. } => Err("attempts` is 0: no event would ever be tried"),
            Options { concurrency: 0, .. } => Err("concurrency` is 0: nothing would ever be applied"),
            _ if self.timeout.is_zero() => Err("timeout` is 0: no handler could end in time"),
            _ if self.delay_min.is_zero() || self.delay_max < self.delay_min => {
                Err("delay_min` is 0 or above `delay_max`")
            }
            _ if self.ack_wait < MIN_ACK_WAIT => {
                Err("ack_wait` is under 300 ms: signs of life would come too late under load")
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn policy(&self) -> Policy {
        Policy { attempts: self.attempts, backoff: Backoff { min: self.delay_min, max: self.delay_max } }
    }
}

impl Default for Options {
    fn default() -> Self {
        Options {
            attempts: 8,
            delay_min: Duration::from_millis(200),
            delay_max: Duration::from_secs(300),
            timeout: Duration::from_secs(30),
            concurrency: 16,
            isolation: Isolation::ReadCommitted,
            ack_wait: Duration::from_secs(30),
        }
    }
}

const MIN_ACK_WAIT: Duration = Duration::from_millis(300);

/// The isolation level of the transaction that applies an event (PostgreSQL manual, section 13.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isolation {
    /// Each statement sees what was committed before it.
    ReadCommitted,
    /// The transaction sees one snapshot; conflicting writers restart.
    RepeatableRead,
    /// As if the transactions ran one after the other; more of them restart.
    Serializable,
}

/// The future of a handler.
pub type Dispatch<'a> = Pin<Box<dyn Future<Output = Result<(), HandlerError>> + Send + 'a>>;

/// Decodes the event and hands it to the handler. Called by the derive.
///
/// # Errors
/// Those of the handler; permanent if the data is not the JSON of `E`, deferred if its shape is newer than `E`.
pub async fn handle<C: Handle<E>, E: Event>(
    consumer: &C,
    envelope: &Envelope,
    tx: &mut Tx<'_>,
) -> Result<(), HandlerError> {
    if envelope.schema_version > E::SCHEMA_VERSION {
        return Err(HandlerError {
            kind: Kind::Later,
            source: format!(
                "schema version {} of `{}` is newer than version {} known here",
                envelope.schema_version,
                envelope.r#type,
                E::SCHEMA_VERSION
            )
            .into(),
        });
    }
    let event: E = serde_json::from_slice(&envelope.data).map_err(|error| HandlerError {
        kind: Kind::Undecodable,
        // Where it broke, never what stood there.
        source: format!(
            "the data is not a `{}` of schema version {}: {} error at line {}, column {}",
            E::TYPE,
            E::SCHEMA_VERSION,
            category(&error),
            error.line(),
            error.column()
        )
        .into(),
    })?;
    consumer.handle(Received { event, envelope: envelope.clone() }, tx).await
}

/// What the derive answers for a type that is not listed: another release of this consumer handles it.
pub fn unhandled(envelope: &Envelope) -> Dispatch<'_> {
    let error = HandlerError {
        kind: Kind::Later,
        source: format!("no handler here for `{}`: another release of this consumer takes it", envelope.r#type).into(),
    };
    Box::pin(std::future::ready(Err(error)))
}

fn category(error: &serde_json::Error) -> &'static str {
    match error.classify() {
        serde_json::error::Category::Data => "a missing or mistyped field,",
        serde_json::error::Category::Syntax => "a syntax",
        serde_json::error::Category::Eof => "an end-of-input",
        serde_json::error::Category::Io => "a read",
    }
}

/// Why a handler failed. Every error converts into it with `?`.
///
/// ```
/// use tidings::consumer::HandlerError;
///
/// fn parse(amount: &str) -> Result<i64, HandlerError> {
///     Ok(amount.parse::<i64>().map_err(HandlerError::permanent)?)
/// }
/// assert!(parse("seven").unwrap_err().is_permanent());
/// ```
pub struct HandlerError {
    pub(crate) kind: Kind,
    pub(crate) source: Box<dyn std::error::Error + Send + Sync>,
}

/// What a failure means for what follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It may pass; a database error in the source decides more closely.
    Transient,
    /// It will not pass.
    Permanent,
    /// The data cannot be read, now or later.
    Undecodable,
    /// This release cannot; a newer one can.
    Later,
}

impl HandlerError {
    /// Trying again cannot help: the event becomes a dead letter at once.
    pub fn permanent(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> HandlerError {
        HandlerError { kind: Kind::Permanent, source: source.into() }
    }

    /// It may pass: tried again, up to the consumer's `attempts`.
    pub fn transient(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> HandlerError {
        HandlerError { kind: Kind::Transient, source: source.into() }
    }

    /// Whether trying again cannot help.
    pub fn is_permanent(&self) -> bool {
        matches!(self.kind, Kind::Permanent | Kind::Undecodable)
    }

    /// The database error in it, if there is one anywhere in the chain of sources.
    pub(crate) fn database_error(&self) -> Option<&diesel::result::Error> {
        let mut next: Option<&(dyn std::error::Error + 'static)> = Some(self.source.as_ref());
        while let Some(error) = next {
            if let Some(found) = error.downcast_ref::<diesel::result::Error>() {
                return Some(found);
            }
            next = error.source();
        }
        None
    }
}

impl<E> From<E> for HandlerError
where
    E: std::error::Error + Send + Sync + 'static,
{
    fn from(error: E) -> HandlerError {
        HandlerError::transient(error)
    }
}

impl fmt::Debug for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandlerError").field("kind", &self.kind).field("source", &self.source).finish()
    }
}

impl fmt::Display for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt(f)
    }
}
