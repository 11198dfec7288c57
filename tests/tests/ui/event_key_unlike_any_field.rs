use serde::{Deserialize, Serialize};
use tidings::Event;

#[derive(Event, Serialize, Deserialize)]
#[event(type = "exports.completed", aggregate = "job", key = user)]
struct ExportCompleted {
    job_id: String,
    rows: i64,
}

fn main() {}
