//! What an option's value may be: each kind of value is read in one place and has one message.

use std::time::Duration;

use proc_macro2::{Group, TokenStream};
use quote::{ToTokens, quote};
use syn::parse::{Parse, ParseStream, Parser};
use syn::{Lit, LitInt, LitStr, Member, Token, TypePath};

use crate::attr::{Body, Given};
use crate::diagnostics::{Diagnostics, list, nearest};
use crate::model::{Backoff, Isolation, Listed};

impl Given {
    /// A text in quotes.
    pub(crate) fn string(&self, diagnostics: &mut Diagnostics) -> Option<LitStr> {
        let expected = format!("expected a string in quotes, such as `{}`", self.write);
        self.value(&expected, diagnostics)
    }

    /// A whole number from 1 to `max`.
    pub(crate) fn number(&self, max: u32, diagnostics: &mut Diagnostics) -> Option<u32> {
        let expected = format!("expected a whole number from 1 to {max}, such as `{}`", self.write);
        let literal: LitInt = self.value(&expected, diagnostics)?;
        match literal.base10_parse() {
            Ok(0) => diagnostics.report(&literal, format!("`{}` must be at least 1", self.name)),
            Ok(number) if number <= max => return Some(number),
            Ok(_) | Err(_) => diagnostics.report(&literal, expected),
        }
        None
    }

    /// A duration above zero.
    pub(crate) fn duration(&self, diagnostics: &mut Diagnostics) -> Option<Duration> {
        let literal: LitStr = self.value(A_DURATION, diagnostics)?;
        match humantime::parse_duration(literal.value().trim()) {
            Ok(Duration::ZERO) => {
                diagnostics
                    .report(&literal, format!("`{}` must be longer than zero, such as `{}`", self.name, self.write));
            }
            Ok(duration) => return Some(duration),
            Err(_) => diagnostics.report(&literal, A_DURATION),
        }
        None
    }

    /// A range of durations above zero, the shorter one first.
    pub(crate) fn backoff(&self, diagnostics: &mut Diagnostics) -> Option<Backoff> {
        let literal: LitStr = self.value(A_RANGE, diagnostics)?;
        let text = literal.value();
        let ends = text
            .split_once("..")
            .map(|(min, max)| (humantime::parse_duration(min.trim()), humantime::parse_duration(max.trim())));
        match ends {
            Some((Ok(Duration::ZERO), Ok(_))) => {
                diagnostics.report(
                    &literal,
                    "a delay of zero tries again without a pause: begin with a longer one, such as \"200ms..5m\"",
                );
            }
            Some((Ok(min), Ok(max))) if min > max => {
                let (min, max) = (humantime::format_duration(min), humantime::format_duration(max));
                diagnostics.report(&literal, format!("the range begins above its end: write \"{max}..{min}\""));
            }
            Some((Ok(min), Ok(max))) => return Some(Backoff { min, max }),
            Some(_) | None => diagnostics.report(&literal, A_RANGE),
        }
        None
    }

    /// An isolation level, by its SQL name.
    pub(crate) fn isolation(&self, diagnostics: &mut Diagnostics) -> Option<Isolation> {
        let literal = self.string(diagnostics)?;
        let written = literal.value();
        let isolation = Isolation::ALL.iter().copied().find(|level| level.name() == written);
        if isolation.is_none() {
            let names = Isolation::ALL.map(Isolation::name);
            let answer = match nearest(&written.to_lowercase(), names) {
                Some(meant) => format!("unknown isolation level \"{written}\", did you mean \"{meant}\"?"),
                None => {
                    format!("unknown isolation level \"{written}\": the levels are {}", list(names).replace('`', "\""))
                }
            };
            diagnostics.report(&literal, answer);
        }
        isolation
    }

    /// A field, by name or number.
    pub(crate) fn member(&self, diagnostics: &mut Diagnostics) -> Option<Member> {
        if let Body::Value(value) = &self.body
            && let Ok(literal) = syn::parse2::<LitStr>(value.clone())
        {
            let field = literal.value();
            diagnostics.report(&literal, format!("expected a field, without quotes: write `key = {field}`"));
            return None;
        }
        self.value("expected one field of the struct, such as `key = job_id`", diagnostics)
    }

