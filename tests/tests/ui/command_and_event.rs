use serde::{Deserialize, Serialize};
use tidings::{Command, Event};

#[derive(Command, Event, Serialize, Deserialize)]
#[command(type = "exports.start", to = "export-worker")]
#[event(type = "exports.start")]
struct StartExport {
    job_id: String,
}

fn main() {}
