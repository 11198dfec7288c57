//! The checker: what the streams and the tables say, and whether that can be. It knows the contract (`ARCHITECTURE.md`,
//! the schema, the headers) and none of the framework's code.

mod judge;
mod streams;
mod tables;
#[cfg(test)]
mod tests;

pub use judge::{Told, judge};
pub use streams::{Message, Stream, read as read_streams, remove as remove_streams};
pub use tables::{Anchor, Confirmation, Event, Owner, Pending, Tables, WITNESS, read as read_tables};
