//! Actors schedule; PostgreSQL and JetStream hold the truth. Nothing stands in a mailbox that is not also in a table or
//! unacknowledged in a stream, so any of them may die at any moment. No decisions are made here.

pub(crate) mod alarm;
pub(crate) mod consumer;
pub(crate) mod node;
pub(crate) mod partition;
pub(crate) mod supervisor;

use actix::prelude::*;

/// Take no more, finish what is in hand; answered when that is done, with whether nothing was left behind.
#[derive(Message)]
#[rtype(result = "bool")]
pub(crate) struct Drain;