    /// Types between commas; each that is none is reported, and the others are read.
    pub(crate) fn types(&self, diagnostics: &mut Diagnostics) -> Vec<Listed> {
        let Some(list) = self.list(diagnostics) else { return Vec::new() };
        let read = |input: ParseStream<'_>| {
            let mut types = Vec::new();
            while !input.is_empty() {
                match element(input, self.write) {
                    Ok(path) => types.push(Listed { path }),
                    Err(mistake) => diagnostics.push(mistake),
                }
            }
            Ok(types)
        };
        Parser::parse2(read, list.stream()).unwrap_or_default()
    }

    /// What stands in the option's parentheses; something does.
    pub(crate) fn list(&self, diagnostics: &mut Diagnostics) -> Option<Group> {
        let (name, write) = (&self.name, self.write);
        match &self.body {
            Body::List(list) if list.stream().is_empty() => {
                diagnostics.report(list, format!("`{name}` lists nothing: write `{write}`, or remove `{name}()`"));
            }
            Body::List(list) => return Some(list.clone()),
            Body::Bare | Body::Value(_) => {
                diagnostics.report(name, format!("`{name}` takes a list: write `{write}`"));
            }
        }
        None
    }

    /// What stands after the option's `=`.
    fn value<T: Parse>(&self, expected: &str, diagnostics: &mut Diagnostics) -> Option<T> {
        let Body::Value(tokens) = &self.body else {
            diagnostics.report(&self.name, format!("`{}` takes a value: write `{}`", self.name, self.write));
            return None;
        };
        let read = |input: ParseStream<'_>| {
            let value = input.parse().map_err(|_| unexpected(tokens, expected))?;
            if input.is_empty() {
                return Ok(value);
            }
            // `type = "a" version = 2` lacks a comma; `key = job.id` is no field.
            let rest: TokenStream = input.parse()?;
            Err(match follows(&rest) {
                Some(next) => syn::Error::new_spanned(&rest, format!("missing `,` before `{next}`")),
                None => unexpected(tokens, expected),
            })
        };
        Parser::parse2(read, tokens.clone()).map_err(|mistake| diagnostics.push(mistake)).ok()
    }
}

/// One type of a list, and the comma after it. After a mistake, goes on behind the next comma.
fn element(input: ParseStream<'_>, example: &str) -> syn::Result<TypePath> {
    let begin = input.fork();
    if let Ok(path) = input.parse::<TypePath>() {
        if input.is_empty() || input.parse::<Token![,]>().is_ok() {
            return Ok(path);
        }
        let next: proc_macro2::TokenTree = input.fork().parse()?;
        skip(input)?;
        return Err(syn::Error::new_spanned(&next, format!("missing `,` before `{next}`")));
    }
    let first: proc_macro2::TokenTree = begin.parse()?;
    let text = literal_text(&first);
    skip(input)?;
    Err(syn::Error::new_spanned(
        first,
        match text {
            Some(text) => format!("expected a type, without quotes: write `{text}`"),
            None => format!("expected the name of a type, such as `{example}`"),
        },
    ))
}

fn skip(input: ParseStream<'_>) -> syn::Result<()> {
    while !input.is_empty() && input.parse::<Token![,]>().is_err() {
        input.parse::<proc_macro2::TokenTree>()?;
    }
    Ok(())
}

fn literal_text(token: &proc_macro2::TokenTree) -> Option<String> {
    match syn::parse2(token.to_token_stream()) {
        Ok(Lit::Str(text)) => Some(text.value()),
        Ok(_) | Err(_) => None,
    }
}

/// The option that seems to follow without a comma.
fn follows(rest: &TokenStream) -> Option<proc_macro2::Ident> {
    let mut tokens = rest.clone().into_iter();
    match (tokens.next()?, tokens.next()) {
        (proc_macro2::TokenTree::Ident(name), None | Some(proc_macro2::TokenTree::Group(_))) => Some(name),
        (proc_macro2::TokenTree::Ident(name), Some(proc_macro2::TokenTree::Punct(p))) if p.as_char() == '=' => {
            Some(name)
        }
        _ => None,
    }
}

fn unexpected(tokens: &TokenStream, expected: &str) -> syn::Error {
    syn::Error::new_spanned(quote!(#tokens), expected)
}

const A_DURATION: &str = "expected a duration such as \"500ms\" or \"5m\"";
const A_RANGE: &str = "expected a range of durations such as \"200ms..5m\"";
