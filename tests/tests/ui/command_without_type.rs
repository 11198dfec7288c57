use serde::{Deserialize, Serialize};
use tidings::Command;

#[derive(Command, Serialize, Deserialize)]
#[command(to = "export-worker")]
struct StartExport {
    job_id: String,
}

fn main() {}
