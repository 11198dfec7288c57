//! The attribute as it is written: a list of options, whatever they mean.
//!
//! Options are told apart before any is understood, so that a mistake in one does not hide the next.

use proc_macro2::{Delimiter, Group, Ident, TokenStream, TokenTree};
use quote::ToTokens;
use syn::{Attribute, Meta, ext::IdentExt};

use crate::diagnostics::{Diagnostics, list, nearest};

/// The options an attribute, or an option that is itself a list, may have.
pub(crate) struct Vocabulary {
    /// As messages call it: `#[event(…)]`, `retry(…)`.
    pub(crate) of: &'static str,
    /// The name in front of the parentheses.
    pub(crate) name: &'static str,
    /// Each option: its name, and how it is written.
    pub(crate) options: &'static [Known],
    /// Names that belong elsewhere, and where.
    pub(crate) elsewhere: &'static [(&'static str, &'static str)],
}

/// An option there is.
pub(crate) struct Known {
    /// Its name.
    pub(crate) name: &'static str,
    /// An example of it.
    pub(crate) write: &'static str,
}

/// An option that is given.
pub(crate) struct Given {
    /// Its name, where it is written.
    pub(crate) name: Ident,
    /// An example of it.
    pub(crate) write: &'static str,
    /// What follows the name.
    pub(crate) body: Body,
}

/// What follows an option's name.
pub(crate) enum Body {
    /// Nothing.
    Bare,
    /// `= …`
    Value(TokenStream),
    /// `(…)`
    List(Group),
}

/// An option that may be left out, and matters to another one.
pub(crate) enum Part<T> {
    /// It is not there.
    Absent,
    /// It is there, or meant, and wrong; that is reported.
    Mistaken,
    /// It is there.
    Given(T),
}

/// The options that are given and not yet taken.
pub(crate) struct Options {
    of: &'static str,
    /// Where to say that an option is missing; `None` if the attribute itself is.
    named_at: Option<TokenStream>,
    given: Vec<Given>,
    /// Options that a mistake may have meant; they are not missing too.
    meant: Vec<&'static str>,
}

impl Options {
    /// The options of all attributes of this name: several read as one.
    pub(crate) fn of_attributes(
        attributes: &[Attribute],
        vocabulary: &'static Vocabulary,
        diagnostics: &mut Diagnostics,
    ) -> Options {
        let mut options = Options { of: vocabulary.of, named_at: None, given: Vec::new(), meant: Vec::new() };
        for attribute in attributes.iter().filter(|a| a.path().is_ident(vocabulary.name)) {
            options.named_at.get_or_insert_with(|| attribute.path().to_token_stream());
            match &attribute.meta {
                Meta::Path(_) => {}
                Meta::List(options_list) => options.read(options_list.tokens.clone(), vocabulary, diagnostics),
                Meta::NameValue(value) => {
                    diagnostics.report(value, format!("write the options in parentheses: `{}`", vocabulary.of));
                    options.meant.extend(vocabulary.options.iter().map(|known| known.name));
                }
            }
        }
        options
    }

    /// The options in an option's parentheses.
    pub(crate) fn of_list(
        name: &Ident,
        list: &Group,
        vocabulary: &'static Vocabulary,
        diagnostics: &mut Diagnostics,
    ) -> Options {
        let named_at = Some(name.to_token_stream());
        let mut options = Options { of: vocabulary.of, named_at, given: Vec::new(), meant: Vec::new() };
        options.read(list.stream(), vocabulary, diagnostics);
        options
    }

    /// The option of this name, if it is given.
    pub(crate) fn take(&mut self, name: &str) -> Option<Given> {
        let at = self.given.iter().position(|given| given.name.unraw() == name)?;
        Some(self.given.remove(at))
    }

    /// The option of this name, as `read` understands it, or why it is not there.
    pub(crate) fn part<T>(&mut self, name: &str, read: impl FnOnce(Given) -> Option<T>) -> Part<T> {
        match self.take(name).map(read) {
            Some(Some(value)) => Part::Given(value),
            Some(None) => Part::Mistaken,
            None if self.meant.contains(&name) => Part::Mistaken,
            None => Part::Absent,
        }
    }

    /// The option of this name, which has to be given.
    pub(crate) fn require(&mut self, name: &str, example: &str, diagnostics: &mut Diagnostics) -> Option<Given> {
        let given = self.take(name);
        if given.is_none() {
            self.missing(&[name], example, diagnostics);
        }
        given
    }

