//! Whether a stream still holds what was confirmed, judged by the last confirmation.

/// The last confirmation of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Anchor {
    /// The stream's creation time.
    pub incarnation: i64,
    /// The sequence.
    pub stream_seq: u64,
    /// The hash of the id that was stored there, where it is known.
    pub id_hash: Option<i64>,
}

impl Anchor {
    /// Whether its sequence is one that the stream has, or had.
    pub fn is_within(&self, position: &Position) -> bool {
        self.incarnation == position.incarnation && (1..=position.last_seq).contains(&self.stream_seq)
    }
}

/// Where a stream stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// Its creation time, in nanoseconds since 1970: another one is another stream.
    pub incarnation: i64,
    /// The sequence of its first message; one more than the last where it has none.
    pub first_seq: u64,
    /// The sequence of its last message; 0 where it never had one.
    pub last_seq: u64,
}

/// What the comparison says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Everything confirmed is there, or gone by age: read what follows after `from`.
    Same {
        /// The last sequence that is known.
        from: u64,
    },
    /// The broker lost what it had confirmed.
    Different,
}

/// Compares; `there` is the hash of the id that stands at the anchor's sequence, `None` if nothing stands there any more.
pub fn compare(anchor: Option<Anchor>, position: &Position, there: Option<i64>) -> Standing {
    let Some(anchor) = anchor else { return Standing::Same { from: 0 } };
    let same = anchor.incarnation == position.incarnation
        && anchor.stream_seq <= position.last_seq
        && match (anchor.id_hash, there) {
            (Some(confirmed), Some(there)) => confirmed == there,
            // Gone by age, by limits or by an operator's hand; or nothing was confirmed since the last comparison.
            (_, None) | (None, _) => true,
        };
    if same { Standing::Same { from: anchor.stream_seq } } else { Standing::Different }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STANDS: Position = Position { incarnation: 7, first_seq: 3, last_seq: 9 };

    fn anchor(incarnation: i64, stream_seq: u64) -> Option<Anchor> {
        Some(Anchor { incarnation, stream_seq, id_hash: Some(1) })
    }

    #[test]
    fn a_stream_that_holds_the_anchor_is_read_from_there() {
        assert_eq!(compare(anchor(7, 9), &STANDS, Some(1)), Standing::Same { from: 9 });
        assert_eq!(compare(anchor(7, 5), &STANDS, Some(1)), Standing::Same { from: 5 });
    }

    #[test]
    fn what_expired_was_not_lost() {
        assert_eq!(compare(anchor(7, 2), &STANDS, None), Standing::Same { from: 2 });
        let empty = Position { first_seq: 10, ..STANDS };
        assert_eq!(compare(anchor(7, 9), &empty, None), Standing::Same { from: 9 });
    }

    #[test]
    fn another_stream_a_shorter_one_and_another_message_are_losses() {
        assert_eq!(compare(anchor(6, 5), &STANDS, Some(1)), Standing::Different);
        assert_eq!(compare(anchor(7, 10), &STANDS, None), Standing::Different);
        assert_eq!(compare(anchor(7, 5), &STANDS, Some(2)), Standing::Different);
    }

    #[test]
    fn where_nothing_was_confirmed_the_whole_stream_is_read() {
        assert_eq!(compare(None, &STANDS, None), Standing::Same { from: 0 });
    }
}
