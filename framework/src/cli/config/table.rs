//! A table of the configuration, read key by key. Every mistake is collected with its line, so that one run shows all.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fmt::Display;
use std::ops::{Range, RangeInclusive};
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// What is wrong with a file, in the order of its lines.
pub(super) struct Mistakes<'f> {
    name: &'f str,
    text: &'f str,
    found: RefCell<BTreeSet<(usize, String)>>,
}

impl<'f> Mistakes<'f> {
    pub(super) fn of(name: &'f str, text: &'f str) -> Self {
        Mistakes { name, text, found: RefCell::default() }
    }

    pub(super) fn add(&self, offset: usize, what: impl Display) {
        let line = self.text.as_bytes().iter().take(offset).filter(|byte| **byte == b'\n').count() + 1;
        self.found.borrow_mut().insert((line, what.to_string()));
    }

    /// `tidings.toml:12: …`, a line each.
    pub(super) fn said(self) -> Result<(), String> {
        let lines = self.found.into_inner();
        if lines.is_empty() {
            return Ok(());
        }
        let lines: Vec<String> = lines.iter().map(|(line, what)| format!("{}:{line}: {what}", self.name)).collect();
        Err(lines.join("\n"))
    }
}

/// One table. Keys that are asked for are the ones it knows.
pub(super) struct Table<'t> {
    path: String,
    span: Range<usize>,
    entries: Option<&'t DeTable<'t>>,
    known: RefCell<Vec<&'static str>>,
    mistakes: &'t Mistakes<'t>,
    failed: Cell<bool>,
}

impl<'t> Table<'t> {
    pub(super) fn of(path: String, span: Range<usize>, entries: &'t DeTable<'t>, mistakes: &'t Mistakes<'t>) -> Self {
        Table { path, span, entries: Some(entries), known: RefCell::default(), mistakes, failed: Cell::new(false) }
    }

    /// One that is not there: it has no keys, and its defaults hold.
    fn missing(path: String, span: Range<usize>, mistakes: &'t Mistakes<'t>) -> Self {
        Table { path, span, entries: None, known: RefCell::default(), mistakes, failed: Cell::new(false) }
    }

