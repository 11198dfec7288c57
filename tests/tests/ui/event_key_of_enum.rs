use serde::{Deserialize, Serialize};
use tidings::Event;

#[derive(Event, Serialize, Deserialize)]
#[event(type = "exports.completed", aggregate = "job", key = job_id)]
enum ExportEnded {
    Completed { job_id: String },
    Failed { job_id: String },
}

fn main() {}
