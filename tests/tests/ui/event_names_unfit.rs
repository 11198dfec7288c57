use serde::{Deserialize, Serialize};
use tidings::Event;

#[derive(Event, Serialize, Deserialize)]
#[event(type = "", aggregate = "a job", key = 0)]
struct Empty(String);

#[derive(Event, Serialize, Deserialize)]
#[event(type = "exports.*", aggregate = "job\n", key = 0)]
struct Wildcard(String);

#[derive(Event, Serialize, Deserialize)]
#[event(type = "exports..completed", aggregate = ".job", key = 0)]
struct Segment(String);

#[derive(Event, Serialize, Deserialize)]
#[event(type = "éééééééééééééééééééééééééééééé")]
struct Escaped(String);

#[derive(Event, Serialize, Deserialize)]
#[event(type = "exports.exports.exports.exports.exports.exports.exports.exports.exports.exports.exports.exports.exports.exports.exports.exports.exports.exports.exports.exports.exports.exports.exports.exports.exports.exports.exports.exports.exports.exports.exports.exports.exports")]
struct Long(String);

fn main() {}
