//! What is printed: a table for people, or a JSON object a line.

use std::fmt::Write;

use serde_json::{Map, Value};

/// The result of one scenario.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) scenario: &'static str,
    pub(crate) value: f64,
    pub(crate) unit: &'static str,
    /// What it is compared with: the bare loop, or what `beside` says.
    pub(crate) bare: Option<f64>,
    pub(crate) ratio: Option<f64>,
    pub(crate) runs: usize,
    pub(crate) cpu_s_per_100k: Option<f64>,
    pub(crate) cpu_ratio: Option<f64>,
    pub(crate) wal_bytes_per_event: Option<f64>,
    pub(crate) more: Vec<(&'static str, f64)>,
    pub(crate) bars: Vec<Bar>,
}

/// What a figure should be.
#[derive(Debug)]
pub(crate) struct Bar {
    pub(crate) what: &'static str,
    pub(crate) is: f64,
    pub(crate) limit: Limit,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Limit {
    AtLeast(f64),
    AtMost(f64),
}

impl Report {
    pub(crate) fn new(scenario: &'static str, value: f64, unit: &'static str, runs: usize) -> Report {
        Report {
            scenario,
            value,
            unit,
            bare: None,
            ratio: None,
            runs,
            cpu_s_per_100k: None,
            cpu_ratio: None,
            wal_bytes_per_event: None,
            more: Vec::new(),
            bars: Vec::new(),
        }
    }

    pub(crate) fn bar(mut self, what: &'static str, is: f64, limit: Limit) -> Report {
        self.bars.push(Bar { what, is, limit });
        self
    }

    pub(crate) fn json(&self) -> String {
        let number = |number: Option<f64>| number.map_or(Value::Null, |number| Value::from(rounded(number)));
        let mut object = Map::new();
        object.insert("scenario".into(), self.scenario.into());
        object.insert("value".into(), number(Some(self.value)));
        object.insert("unit".into(), self.unit.into());
        object.insert("bare".into(), number(self.bare));
        object.insert("ratio".into(), number(self.ratio));
        object.insert("runs".into(), self.runs.into());
        object.insert("cpu_s_per_100k".into(), number(self.cpu_s_per_100k));
        object.insert("cpu_ratio".into(), number(self.cpu_ratio));
        object.insert("wal_bytes_per_event".into(), number(self.wal_bytes_per_event));
        for (name, value) in &self.more {
            object.insert((*name).into(), number(Some(*value)));
        }
        Value::Object(object).to_string()
    }

    /// A row for the figure and one for each bar.
    pub(crate) fn rows(&self) -> String {
        let shown = |number: Option<f64>| number.map_or(String::new(), figure);
        let mut rows = String::new();
        let cpu = self.cpu_s_per_100k.map_or(String::new(), |seconds| format!("{seconds:.2} s"));
        let wal = self.wal_bytes_per_event.map_or(String::new(), |bytes| format!("{bytes:.0} B"));
        let (value, bare, ratio) = (figure(self.value), shown(self.bare), shown(self.ratio));
        let (scenario, unit) = (self.scenario, self.unit);
        let _ = writeln!(rows, "{scenario:14} {value:>10} {unit:10} {bare:>10} {ratio:>7} {cpu:>9} {wal:>8}");
        for bar in &self.bars {
            let (sign, limit, kept) = match bar.limit {
                Limit::AtLeast(limit) => ("≥", limit, bar.is >= limit),
                Limit::AtMost(limit) => ("≤", limit, bar.is <= limit),
            };
            let verdict = if kept { "ok" } else { "MISSED" };
            let (is, limit) = (figure(bar.is), figure(limit));
            let _ = writeln!(rows, "{:14}   {:24} {is:>8} {sign} {limit:<6} {verdict}", "", bar.what);
        }
        rows
    }
}

pub(crate) const HEADING: &str = "scenario            value unit             bare   ratio  CPU/100k WAL/event";

/// The middle one of the runs.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The value below which this share of them is.
pub(crate) fn quantile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let last = values.len().saturating_sub(1);
    values.get((last as f64 * share).round() as usize).copied().unwrap_or(f64::NAN)
}

/// Four figures are more than the noise leaves.
fn rounded(number: f64) -> f64 {
    if number == 0.0 || !number.is_finite() {
        return number;
    }
    let scale = 10f64.powi(3 - number.abs().log10().floor() as i32);
    (number * scale).round() / scale
}

fn figure(number: f64) -> String {
    match number.abs() {
        large if large >= 100.0 => format!("{number:.0}"),
        middle if middle >= 10.0 => format!("{number:.1}"),
        _ => format!("{number:.2}"),
    }
}
