//! Dead letters of the outbox: events that the broker will never take as they are, and what an operator does about them.
//!
//! A dead event keeps its pending row and holds its aggregate: nothing behind it is published, so that the order stands.
//! Somebody resolves it:
//!
//! * [`redrive`]: try it again, with the same id and version. For what was put right outside, such as a limit of the broker.
//! * [`discard`]: never publish it. If it has a version, a tombstone stands for it in the stream, so that ordered consumers
//!   can go on; consumers that listen to event types do not hear of it.
//!
//! Both are recorded with who did it and why. [`Relay::skip_dead`](crate::Relay::skip_dead) discards automatically. The same
//! is there for a shell: `tidings dead list|show|redrive|discard`.
//!
//! They need nothing but a connection; a relay in this process is woken, others find what was resolved within a second.
//!
//! ```no_run
//! use tidings::dead::{self, By, Which};
//!
//! # async fn example(conn: &mut diesel_async::AsyncPgConnection) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! for letter in dead::list(conn, &Which::all()).await? {
//!     println!("{} {}: {}", letter.seq, letter.event_id, letter.reason);
//! }
//! let done = dead::redrive(conn, &Which::all().event_type("orders.created"), &By::name("ana").why("limit raised")).await?;
//! println!("{} tried again", done.events.len());
//! # Ok(())
//! # }
//! ```

pub use crate::outbox::discard::discard;
pub use crate::outbox::letters::{
    By, Content, DEFAULT_LIMIT, Done, Letter, MAX_LIMIT, Named, Resolution, Resolved, Which, data, list, show,
};
pub use crate::outbox::redrive::redrive;
