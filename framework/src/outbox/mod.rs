//! The outbox: from the append in a business transaction to the confirmation by the broker. One verb a file.

pub mod adopt;
pub mod alarms;
mod answer;
pub mod append;
pub(crate) mod backlog;
pub(crate) mod board;
pub mod cancel;
mod claim;
mod confirm;
mod dead;
pub(crate) mod discard;
pub(crate) mod lease;
pub(crate) mod letters;
mod link;
pub(crate) mod look;
pub(crate) mod partitions;
pub(crate) mod pause;
pub(crate) mod publish;
mod read;
mod reconcile;
pub(crate) mod redrive;
mod release;
pub mod republish;
mod task;
pub(crate) mod wake;
