use serde::{Deserialize, Serialize};
use tidings::Command;

#[derive(Command, Serialize, Deserialize)]
#[command(type = "exports.start")]
struct StartExport {
    job_id: String,
}

fn main() {}
