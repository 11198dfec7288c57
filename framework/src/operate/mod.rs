//! What operators do, from code: the `tidings` program is made of the same functions.
//!
//! All of them open a connection of their own, on a thread of their own, and may be called from any runtime.

mod partitions;
mod pause;

pub use crate::outbox::partitions::{MOST_COUNTED, Status as PartitionStatus};
pub use crate::outbox::pause::Pause;
pub use partitions::{PartitionsChanged, PartitionsError, SetPartitions, partitions};
pub use pause::{pause_relay, resume_relay};
