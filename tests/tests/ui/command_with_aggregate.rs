use serde::{Deserialize, Serialize};
use tidings::Command;

#[derive(Command, Serialize, Deserialize)]
#[command(type = "exports.start", to = "export-worker", aggregate = "job", key = job_id)]
struct StartExport {
    job_id: String,
}

fn main() {}
