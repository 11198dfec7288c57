use serde::{Deserialize, Serialize};
use tidings::Event;

#[derive(Event, Serialize, Deserialize)]
#[event(type = "exports.completed", aggregate = "job", key = job_id)]
struct ExportCompleted {
    job_id: Vec<u8>,
}

fn main() {}
