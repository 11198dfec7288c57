use serde::{Deserialize, Serialize};
use tidings::Event;

#[derive(Event, Serialize, Deserialize)]
#[event(
    typ = "exports.completed",
    version = 0,
    version = 2,
    aggregate = "a job",
    key = job,
    to = "statistics",
    durable,
    7,
    agregate = "job",
)]
#[event = "exports.completed"]
struct ExportCompleted {
    job_id: String,
}

/// The mistakes above are all there is to say: it is an event.
fn is_an_event() -> impl Event {
    ExportCompleted { job_id: String::new() }
}

fn main() {}
