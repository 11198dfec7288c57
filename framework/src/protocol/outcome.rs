//! What a broker's answer to a publish means, by code, never by text.

/// The outcome of one publish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The broker has it.
    Stored(Stored),
    /// It is neither known to be stored nor known not to be: the same id goes again.
    Unconfirmed(Unclear),
    /// The broker did not take it, for a reason that has nothing to do with the event. Nothing is stored.
    Unavailable(Outage),
    /// The broker will never take this event as it is.
    Refused(Refusal),
    /// The stream stands elsewhere than expected. Nothing is stored.
    OutOfStep,
    /// A batch was turned away as a batch and nothing of it is stored: its messages go one at a time, and each is answered
    /// for itself.
    Abandoned,
}

/// Why the broker took nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outage {
    /// No stream listens to this subject: the stream is gone, or the subject cannot be routed to it.
    Absent,
    /// The stream, the account or the server has no room.
    Full,
    /// Anything else: JetStream is off, the stream is offline, or the connection is gone.
    Down,
}

/// Where the broker stored an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Stored {
    /// The sequence in the stream.
    pub stream_seq: u64,
    /// The stream had it already, from an earlier try.
    pub duplicate: bool,
}

/// Why an outcome is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Unclear {
    /// No answer in time.
    TimedOut,
    /// The connection went away.
    ConnectionLost,
    /// An answer with a code that is not in the table.
    Code(u64),
    /// A duplicate answer, and at its sequence stands something else.
    NotOurs,
    /// The answer names another place than the only one at which the message may be stored.
    Elsewhere,
}

/// Why an event will never be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// Larger than the server or the stream takes.
    TooLarge,
    /// A subject that cannot be published to.
    Subject,
    /// A header that cannot be sent.
    Header,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Refusal::TooLarge => "larger than the broker takes: store the data elsewhere and append a reference, or raise max_payload and the stream's max_msg_size",
            Refusal::Subject => "its type or aggregate type makes no valid subject: see the field names in `tidings.event`",
            Refusal::Header => "a header that the broker cannot carry, or that is reserved: see `headers` in `tidings.event`",
        })
    }
}

impl std::fmt::Display for Unclear {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Unclear::TimedOut => f.write_str("no acknowledgement in time"),
            Unclear::ConnectionLost => f.write_str("the connection to the broker was lost"),
            Unclear::Code(code) => write!(f, "the broker answered with error code {code}"),
            Unclear::NotOurs => f.write_str("the broker called it a duplicate, but another message stands there"),
            Unclear::Elsewhere => f.write_str("the broker names another place than the one it was told"),
        }
    }
}

/// The outcome that an error answer stands for: `code` is JetStream's, `status` the HTTP-like one beside it.
pub fn of_error(code: u64, status: u16) -> Outcome {
    match code {
        // message size exceeds maximum allowed; header size exceeds maximum allowed
        10054 | 10097 => Outcome::Refused(Refusal::TooLarge),
        // wrong last sequence, in its two wordings
        10071 | 10164 => Outcome::OutOfStep,
        // of a batch: switched off, numbers that do not follow, messages missing, headers, id, size, commit, an id that is
        // stored already, too many open
        10174 | 10175 | 10176 | 10177 | 10179 | 10199 | 10200 | 10201 | 10210 => Outcome::Abandoned,
        // stream not found
        10059 => Outcome::Unavailable(Outage::Absent),
        // account, server, memory, storage out of room; the store takes no more
        10002 | 10023 | 10028 | 10047 | 10077 => Outcome::Unavailable(Outage::Full),
        // JetStream not enabled (for the account), stream offline, sealed
        10039 | 10076 | 10118 | 10194 | 10109 => Outcome::Unavailable(Outage::Down),
        _ if status == 503 => Outcome::Unavailable(Outage::Down),
        other => Outcome::Unconfirmed(Unclear::Code(other)),
    }
}

impl Unclear {
    /// The broker answered for this very event, so the attempt counts; silence says nothing about it.
    pub fn speaks_of_the_event(&self) -> bool {
        match self {
            Unclear::Code(_) | Unclear::NotOurs => true,
            Unclear::TimedOut | Unclear::ConnectionLost | Unclear::Elsewhere => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_answer_nobody_listed_is_neither_stored_nor_final(code: u64, status in 400u16..600) {
            let outcome = of_error(code, status);
            prop_assert!(!matches!(outcome, Outcome::Stored(_)));
            if !matches!(code, 10054 | 10097) {
                prop_assert!(!matches!(outcome, Outcome::Refused(_)));
            }
        }
    }

    #[test]
    fn a_large_message_is_refused_for_good() {
        assert_eq!(of_error(10054, 400), Outcome::Refused(Refusal::TooLarge));
        assert_eq!(of_error(10002, 400), Outcome::Unavailable(Outage::Full), "a full account refuses nothing");
    }

    #[test]
    fn what_is_full_what_is_gone_and_what_is_down_are_told_apart() {
        assert_eq!(of_error(10077, 503), Outcome::Unavailable(Outage::Full));
        assert_eq!(of_error(10059, 404), Outcome::Unavailable(Outage::Absent));
        assert_eq!(of_error(10118, 500), Outcome::Unavailable(Outage::Down));
        assert_eq!(of_error(20_000, 503), Outcome::Unavailable(Outage::Down));
    }

    #[test]
    fn a_batch_that_overlaps_or_has_a_hole_goes_singly() {
        assert_eq!(of_error(10201, 400), Outcome::Abandoned);
        assert_eq!(of_error(10176, 400), Outcome::Abandoned);
    }

    #[test]
    fn silence_counts_nothing() {
        assert!(!Unclear::TimedOut.speaks_of_the_event());
        assert!(!Unclear::ConnectionLost.speaks_of_the_event());
        assert!(Unclear::Code(10_999).speaks_of_the_event());
    }
}
