use serde::{Deserialize, Serialize};
use tidings::Event;

#[derive(Event, Serialize, Deserialize)]
#[event(type = "exports.completed", aggregate = "job", key = 2)]
struct ExportCompleted(String, i64);

fn main() {}
