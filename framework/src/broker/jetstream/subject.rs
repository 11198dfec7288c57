//! Names of streams, subjects and durables.

use crate::envelope::{Envelope, TOMBSTONE};
use crate::protocol::token::{NO_AGGREGATE, escape};

/// The stream of a partition. Distinct sources and partitions have distinct names: the last `_` ends the source.
pub(super) fn stream_name(source: &str, partition: i32) -> String {
    format!("{}_{partition}", escape(source))
}

/// All subjects of a partition.
pub(super) fn subjects_of(source: &str, partition: i32) -> String {
    format!("{}.{partition}.>", escape(source))
}

/// Where an event is published: `<source>.<partition>.evt.<aggregate-type>.<type>`, or
/// `<source>.<partition>.cmd.<consumer>.<type>`. A tombstone's type is a token that no event type is escaped into, so that
/// who listens to event types never hears of it.
pub(crate) fn subject_of(envelope: &Envelope, partition: i32) -> String {
    let source = escape(&envelope.source);
    let r#type = if envelope.tombstone { TOMBSTONE.into() } else { escape(&envelope.r#type) };
    match &envelope.recipient {
        Some(recipient) => format!("{source}.{partition}.cmd.{}.{type}", escape(recipient)),
        None => {
            let aggregate = envelope.aggregate.as_ref().map_or(NO_AGGREGATE.into(), |a| escape(&a.r#type));
            format!("{source}.{partition}.evt.{aggregate}.{type}")
        }
    }
}

/// What a consumer of these event types listens to on one partition.
pub(super) fn filters(
    source: &str,
    partition: i32,
    consumer: &str,
    event_types: &[String],
    commands: bool,
) -> Vec<String> {
    let prefix = format!("{}.{partition}", escape(source));
    let events = event_types.iter().map(|r#type| format!("{prefix}.evt.*.{}", escape(r#type)));
    events.chain(commands.then(|| format!("{prefix}.cmd.{}.>", escape(consumer)))).collect()
}

/// The durable of a consumer.
pub(super) fn durable_name(consumer: &str) -> String {
    escape(consumer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::token::{check_token, unescape};

    #[test]
    fn no_event_type_listens_to_tombstones() {
        let name = unescape(TOMBSTONE).expect("the only name that is escaped into it");
        assert!(check_token(&name).is_err(), "{name:?} is no event type");
        assert_ne!(escape(TOMBSTONE), TOMBSTONE);
    }
}
