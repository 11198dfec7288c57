use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tidings::Event;

#[derive(Event)]
#[event(type = "exports.completed")]
union ExportCompleted {
    rows: i64,
}

impl Serialize for ExportCompleted {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_unit()
    }
}

impl<'de> Deserialize<'de> for ExportCompleted {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        i64::deserialize(deserializer).map(|rows| ExportCompleted { rows })
    }
}

fn main() {}
