//! The outbox: from the append in a business transaction to the confirmation by the broker. One verb a file.

pub mod append;
mod claim;
mod confirm;
mod dead;
pub(crate) mod lease;
pub(crate) mod look;
pub(crate) mod publish;
mod read;
mod reconcile;
mod release;
mod task;
pub(crate) mod wake;
