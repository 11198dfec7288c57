use serde::{Deserialize, Serialize};
use tidings::Event;

#[derive(Event, Serialize, Deserialize)]
#[event(type = "exports.completed", aggregate = "job", key = job_id)]
struct ExportCompleted;

fn main() {}
