//! The table at the end: what was counted, where, and whether it adds up.

use std::collections::{HashMap, HashSet};
use std::fmt;

use crate::journal::Entry;

/// A table of numbers, some of which must be something.
#[derive(Debug, Default)]
pub struct Account {
    lines: Vec<Line>,
    off: Vec<String>,
}

#[derive(Debug)]
struct Line {
    what: &'static str,
    number: u64,
    counted: String,
}

impl Account {
    /// A number that must be this one.
    pub fn exactly(&mut self, should_be: u64, what: &'static str, number: u64, counted: impl Into<String>) {
        if number != should_be {
            self.off.push(format!("{what}: {number}, and should be {should_be}"));
        }
        self.note(what, number, counted);
    }

    /// A number that must be one of these.
    pub fn between(&mut self, least: u64, most: u64, what: &'static str, number: u64, counted: impl Into<String>) {
        if !(least..=most).contains(&number) {
            self.off.push(format!("{what}: {number}, and should be from {least} to {most}"));
        }
        self.note(what, number, counted);
    }

    /// A number that may be any.
    pub fn note(&mut self, what: &'static str, number: u64, counted: impl Into<String>) {
        self.lines.push(Line { what, number, counted: counted.into() });
    }

    /// What the relays and the broker say of the events in `appended`. Those in `unrecorded` were stored, and the relay
    /// died before it could record that, when the journals were so long: the next one finds each of them in the stream, and
    /// sends none of them again.
    pub fn road(
        &mut self,
        appended: &HashSet<String>,
        unrecorded: &HashMap<String, usize>,
        journal: &[Entry],
        copies: &HashMap<String, u64>,
    ) {
        let road = Road::of(appended, journal, copies);
        self.note("publishes", road.publishes, "messages handed to the broker, by the relays' own journals");
        self.note(
            "never answered",
            road.unanswered,
            "of these; the answer died with the relay, so the next one looked into the stream",
        );
        // What was acknowledged once is there, and what else is there was among the unanswered.
        self.between(
            road.acknowledged,
            road.acknowledged + road.unanswered,
            "messages in the streams",
            road.stored,
            "read back from the broker, by their ids",
        );
        let ours: Vec<_> = unrecorded.iter().filter(|(id, _)| appended.contains(*id)).collect();
        let again = |id: &str, died: usize| journal[died..].iter().any(|entry| entry.is_sent() && entry.id() == id);
        let found = ours.iter().filter(|(id, died)| !again(id, **died) && copies.get(*id) == Some(&1)).count() as u64;
        self.exactly(
            ours.len() as u64,
            "found in the streams",
            found,
            "of what the relay was killed over: stored, not known to be, and not sent again",
        );
        self.exactly(0, "second copies", road.extra, "in the streams, for the inboxes to absorb");
    }

    /// Whether it adds up; the errors say which numbers do not.
    ///
    /// # Errors
    /// A sentence for people.
    pub fn verdict(&self) -> Result<(), String> {
        if self.off.is_empty() { Ok(()) } else { Err(format!("it does not add up: {}", self.off.join("; "))) }
    }
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.lines.iter().map(|line| line.what.len()).max().unwrap_or(0);
        self.lines
            .iter()
            .try_for_each(|line| writeln!(f, "  {:width$}  {:>6}   {}", line.what, line.number, line.counted))
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Road {
    publishes: u64,
    acknowledged: u64,
    known: u64,
    unanswered: u64,
    stored: u64,
    extra: u64,
}

impl Road {
    fn of(appended: &HashSet<String>, journal: &[Entry], copies: &HashMap<String, u64>) -> Road {
        let ours: Vec<&Entry> = journal.iter().filter(|entry| appended.contains(entry.id())).collect();
        let count = |is: fn(&Entry) -> bool| ours.iter().filter(|entry| is(entry)).count() as u64;
        let publishes = count(|entry| matches!(entry, Entry::Sent { .. }));
        let acknowledged = count(|entry| matches!(entry, Entry::Stored { duplicate: false, .. }));
        let known = count(|entry| matches!(entry, Entry::Stored { duplicate: true, .. }));
        let stored = copies.values().sum();
        // An answer that is not an acknowledgement leaves it as open as none.
        let unanswered = publishes.saturating_sub(acknowledged + known);
        Road { publishes, acknowledged, known, unanswered, stored, extra: stored - copies.len() as u64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sent_twice_and_stored_once_is_a_duplicate() {
        let appended = HashSet::from(["a".to_owned(), "b".to_owned()]);
        let sent = |id: &str| Entry::Sent { partition: 0, id: id.to_owned() };
        let stored = |id: &str, duplicate| Entry::Stored { id: id.to_owned(), stream_seq: 1, duplicate };
        let journal = [
            sent("a"),
            stored("a", false),
            sent("b"),
            sent("a"),
            stored("a", true),
            sent("b"),
            stored("b", true),
            sent("c"),
        ];
        let copies = HashMap::from([("a".to_owned(), 1), ("b".to_owned(), 1)]);
        let road = Road::of(&appended, &journal, &copies);
        assert_eq!(road, Road { publishes: 4, acknowledged: 1, known: 2, unanswered: 1, stored: 2, extra: 0 });
    }

    #[test]
    fn a_number_that_is_off_is_named() {
        let mut account = Account::default();
        account.exactly(0, "lost", 1, "");
        assert_eq!(account.verdict().unwrap_err(), "it does not add up: lost: 1, and should be 0");
    }
}
