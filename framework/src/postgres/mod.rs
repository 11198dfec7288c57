//! PostgreSQL: how connections are opened and shared, the schema, and what its errors mean.

mod classify;
mod database;
mod engine;
mod history;
mod migrate;
#[macro_use]
mod statement;

pub(crate) use classify::{Fault, classify};
pub use database::{Connect, Database, Error};
pub(crate) use database::{Pool, pid_of};
pub(crate) use engine::Engine;
pub use migrate::{LATEST, Migration, migrate, migrations, revert, script};
pub(crate) use migrate::{check_schema, on_a_thread};
pub(crate) use statement::statement;
