use serde::{Deserialize, Serialize};
use tidings::Event;

#[derive(Event, Serialize, Deserialize)]
#[event(type = "exports.completed", version = 2147483648)]
struct ExportCompleted {
    job_id: String,
    rows: i64,
}

fn main() {}
