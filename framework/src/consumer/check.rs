//! What `#[derive(Consumer)]` has the compiler check about the listed types: each function panics in a constant, so the
//! panic's text becomes a compile error at the type's place in the list.
//!
//! A name that is empty is the placeholder of a derive that has already complained; nothing is said about it twice.

use super::Accepts;

/// The type at `listed` is an event, and no earlier one has its type. `names` are the listed types' own.
#[track_caller]
pub const fn event(accepts: &[Accepts], names: &[&str], listed: usize) {
    if accepts[listed].recipient.is_some() {
        panic_with(&["`", names[listed], "` is a command: list it in `commands(…)`"]);
    }
    distinct(accepts, names, listed);
}

/// The type at `listed` is a command to this consumer, and no earlier one has its type.
#[track_caller]
pub const fn command(accepts: &[Accepts], names: &[&str], listed: usize, consumer: &str) {
    let name = names[listed];
    match accepts[listed].recipient {
        None => panic_with(&["`", name, "` is an event: list it in `events(…)`"]),
        Some(to) if to.is_empty() || same(to, consumer) => {}
        Some(to) => panic_with(&["`", name, "` is a command to \"", to, "\", not to \"", consumer, "\""]),
    }
    distinct(accepts, names, listed);
}

/// A delivery is dispatched by its type, so no two listed types share one.
#[track_caller]
const fn distinct(accepts: &[Accepts], names: &[&str], listed: usize) {
    let r#type = accepts[listed].r#type;
    let mut earlier = 0;
    while earlier < listed && !r#type.is_empty() {
        if same(accepts[earlier].r#type, r#type) {
            let (one, other) = (names[listed], names[earlier]);
            panic_with(&["`", one, "` and `", other, "` both have the type \"", r#type, "\": list one of them"]);
        }
        earlier += 1;
    }
}

/// `==` is not yet for constants.
const fn same(a: &str, b: &str) -> bool {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let mut at = 0;
    while at < a.len() && at < b.len() && a[at] == b[at] {
        at += 1;
    }
    at == a.len() && at == b.len()
}

/// Panics with the parts put together; formatting is not yet for constants.
#[track_caller]
const fn panic_with(parts: &[&str]) -> ! {
    let mut text = [0; MAX_TEXT_BYTES];
    let mut len = 0;
    let mut part = 0;
    while part < parts.len() {
        let bytes = parts[part].as_bytes();
        // A part that does not fit is left out whole, so that the text stays UTF-8.
        if len + bytes.len() <= MAX_TEXT_BYTES {
            text.split_at_mut(len).1.split_at_mut(bytes.len()).0.copy_from_slice(bytes);
            len += bytes.len();
        }
        part += 1;
    }
    match str::from_utf8(text.split_at(len).0) {
        Ok(text) => panic!("{}", text),
        Err(_) => panic!("a listed type does not belong in this list"),
    }
}

const MAX_TEXT_BYTES: usize = 1_024;

#[cfg(test)]
mod tests {
    use super::*;

    const EVENT: Accepts = Accepts { r#type: "a", schema_version: 1, recipient: None, aggregate: None };
    const COMMAND: Accepts = Accepts { r#type: "b", recipient: Some("worker"), ..EVENT };

    #[test]
    fn what_belongs_is_accepted() {
        event(&[EVENT, COMMAND], NAMES, 0);
        command(&[EVENT, COMMAND], NAMES, 1, "worker");
    }

    #[test]
    fn a_placeholder_is_passed_over() {
        let unnamed = Accepts { r#type: "", recipient: Some(""), ..COMMAND };
        command(&[unnamed, unnamed], NAMES, 1, "worker");
    }

    #[test]
    #[should_panic(expected = "`B` is a command to \"worker\", not to \"work\"")]
    fn a_command_to_another_is_refused() {
        command(&[EVENT, COMMAND], NAMES, 1, "work");
    }

    #[test]
    #[should_panic(expected = "`A` is an event: list it in `events(…)`")]
    fn an_event_is_no_command() {
        command(&[EVENT], NAMES, 0, "worker");
    }

    #[test]
    #[should_panic(expected = "`B` is a command: list it in `commands(…)`")]
    fn a_command_is_no_event() {
        event(&[EVENT, COMMAND], NAMES, 1);
    }

    #[test]
    #[should_panic(expected = "`Z` and `A` both have the type \"a\": list one of them")]
    fn two_of_one_type_are_refused() {
        event(&[EVENT, COMMAND, EVENT], NAMES, 2);
    }

    const NAMES: &[&str] = &["A", "B", "Z"];
}
