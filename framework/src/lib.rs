//! Stand-in.
pub mod broker;
pub mod consumer;
pub mod envelope;
pub mod event;
mod failpoint;
mod inbox;
pub mod outbox;
pub mod postgres;
pub mod protocol;
pub mod telemetry;
pub mod transaction;
pub use broker::JetStream;
pub use consumer::{Consumer, Handle};
pub use envelope::{Envelope, Received};
pub use event::{Aggregate, Command, Event, Kind, NewEvent};
pub use outbox::append::{self, Appended};
pub use outbox::wake::all as wake;
pub use postgres::{Database, migrate};
#[cfg(feature = "sync")]
pub use transaction::sync;
pub use transaction::{Tx, transaction};