    pub(super) fn text(&self, key: &'static str) -> Option<&'t str> {
        let value = self.value(key)?;
        let text = value.get_ref().as_str().filter(|text| !text.is_empty());
        if text.is_none() {
            self.wrong(key, format!("expected a text in quotes, found {}", found(value)));
        }
        text
    }

    pub(super) fn duration(&self, key: &'static str) -> Option<Duration> {
        let value = self.value(key)?;
        let duration = value.get_ref().as_str().and_then(|text| humantime::parse_duration(text.trim()).ok());
        if duration.is_none() {
            self.wrong(key, format!("expected a duration such as \"500ms\" or \"5m\", found {}", found(value)));
        }
        duration
    }

    /// `"200ms..1m"`
    pub(super) fn durations(&self, key: &'static str) -> Option<(Duration, Duration)> {
        let value = self.value(key)?;
        let range = value.get_ref().as_str().and_then(|text| {
            let (min, max) = text.split_once("..")?;
            humantime::parse_duration(min.trim()).ok().zip(humantime::parse_duration(max.trim()).ok())
        });
        if range.is_none() {
            let found = found(value);
            self.wrong(key, format!("expected two durations such as \"200ms..1m\", found {found}"));
        }
        range
    }

    pub(super) fn number<N: TryFrom<i64>>(&self, key: &'static str, range: RangeInclusive<i64>) -> Option<N> {
        let value = self.value(key)?;
        let (least, most) = (*range.start(), *range.end());
        let written = value.get_ref().as_integer();
        let number = written.and_then(|integer| i64::from_str_radix(integer.as_str(), integer.radix()).ok());
        let number = number.filter(|number| range.contains(number)).and_then(|number| N::try_from(number).ok());
        if number.is_none() {
            self.wrong(
                key,
                format!("expected a number from {least} to {most}, without quotes, found {}", found(value)),
            );
        }
        number
    }

    /// The table under a key; an empty one where there is none.
    pub(super) fn table(&self, key: &'static str) -> Table<'t> {
        let path = self.path_of(key);
        match self.value(key) {
            None => Table::missing(path, self.span.clone(), self.mistakes),
            Some(value) => match value.get_ref().as_table() {
                Some(entries) => Table::of(path, value.span(), entries, self.mistakes),
                None => {
                    self.wrong(key, format!("expected a table, `[{path}]`, found {}", found(value)));
                    Table::missing(path, value.span(), self.mistakes)
                }
            },
        }
    }

    /// The tables under `[[key]]`, named by their place.
    pub(super) fn tables(&self, key: &'static str) -> Vec<Table<'t>> {
        let Some(value) = self.value(key) else { return Vec::new() };
        let whole = value.get_ref().as_array().map(|array| {
            let tables = array.iter().enumerate();
            tables.map(|(place, table)| table.get_ref().as_table().map(|entries| (place + 1, table.span(), entries)))
        });
        let tables: Option<Vec<_>> = whole.and_then(Iterator::collect);
        if tables.is_none() {
            self.wrong(key, format!("expected tables, each begun by `[[{key}]]`, found {}", found(value)));
        }
        let named = |(place, span, entries)| Table::of(format!("{key}[{place}]"), span, entries, self.mistakes);
        tables.into_iter().flatten().map(named).collect()
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.entries.is_some_and(|entries| entries.get(key).is_some())
    }

    /// Says what is wrong with the value of a key, or with the table if it has not got the key.
    pub(super) fn wrong(&self, key: &str, what: impl Display) {
        self.failed.set(true);
        let span = self.entries.and_then(|entries| entries.get_key_value(key)).map(|(key, _)| key.span());
        self.mistakes.add(span.unwrap_or_else(|| self.span.clone()).start, format!("`{}`: {what}", self.path_of(key)));
    }

    /// Says which keys nobody asked for; returns whether all of the table was right.
    pub(super) fn end(self) -> bool {
        let known = self.known.take();
        for (key, _) in self.entries.into_iter().flatten() {
            let name: &str = key.get_ref();
            if known.contains(&name) {
                continue;
            }
            let likely = known
                .iter()
                .map(|word| (strsim::jaro_winkler(name, word), *word))
                .filter(|(likeness, _)| *likeness >= ALIKE)
                .max_by(|(a, _), (b, _)| a.total_cmp(b));
            match likely {
                Some((_, word)) => self.wrong(name, format!("there is no such key, did you mean `{word}`?")),
                None => {
                    self.wrong(name, format!("there is no such key; those of this table are `{}`", known.join("`, `")))
                }
            }
        }
        !self.failed.get()
    }

    fn value(&self, key: &'static str) -> Option<&'t Spanned<DeValue<'t>>> {
        let mut known = self.known.borrow_mut();
        if !known.contains(&key) {
            known.push(key);
        }
        self.entries.and_then(|entries| entries.get(key))
    }

    fn path_of(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }
}

/// A text is shown only by its kind: it may be a password that slipped into another key.
fn found(value: &Spanned<DeValue<'_>>) -> String {
    match value.get_ref() {
        DeValue::String(text) if text.is_empty() => "an empty text".to_owned(),
        DeValue::String(text) if text.len() <= 20 && !text.contains(['/', '@']) => format!("\"{text}\""),
        DeValue::Integer(number) => number.as_str().to_owned(),
        other @ (DeValue::String(_)
        | DeValue::Float(_)
        | DeValue::Boolean(_)
        | DeValue::Datetime(_)
        | DeValue::Array(_)
        | DeValue::Table(_)) => format!("a value of another kind or form ({})", other.type_str()),
    }
}

const ALIKE: f64 = 0.8;
