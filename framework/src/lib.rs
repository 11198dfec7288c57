//! Stand-in.
pub mod event;
pub mod protocol;
pub use event::{Aggregate, Command, Event, Kind, NewEvent};
pub use tidings_macros::{Command, Event};
