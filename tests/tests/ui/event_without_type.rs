use serde::{Deserialize, Serialize};
use tidings::Event;

#[derive(Event, Serialize, Deserialize)]
#[event(version = 2)]
struct ExportCompleted {
    job_id: String,
    rows: i64,
}

fn main() {}
