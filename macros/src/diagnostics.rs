//! All the mistakes of one item, each at its own place and with its remedy.

use std::fmt::Display;

use proc_macro2::TokenStream;
use quote::{ToTokens, quote};
use syn::Error;

/// Collects mistakes, so that one compilation shows them all.
#[derive(Default)]
pub(crate) struct Diagnostics {
    mistakes: Vec<Error>,
}

impl Diagnostics {
    /// A mistake in these tokens.
    pub(crate) fn report(&mut self, at: impl ToTokens, message: impl Display) {
        self.mistakes.push(Error::new_spanned(at, message));
    }

    /// A mistake that already knows its place.
    pub(crate) fn push(&mut self, mistake: Error) {
        self.mistakes.push(mistake);
    }

    /// The expansion; or, after a mistake, the mistakes and the fallback.
    pub(crate) fn finish(
        self,
        expansion: impl FnOnce() -> TokenStream,
        fallback: impl FnOnce() -> TokenStream,
    ) -> TokenStream {
        if self.mistakes.is_empty() {
            return expansion();
        }
        let mistakes = self.mistakes.iter().map(Error::to_compile_error);
        let fallback = fallback();
        quote!(#(#mistakes)* #fallback)
    }
}

/// The word that was probably meant.
pub(crate) fn nearest<'w>(written: &str, words: impl IntoIterator<Item = &'w str>) -> Option<&'w str> {
    words
        .into_iter()
        .map(|word| (strsim::jaro_winkler(written, word), word))
        .filter(|(likeness, _)| *likeness >= ALIKE)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, word)| word)
}

/// `` `a`, `b` and `c` ``.
pub(crate) fn list<'w>(words: impl IntoIterator<Item = &'w str>) -> String {
    let words: Vec<String> = words.into_iter().map(|word| format!("`{word}`")).collect();
    match words.as_slice() {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

/// The name of a type as words in lower case: `ExportCompleted` with `.` is `export.completed`.
pub(crate) fn spelled(type_name: &str, between: char) -> String {
    let mut words = String::new();
    for c in type_name.trim_start_matches("r#").chars() {
        if c.is_uppercase() && !words.is_empty() {
            words.push(between);
        }
        words.extend(c.to_lowercase());
    }
    words
}

/// From here on, two words are taken for one with a slip of the pen.
const ALIKE: f64 = 0.8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_pen_is_recognised() {
        let options = ["name", "source", "events", "commands", "retry", "timeout", "concurrency", "isolation"];
        assert_eq!(nearest("tiemout", options), Some("timeout"));
        assert_eq!(nearest("event", options), Some("events"));
        assert_eq!(nearest("retries", options), Some("retry"));
        assert_eq!(nearest("order", ["order_id", "total"]), Some("order_id"));
        assert_eq!(nearest("durable", options), None);
        assert_eq!(nearest("batch", options), None);
    }

    #[test]
    fn a_type_suggests_its_name() {
        assert_eq!(spelled("ExportCompleted", '.'), "export.completed");
        assert_eq!(spelled("ExportWorker", '-'), "export-worker");
    }

    #[test]
    fn words_are_listed() {
        assert_eq!(list(["a"]), "`a`");
        assert_eq!(list(["a", "b", "c"]), "`a`, `b` and `c`");
    }
}
