//! Whether what the streams and the tables say can be. Rules only: values in, violations out.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::streams::{Message, Stream};
use super::tables::{Event, Tables};

/// What those know who appended.
#[derive(Debug, Clone, Copy)]
pub struct Told<'a> {
    /// Their commit was answered.
    pub committed: &'a BTreeSet<String>,
    /// They were rolled back.
    pub undone: &'a BTreeSet<String>,
}

/// All violations, each in a sentence; of each kind the first few.
pub fn judge(source: &str, tables: &Tables, streams: &[Stream], told: Told<'_>) -> Vec<String> {
    let mut found = Found::default();
    let by_id: HashMap<&str, &Event> = tables.events.iter().map(|event| (event.id.as_str(), event)).collect();
    appended(tables, &by_id, told, &mut found);
    for stream in streams {
        messages(source, stream, &by_id, told, &mut found);
        order(stream, &mut found);
    }
    nothing_lost(tables, streams, &mut found);
    evidence(tables, streams, &mut found);
    owners(tables, &mut found);
    found.sentences()
}

/// The tables agree with those who wrote, and with themselves.
fn appended(tables: &Tables, by_id: &HashMap<&str, &Event>, told: Told<'_>, found: &mut Found) {
    for id in told.committed.iter().filter(|id| !by_id.contains_key(id.as_str())) {
        found.add("committed and not in the table", id);
    }
    for id in told.undone.iter().filter(|id| by_id.contains_key(id.as_str())) {
        found.add("rolled back and in the table", id);
    }
    let mut last: BTreeMap<&(String, String), i64> = BTreeMap::new();
    for event in &tables.events {
        let (Some(aggregate), Some(version)) = (&event.aggregate, event.version) else { continue };
        let before = last.insert(aggregate, version);
        if before.map_or(1, |before| before + 1) != version || event.previous != before {
            found.add("versions in the table do not count on", &format!("{} {version} after {before:?}", event.id));
        }
    }
    for (aggregate, head) in &tables.heads {
        // A first append that was rolled back may leave a head of 0 and no event.
        if last.get(aggregate).copied().unwrap_or(0) != *head {
            found.add("a head is not the last version", &format!("{aggregate:?}: {head}"));
        }
    }
}

/// Each message is an event that was committed, whole and where it belongs; an id never has two contents.
fn messages(source: &str, stream: &Stream, by_id: &HashMap<&str, &Event>, told: Told<'_>, found: &mut Found) {
    let mut first: HashMap<&str, &Message> = HashMap::new();
    let mut last = 0;
    for message in &stream.messages {
        let at = format!("{} {}", stream.name, message.seq);
        if message.seq <= last {
            found.add("the stream was not read in order", &at);
        }
        last = message.seq;
        let Some(id) = message.header("ce-id") else {
            found.add("a message without an id", &at);
            continue;
        };
        let Some(event) = by_id.get(id) else {
            let what = if told.undone.contains(id) {
                "published, though rolled back"
            } else {
                "published, and not in the table"
            };
            found.add(what, &format!("{id} at {at}"));
            continue;
        };
        for wrong in differences(source, stream, message, event) {
            found.add("a message is not its event", &format!("{id} at {at}: {wrong}"));
        }
        let before = first.entry(id).or_insert(message);
        if (before.data != message.data) || (before.is_tombstone() != message.is_tombstone()) {
            found.add("one id with two contents", &format!("{id} at {} and {at}", before.seq));
        }
    }
}

