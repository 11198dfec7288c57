//! Take back an event that waits for its time, in the caller's transaction.

use diesel::result::Error as DieselError;
use diesel::sql_types::{Nullable, Text};

use crate::postgres::statement;

/// What a cancel did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancelled {
    /// The event will not be published.
    Cancelled,
    /// It was cancelled before; nothing changed.
    AlreadyCancelled,
}

/// Why a cancel failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The event waits no more: it is on its way, or where it was sent to.
    #[error(
        "it is too late to cancel event {event_id:?}: its state is `{state}`; only what is `delayed` can be taken back"
    )]
    TooLate {
        /// The event.
        event_id: String,
        /// Its state, in a word of the glossary.
        state: String,
    },
    /// There is no such event, or this transaction does not see it yet.
    #[error("there is no event {0:?} to cancel: check the id, and that the transaction that appended it has committed")]
    Unknown(String),
    /// The database failed; a serialization failure keeps its kind. Roll the transaction back.
    #[error("the cancel failed: {0}")]
    Query(#[from] DieselError),
}

statement! {
    pub(crate) struct Cancel { event_id: Text = String } -> Nullable<Text>;
    "SELECT tidings.cancel({event_id})"
}

impl Cancel {
    pub(crate) fn of(event_id: &str) -> Cancel {
        Cancel { event_id: event_id.to_owned() }
    }
}

/// What the answer of the function means.
pub(crate) fn told(event_id: &str, answer: Option<String>) -> Result<Cancelled, Error> {
    match answer.as_deref() {
        Some("cancelled") => Ok(Cancelled::Cancelled),
        Some("already cancelled") => Ok(Cancelled::AlreadyCancelled),
        Some(state) => Err(Error::TooLate { event_id: event_id.to_owned(), state: state.to_owned() }),
        None => Err(Error::Unknown(event_id.to_owned())),
    }
}
