//! The transactional outbox and the idempotent inbox on PostgreSQL and NATS JetStream, hosted in actix systems.
//!
//! A service says a fact in the transaction that makes it true; Tidings carries the fact to the broker and applies it
//! once in every consumer, whatever dies in between.
//!
//! | step | what happens | where |
//! |---|---|---|
//! | 1 append | event and pending row, in the business transaction | [`transaction()`], [`append`] |
//! | 2 claim | what of a partition may go now | `outbox/claim.rs` |
//! | 3 publish | hand to the broker, in the order of each aggregate | `outbox/publish.rs` |
//! | 4 confirm | record that the broker stored it | `outbox/confirm.rs` |
//! | 5 deliver | from the stream into lanes | `inbox/deliver.rs` |
//! | 6 apply | inbox row and effect in one transaction | `inbox/apply.rs` |
//! | 7 settle | tell the broker, after the commit | `inbox/settle.rs` |
//!
//! Start with [`Event`], [`transaction()`], [`Consumer`] and [`Tidings`].

mod actors;
pub mod broker;
#[cfg(feature = "cli")]
pub mod cli;
pub mod consumer;
pub mod dead;
pub mod envelope;
pub mod event;
mod failpoint;
pub mod host;
mod inbox;
pub mod operate;
pub mod outbox;
pub mod postgres;
pub mod protocol;
#[cfg(feature = "services")]
pub mod services;
pub mod signal;
pub mod telemetry;
#[cfg(feature = "testing")]
pub mod testing;
pub mod transaction;

pub use broker::JetStream;
pub use consumer::{Consumer, Handle, HandlerError};
pub use envelope::{Envelope, Received};
pub use event::{Aggregate, Command, Event, Kind, NewEvent, Version};
pub use host::{Relay, Running, Tidings};
pub use outbox::adopt;
pub use outbox::alarms::{Alarm, Alarms};
pub use outbox::append::{self, Appended};
pub use outbox::cancel::{self, Cancelled};
pub use outbox::republish;
pub use outbox::wake::all as wake;
pub use postgres::{Database, migrate};
pub use tidings_macros::{Command, Consumer, Event};
#[cfg(feature = "sync")]
pub use transaction::sync;
pub use transaction::{Tx, transaction};

/// The code in the README is compiled with the tests of this crate's documentation.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
