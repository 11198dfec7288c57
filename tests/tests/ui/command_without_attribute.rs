use serde::{Deserialize, Serialize};
use tidings::Command;

#[derive(Command, Serialize, Deserialize)]
struct StartExport {
    job_id: String,
}

fn main() {}
