//! The outbox: from the append in a business transaction to the confirmation by the broker.

pub mod append;
pub(crate) mod wake;