fn differences(source: &str, stream: &Stream, message: &Message, event: &Event) -> Vec<&'static str> {
    let number = |name: &str| message.header(name).map(str::parse).transpose().ok().flatten();
    let aggregate = message.header("ce-aggregatetype").zip(message.header("ce-aggregateid"));
    let tokens: Vec<&str> = message.subject.split('.').collect();
    let partition = event.partition.to_string();
    let identity = format!("{source}#{}", event.id);
    let message_id = message.header("nats-msg-id").unwrap_or_default();
    let tombstone = message.is_tombstone();
    let checks = [
        (message.header("ce-source") == Some(source), "source"),
        (aggregate == event.aggregate.as_ref().map(|(of, id)| (of.as_str(), id.as_str())), "aggregate"),
        (number("ce-aggregateversion") == event.version, "version"),
        (number("ce-previousversion") == event.previous, "previous version"),
        (stream.partition == event.partition && tokens.get(1) == Some(&partition.as_str()), "partition"),
        (tombstone || message.header("ce-type") == Some(event.r#type.as_str()), "type"),
        (tombstone || message.data == event.data, "data"),
        (tombstone || message_id == identity, "message id"),
        (!tombstone || message_id.starts_with(&identity) && message_id != identity, "message id of a tombstone"),
        (!tombstone || event.version.is_some(), "tombstone without a version"),
        (message.header("ce-recipient") == event.recipient.as_deref(), "recipient"),
    ];
    checks.into_iter().filter(|(holds, _)| !holds).map(|(_, what)| what).collect()
}

/// Within an aggregate the first occurrences are in version order, tombstones included, and no version is left out.
fn order(stream: &Stream, found: &mut Found) {
    let mut seen: HashMap<(&str, &str), (i64, BTreeSet<i64>)> = HashMap::new();
    for message in &stream.messages {
        let aggregate = message.header("ce-aggregatetype").zip(message.header("ce-aggregateid"));
        let version = message.header("ce-aggregateversion").and_then(|version| version.parse::<i64>().ok());
        let (Some(aggregate), Some(version)) = (aggregate, version) else { continue };
        let (highest, versions) = seen.entry(aggregate).or_default();
        if !versions.insert(version) {
            continue;
        }
        if version != *highest + 1 {
            let (of, id) = aggregate;
            let what = if version <= *highest {
                "a later version precedes an earlier one"
            } else {
                "a version is passed over"
            };
            found.add(what, &format!("{of} {id}: {version} after {highest}, at {} {}", stream.name, message.seq));
        }
        *highest = version.max(*highest);
    }
}

/// Every committed event is in a stream.
fn nothing_lost(tables: &Tables, streams: &[Stream], found: &mut Found) {
    let published: BTreeSet<&str> =
        streams.iter().flat_map(|stream| &stream.messages).filter_map(|message| message.header("ce-id")).collect();
    for event in tables.events.iter().filter(|event| !published.contains(event.id.as_str())) {
        found.add("lost: committed and in no stream", &event.id);
    }
    for pending in &tables.pending {
        let why = pending.last_error.as_deref().unwrap_or("no error");
        found.add("still pending", &format!("seq {}, {} ({why})", pending.seq, pending.state));
    }
}

/// Each event has one confirmation, which points at the message that is this event; the anchor is the last of them.
fn evidence(tables: &Tables, streams: &[Stream], found: &mut Found) {
    let by_seq: HashMap<i64, &Event> = tables.events.iter().map(|event| (event.seq, event)).collect();
    let stored: HashMap<(i32, u64), (&Message, i64)> = streams
        .iter()
        .flat_map(|stream| stream.messages.iter().map(|m| ((stream.partition, m.seq), (m, stream.incarnation))))
        .collect();
    let mut times: HashMap<i64, usize> = HashMap::new();
    let mut last: BTreeMap<i32, (i64, i64)> = BTreeMap::new();
    for confirmation in &tables.confirmations {
        *times.entry(confirmation.seq).or_default() += 1;
        let Some(event) = by_seq.get(&confirmation.seq) else {
            found.add("evidence of no event", &confirmation.to_string());
            continue;
        };
        let place = u64::try_from(confirmation.stream_seq).unwrap_or(0);
        let true_ = confirmation.partition == event.partition
            && stored.get(&(confirmation.partition, place)).is_some_and(|(message, incarnation)| {
                message.header("ce-id") == Some(event.id.as_str()) && *incarnation == confirmation.incarnation
            });
        if !true_ {
            found.add("evidence is not true", &format!("{} is not there: {confirmation}", event.id));
        }
        let newest = last.entry(confirmation.partition).or_insert((0, 0));
        *newest = (*newest).max((confirmation.stream_seq, confirmation.seq));
    }
    for event in &tables.events {
        match times.get(&event.seq).copied().unwrap_or(0) {
            0 => found.add("never confirmed", &event.id),
            1 => {}
            _ => found.add("confirmed more than once", &event.id),
        }
    }
    for anchor in &tables.anchors {
        let newest = last.get(&anchor.partition);
        let wanted = newest.map(|(stream_seq, _)| *stream_seq);
        let id = newest.and_then(|(_, seq)| by_seq.get(seq)).map(|event| event.id.as_str());
        if anchor.stream_seq != wanted || id.is_some_and(|id| !anchor.ids.iter().any(|other| other == id)) {
            found.add("an anchor is not the last confirmation", &format!("{anchor:?}, wanted {wanted:?} {id:?}"));
        }
    }
}

/// An epoch has one owner and never comes again, and nobody confirms under one that is over.
fn owners(tables: &Tables, found: &mut Found) {
    let mut epochs: HashMap<i32, (i64, Option<&str>)> = HashMap::new();
    for change in &tables.owners {
        let (epoch, owner) = epochs.entry(change.partition).or_insert((0, None));
        if change.epoch < *epoch {
            found.add("an epoch goes back", &format!("{change:?} after {epoch}"));
        }
        if change.epoch > *epoch {
            (*epoch, *owner) = (change.epoch, None);
        }
        match (&change.owner, *owner) {
            (Some(new), Some(old)) if new != old => {
                found.add("an epoch has two owners", &format!("{change:?} after {old}"));
            }
            (Some(new), _) => *owner = Some(new),
            (None, _) => {}
        }
    }
    for confirmation in &tables.confirmations {
        let later = tables.owners.iter().find(|change| {
            change.partition == confirmation.partition
                && change.epoch > confirmation.epoch
                && change.at < confirmation.at
        });
        if let Some(later) = later {
            let late = (confirmation.at - later.at) as f64 / 1_000.0;
            let what = format!("{confirmation}, {late} ms after epoch {} had begun", later.epoch);
            found.add("confirmed under an epoch that was over", &what);
        }
    }
}

/// Violations by kind, in the order in which they were found.
#[derive(Debug, Default)]
struct Found(Vec<(&'static str, Vec<String>, usize)>);

impl Found {
    fn add(&mut self, kind: &'static str, what: &str) {
        let place = self.0.iter().position(|(there, _, _)| *there == kind).unwrap_or_else(|| {
            self.0.push((kind, Vec::new(), 0));
            self.0.len() - 1
        });
        let (_, some, count) = &mut self.0[place];
        *count += 1;
        if some.len() < SHOWN {
            some.push(what.to_owned());
        }
    }

    fn sentences(self) -> Vec<String> {
        self.0.into_iter().map(|(kind, some, count)| format!("{kind} ({count}): {}", some.join("; "))).collect()
    }
}

const SHOWN: usize = 3;
