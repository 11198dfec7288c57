use serde::{Deserialize, Serialize};
use tidings::Event;

#[derive(Event, Serialize, Deserialize)]
#[event(type = "exports.completed", to = "statistics")]
struct ExportCompleted {
    job_id: String,
    rows: i64,
}

fn main() {}
