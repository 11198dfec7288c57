//! What travels: one command and one event.

use serde::{Deserialize, Serialize};
use tidings::{Command, Event};

/// Whose events they are. One database is one source.
pub(crate) const SOURCE: &str = "academy.exports";

/// Please write this file. A request, to exactly one consumer.
#[derive(Debug, Command, Serialize, Deserialize)]
#[command(type = "exports.start", to = "export-worker")]
pub(crate) struct StartExport {
    pub(crate) job_id: String,
    pub(crate) tenant: String,
    pub(crate) dataset: String,
    pub(crate) rows: i32,
}

/// The file is there. A fact, for whoever cares; the events of one job keep their order.
#[derive(Debug, Event, Serialize, Deserialize)]
#[event(type = "exports.completed", aggregate = "job", key = job_id)]
pub(crate) struct ExportCompleted {
    pub(crate) job_id: String,
    pub(crate) tenant: String,
    pub(crate) dataset: String,
    pub(crate) file: String,
    pub(crate) rows: i32,
}
