//! Names that become tokens of a subject: which are allowed, and how they are escaped.
//!
//! A dot separates the tokens of a NATS subject, so a name that has dots of its own is escaped, reversibly: `.` becomes
//! `_`, and every byte outside `A-Z a-z 0-9 -` becomes `=` with two hexadecimal digits. A name with an empty segment
//! (`a..b`, `.a`) is refused: the server answers for such a subject as if the stream were missing. That keeps the
//! escaped names that begin with `_` for the framework.

use std::fmt::Write;

/// The longest escaped token, in bytes.
pub const MAX_TOKEN_BYTES: usize = 160;

/// The longest event id, aggregate id, consumer or header name, in bytes.
pub const MAX_NAME_BYTES: usize = 256;

/// The token that stands where an event has no aggregate type.
pub const NO_AGGREGATE: &str = "_";

/// What is wrong with a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// It is empty.
    #[error("is empty")]
    Empty,
    /// It has white space in it, which would end the subject on the wire.
    #[error("contains white space")]
    Space,
    /// It has a control character in it.
    #[error("contains a control character")]
    Control,
    /// It has `*` or `>` in it, which subscribers read as wildcards.
    #[error("contains a wildcard (`*` or `>`)")]
    Wildcard,
    /// Two dots follow each other, or one stands at an end.
    #[error("has an empty segment (a dot at an end, or two in a row)")]
    EmptySegment,
    /// It is longer than a subject may carry.
    #[error("is longer than {MAX_TOKEN_BYTES} bytes after escaping")]
    TokenTooLong,
    /// It is longer than the tables and headers carry.
    #[error("is longer than {MAX_NAME_BYTES} bytes")]
    NameTooLong,
}

/// Checks a name that is stored and sent in a header: an event id or an aggregate id.
pub fn check_name(name: &str) -> Result<(), Unfit> {
    if name.is_empty() {
        return Err(Unfit::Empty);
    }
    if name.len() > MAX_NAME_BYTES {
        return Err(Unfit::NameTooLong);
    }
    for c in name.chars() {
        match c {
            '*' | '>' => return Err(Unfit::Wildcard),
            c if c.is_control() => return Err(Unfit::Control),
            c if c.is_whitespace() => return Err(Unfit::Space),
            _ => {}
        }
    }
    Ok(())
}

/// Checks a name that becomes a token: an event type, an aggregate type, a consumer, a source.
pub fn check_token(name: &str) -> Result<(), Unfit> {
    // Control characters such as a tab are white space too; the more telling answer comes first.
    check_name(name)?;
    if name.split('.').any(str::is_empty) {
        return Err(Unfit::EmptySegment);
    }
    if escape(name).len() > MAX_TOKEN_BYTES {
        return Err(Unfit::TokenTooLong);
    }
    Ok(())
}

/// Escapes a name into one token. Different names give different tokens.
pub fn escape(name: &str) -> String {
    let mut token = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'.' => token.push('_'),
            b'-' | b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' => token.push(byte as char),
            other => {
                let _ = write!(token, "={other:02X}");
            }
        }
    }
    token
}

/// The name that was escaped into this token; `None` if it is not one that [`escape`] makes.
pub fn unescape(token: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(token.len());
    let mut rest = token.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'_' => b'.',
            b'=' => {
                let digits = [rest.next()?, rest.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            other => other,
        });
    }
    let name = String::from_utf8(bytes).ok()?;
    (escape(&name) == token).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn escaping_is_reversible(name in "\\PC{1,40}") {
            prop_assert_eq!(unescape(&escape(&name)), Some(name));
        }

        #[test]
        fn a_token_is_always_one_plain_token(name in "\\PC{1,40}") {
            let token = escape(&name);
            prop_assert!(!token.contains(['.', '*', '>', ' ', '/', '\\']));
            prop_assert!(token.is_ascii());
        }
    }

    #[test]
    fn what_breaks_a_subject_is_refused() {
        assert_eq!(check_token(""), Err(Unfit::Empty));
        assert_eq!(check_token("a b"), Err(Unfit::Space));
        assert_eq!(check_token("a\tb"), Err(Unfit::Control));
        assert_eq!(check_token("a\r\nPUB evil"), Err(Unfit::Control));
        assert_eq!(check_token("a.*"), Err(Unfit::Wildcard));
        assert_eq!(check_token(">"), Err(Unfit::Wildcard));
        assert_eq!(check_token("a..b"), Err(Unfit::EmptySegment));
        assert_eq!(check_token(".a"), Err(Unfit::EmptySegment));
        assert_eq!(check_token(&"é".repeat(60)), Err(Unfit::TokenTooLong));
        assert_eq!(check_name(&"x".repeat(257)), Err(Unfit::NameTooLong));
        assert_eq!(check_token("exports.completed"), Ok(()));
        assert_eq!(check_name("a.b/c..d/ü"), Ok(()));
    }
}
