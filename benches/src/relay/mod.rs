//! The scenarios of the producer's side.

mod append;
mod drain;
mod idle;
mod latency;
mod load;
pub(crate) mod memory;
mod producer;
mod snapshot;

use std::fmt;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::ground::Error;
use crate::report::HEADING;

/// What to measure, and how to print it.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Only this one; may be given several times. Default: all.
    #[arg(long = "scenario")]
    scenarios: Vec<Scenario>,
    /// One JSON object a line instead of a table.
    #[arg(long)]
    json: bool,
    /// A tenth of the work: each scenario takes less than a minute.
    #[arg(long)]
    quick: bool,
    /// How often each is measured; the median counts. Default 3, with --quick 1.
    #[arg(long)]
    runs: Option<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Scenario {
    Append,
    Drain,
    Hot,
    SyncAlways,
    Backlog,
    HeldSnapshot,
    HeldLanes,
    Delayed,
    Latency,
    Idle,
    Memory,
}

/// How much is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Size {
    Full,
    Quick,
}

impl Size {
    /// The events of a usual load.
    fn events(self) -> i64 {
        match self {
            Size::Full => 100_000,
            Size::Quick => 20_000,
        }
    }

    fn of<T>(self, full: T, quick: T) -> T {
        match self {
            Size::Full => full,
            Size::Quick => quick,
        }
    }

    fn seconds(self, full: u64, quick: u64) -> Duration {
        Duration::from_secs(self.of(full, quick))
    }
}

pub(crate) async fn run(options: Options) -> Result<(), Error> {
    let size = if options.quick { Size::Quick } else { Size::Full };
    let runs = options.runs.unwrap_or(size.of(3, 1)).max(1);
    let scenarios = if options.scenarios.is_empty() { Scenario::value_variants() } else { &options.scenarios };
    if cfg!(debug_assertions) {
        say(format_args!("this is no release build: its figures mean nothing"));
    }
    if !options.json {
        println!("{HEADING}");
    }
    for scenario in scenarios {
        say(format_args!("== {scenario:?}"));
        let report = match scenario {
            Scenario::Append => append::append(size, runs).await?,
            Scenario::Drain => drain::drain(size, runs).await?,
            Scenario::Hot => drain::hot(size, runs).await?,
            Scenario::SyncAlways => drain::sync_always(size, runs).await?,
            Scenario::Backlog => drain::backlog(size, runs).await?,
            Scenario::HeldSnapshot => snapshot::held_snapshot(size).await?,
            Scenario::HeldLanes => drain::held_lanes(size, runs).await?,
            Scenario::Delayed => drain::delayed(size, runs).await?,
            Scenario::Latency => latency::latency(size, runs).await?,
            Scenario::Idle => idle::idle(size).await?,
            Scenario::Memory => memory::memory(size).await?,
        };
        if options.json {
            println!("{}", report.json());
        } else {
            print!("{}", report.rows());
        }
    }
    Ok(())
}

/// How it is going, beside what is printed as the result.
fn say(what: fmt::Arguments<'_>) {
    eprintln!("  {what}");
}
