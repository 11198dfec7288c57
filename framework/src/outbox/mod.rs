//! The outbox: from the append in a business transaction to the confirmation by the broker. One verb a file.

pub mod alarms;
pub mod append;
pub(crate) mod backlog;
pub(crate) mod board;
mod claim;
mod confirm;
mod dead;
pub(crate) mod lease;
mod link;
pub(crate) mod look;
pub(crate) mod publish;
mod read;
mod reconcile;
mod release;
mod task;
pub(crate) mod wake;
