//! What a relay process handed to the broker and what it was answered: a line each, written before anything follows
//! from it, so that the process may die at any moment.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use tidings::broker::Outcome;

/// Writes the journal of one process.
#[derive(Debug)]
pub struct Writer(File);

impl Writer {
    /// Begins a journal.
    ///
    /// # Errors
    /// If the file cannot be made, or is there already: each process has its own.
    pub fn create(path: &Path) -> io::Result<Writer> {
        OpenOptions::new().append(true).create_new(true).open(path).map(Writer)
    }

    pub(crate) fn sent(&self, partition: i32, id: &str) {
        self.line(&format!("sent {partition} {id}\n"));
    }

    pub(crate) fn answered(&self, partition: i32, id: &str, outcome: &Outcome) {
        match outcome {
            Outcome::Stored(stored) => {
                let what = if stored.duplicate { "again" } else { "stored" };
                self.line(&format!("{what} {partition} {id} {}\n", stored.stream_seq));
            }
            Outcome::Unconfirmed(_)
            | Outcome::Unavailable(_)
            | Outcome::Refused(_)
            | Outcome::Abandoned
            | Outcome::OutOfStep => {
                self.line(&format!("unclear {partition} {id}\n"));
            }
        }
    }

    /// One write a line; the kernel has it when the call returns, whatever becomes of the process. A relay that cannot
    /// write its journal would make the account wrong, so it ends.
    fn line(&self, line: &str) {
        if let Err(error) = (&self.0).write_all(line.as_bytes()) {
            eprintln!("the journal cannot be written: {error}");
            std::process::exit(1);
        }
    }
}

/// A line of a journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// Handed to the broker.
    Sent {
        /// By which partition's relay.
        partition: i32,
        /// Which event.
        id: String,
    },
    /// The broker has it.
    Stored {
        /// Which event.
        id: String,
        /// The sequence in its partition's stream.
        stream_seq: u64,
        /// The broker had it before, and stored nothing.
        duplicate: bool,
    },
    /// Any other answer.
    Unclear {
        /// Which event.
        id: String,
    },
}

impl Entry {
    pub(crate) fn is_sent(&self) -> bool {
        matches!(self, Entry::Sent { .. })
    }

    /// The event it is about.
    pub fn id(&self) -> &str {
        match self {
            Entry::Sent { id, .. } | Entry::Stored { id, .. } | Entry::Unclear { id } => id,
        }
    }
}

/// The last event whose acknowledgement reached the process.
pub fn last_stored(journal: &[Entry]) -> Option<&str> {
    journal.iter().rev().find(|entry| matches!(entry, Entry::Stored { .. })).map(Entry::id)
}

/// What the process handed over of one partition.
pub fn sent_of(journal: &[Entry], partition: i32) -> impl Iterator<Item = &str> {
    let sent = move |entry: &&Entry| matches!(entry, Entry::Sent { partition: of, .. } if *of == partition);
    journal.iter().filter(sent).map(Entry::id)
}

/// Reads the journal of a process that has ended.
///
/// # Errors
/// If it cannot be read, or has a line that is not one of ours.
pub fn read(path: &Path) -> io::Result<Vec<Entry>> {
    let text = std::fs::read_to_string(path)?;
    let entries =
        text.lines().map(|line| entry(line).ok_or_else(|| io::Error::other(format!("a journal says {line:?}"))));
    entries.collect()
}

fn entry(line: &str) -> Option<Entry> {
    let parts: Vec<&str> = line.split(' ').collect();
    let duplicate = parts.first() == Some(&"again");
    match parts.as_slice() {
        ["sent", partition, id] => Some(Entry::Sent { partition: partition.parse().ok()?, id: (*id).to_owned() }),
        ["stored" | "again", _, id, seq] => {
            Some(Entry::Stored { id: (*id).to_owned(), stream_seq: seq.parse().ok()?, duplicate })
        }
        ["unclear", _, id] => Some(Entry::Unclear { id: (*id).to_owned() }),
        _ => None,
    }
}