    /// Says that one of these options has to be given, unless a mistake has been reported that may have meant it.
    pub(crate) fn missing(&self, names: &[&str], example: &str, diagnostics: &mut Diagnostics) {
        if let Some(at) = &self.named_at
            && !names.iter().any(|name| self.meant.contains(name))
        {
            let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
            let it = if names.len() == 1 { "it" } else { "one" };
            let (names, of) = (names.join(" or "), self.of);
            diagnostics.report(at, format!("missing {names}: add {it} to `{of}`, for example `{example}`"));
        }
    }

    /// Whether the attribute is there at all.
    pub(crate) fn present(&self) -> bool {
        self.named_at.is_some()
    }

    fn read(&mut self, tokens: TokenStream, vocabulary: &'static Vocabulary, diagnostics: &mut Diagnostics) {
        for option in split(tokens) {
            let Some((name, body)) = tell(option, vocabulary, diagnostics) else { continue };
            let word = name.unraw().to_string();
            if let Some((_, answer)) = vocabulary.elsewhere.iter().find(|(elsewhere, _)| *elsewhere == word) {
                diagnostics.report(&name, answer);
            } else if self.given.iter().any(|given| given.name.unraw() == word) {
                diagnostics.report(&name, format!("`{word}` is given twice: remove one"));
            } else if let Some(known) = vocabulary.options.iter().find(|known| known.name == word) {
                match body {
                    Some(body) => self.given.push(Given { name, write: known.write, body }),
                    None => self.meant.push(known.name),
                }
            } else {
                self.unknown(&name, vocabulary, diagnostics);
            }
        }
    }

    fn unknown(&mut self, name: &Ident, vocabulary: &'static Vocabulary, diagnostics: &mut Diagnostics) {
        let names = || vocabulary.options.iter().map(|known| known.name);
        let word = name.unraw().to_string();
        match nearest(&word, names()) {
            Some(meant) => {
                self.meant.push(meant);
                diagnostics.report(name, format!("unknown option `{word}`, did you mean `{meant}`?"));
            }
            None => {
                let (of, names) = (vocabulary.of, list(names()));
                diagnostics.report(name, format!("unknown option `{word}`: the options of `{of}` are {names}"));
            }
        }
    }
}

impl<T> Part<T> {
    /// The option, if it is there and right.
    pub(crate) fn given(&self) -> Option<&T> {
        match self {
            Part::Given(value) => Some(value),
            Part::Absent | Part::Mistaken => None,
        }
    }
}

/// The options between the commas; a comma at the end is allowed.
fn split(tokens: TokenStream) -> Vec<Vec<TokenTree>> {
    let mut options = vec![Vec::new()];
    for token in tokens {
        match (&token, options.last_mut()) {
            (TokenTree::Punct(punct), _) if punct.as_char() == ',' => options.push(Vec::new()),
            (_, Some(option)) => option.push(token),
            (_, None) => {}
        }
    }
    options.retain(|option| !option.is_empty());
    options
}

/// An option's name and what follows it; no body if that is reported as a mistake.
fn tell(
    option: Vec<TokenTree>,
    vocabulary: &'static Vocabulary,
    diagnostics: &mut Diagnostics,
) -> Option<(Ident, Option<Body>)> {
    let mut tokens = option.into_iter();
    let name = match tokens.next()? {
        TokenTree::Ident(name) => name,
        other => {
            let example = vocabulary.options.first().map_or("", |known| known.write);
            diagnostics.report(other, format!("expected an option such as `{example}`"));
            return None;
        }
    };
    let next = tokens.next();
    let rest: TokenStream = tokens.collect();
    let body = match next {
        None => Some(Body::Bare),
        Some(TokenTree::Punct(equals)) if equals.as_char() == '=' => match rest.is_empty() {
            false => Some(Body::Value(rest)),
            true => {
                diagnostics.report(equals, format!("`{name}` has no value: write one after the `=`"));
                None
            }
        },
        Some(TokenTree::Group(list)) if list.delimiter() == Delimiter::Parenthesis => match rest.into_iter().next() {
            None => Some(Body::List(list)),
            Some(after) => {
                diagnostics.report(&after, format!("missing `,` before `{after}`"));
                None
            }
        },
        Some(other) => {
            diagnostics.report(other, format!("expected `=`, `(…)` or `,` after `{name}`"));
            None
        }
    };
    Some((name, body))
}
