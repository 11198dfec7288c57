//! Which names can become a token of a subject: the rules of `tidings::protocol::token`, which this crate cannot depend
//! on. A test in `tests/` holds the two together.

use std::fmt;

/// The longest name, in bytes.
const MAX_NAME_BYTES: usize = 256;

/// The longest escaped token, in bytes.
const MAX_TOKEN_BYTES: usize = 160;

/// What is wrong with a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unfit {
    Empty,
    Space,
    Control,
    Wildcard,
    EmptySegment,
    TokenTooLong,
    NameTooLong,
}

/// Checks a name that becomes a token.
pub(crate) fn check_token(name: &str) -> Result<(), Unfit> {
    if name.is_empty() {
        return Err(Unfit::Empty);
    }
    if name.len() > MAX_NAME_BYTES {
        return Err(Unfit::NameTooLong);
    }
    if let Some(unfit) = name.chars().find_map(unfit) {
        return Err(unfit);
    }
    if name.split('.').any(str::is_empty) {
        return Err(Unfit::EmptySegment);
    }
    if escaped_len(name) > MAX_TOKEN_BYTES {
        return Err(Unfit::TokenTooLong);
    }
    Ok(())
}

/// A tab is both a control character and white space; the more telling answer comes first.
fn unfit(c: char) -> Option<Unfit> {
    match c {
        '*' | '>' => Some(Unfit::Wildcard),
        c if c.is_control() => Some(Unfit::Control),
        c if c.is_whitespace() => Some(Unfit::Space),
        _ => None,
    }
}

/// Letters, digits, `-` and `.` take one byte; every other byte takes `=` and two digits.
fn escaped_len(name: &str) -> usize {
    name.bytes().map(|b| if b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.') { 1 } else { 3 }).sum()
}

/// The problem and its remedy.
impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unfit::Empty => f.write_str("is empty: give it a name of letters, digits, `-` and dots"),
            Unfit::Space => f.write_str("contains white space: separate words with `-` or a dot"),
            Unfit::Control => f.write_str("contains a control character: use letters, digits, `-` and dots"),
            Unfit::Wildcard => {
                f.write_str("contains a wildcard (`*` or `>`): name exactly one, in letters, digits, `-` and dots")
            }
            Unfit::EmptySegment => {
                f.write_str("has an empty segment: remove the dot at its end, or one of two in a row")
            }
            Unfit::TokenTooLong => {
                write!(
                    f,
                    "is longer than {MAX_TOKEN_BYTES} bytes after escaping: shorten it (characters other than letters, digits, `-` and dots count threefold)"
                )
            }
            Unfit::NameTooLong => write!(f, "is longer than {MAX_NAME_BYTES} bytes: shorten it"),
        }
    }
}
