//! Random schedules of faults against real relays on real servers, and a checker that believes nothing.
//!
//! `cargo run --bin schedules -- --help`

use std::collections::VecDeque;
use std::io::Read;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use clap::{Parser, ValueEnum};
use tidings_tests::schedules::plan::{Plan, Servers};
use tidings_tests::schedules::world::World;
use tidings_tests::schedules::{Broken, NODE, report, run, servers_of};

mod relay_node;

/// Strikes relays with random faults and checks that nothing is lost, reordered, repeated under another content, or
/// recorded that is not true. Starts its own servers.
///
/// Exits with 1 if a schedule was violated or could not be run. With --break it is the other way round: with 0 as soon as the
/// checker has found the fault, with 1 if it found none.
#[derive(Parser, Debug, Clone)]
#[command(name = "schedules")]
struct Arguments {
    /// How many schedules: those of this seed and the next ones.
    #[arg(long, default_value_t = 10)]
    count: u64,
    /// The first seed [default: the time].
    #[arg(long)]
    seed: Option<u64>,
    /// The broker: one nats-server, or a cluster of three with three replicas. Mixed: three for every fourth seed.
    #[arg(long, value_enum, default_value_t = Nodes::Mixed)]
    nodes: Nodes,
    /// How many run at once, each on servers of its own.
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// One JSON object a schedule instead of text.
    #[arg(long)]
    json: bool,
    /// Leave a check of the relay out.
    #[arg(long = "break", value_enum)]
    broken: Option<Break>,
    /// Print the plans and run nothing.
    #[arg(long)]
    plan: bool,
}

#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
enum Nodes {
    One,
    Three,
    Mixed,
}

#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
enum Break {
    /// Confirmations do not ask who owns the partition.
    Epoch,
    /// Messages are published without their expected sequence.
    Sequence,
}

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some(NODE) {
        // Ends with the program that started it: its end of the pipe is closed then.
        std::thread::spawn(|| {
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            std::process::exit(3);
        });
        return relay_node::main();
    }
    let arguments = Arguments::parse();
    let first = arguments.seed.unwrap_or_else(|| uuid::Uuid::new_v4().as_u64_pair().0 % 1_000_000_000);
    let chosen = match arguments.nodes {
        Nodes::One => Some(Servers::One),
        Nodes::Three => Some(Servers::Three),
        Nodes::Mixed => None,
    };
    let plans: Vec<Plan> =
        (first..first + arguments.count).map(|seed| Plan::of(seed, servers_of(seed, chosen))).collect();
    if arguments.plan {
        plans.iter().for_each(|plan| println!("{plan}"));
        return ExitCode::SUCCESS;
    }
    let broken = arguments.broken.map(|broken| match broken {
        Break::Epoch => Broken::Epoch,
        Break::Sequence => Broken::Sequence,
    });

    let began = Instant::now();
    let (mut ran, mut wrong) = (0_u64, Vec::new());
    let (done, finished) = std::sync::mpsc::channel();
    let waiting = Arc::new(Mutex::new(plans.into_iter().collect::<VecDeque<_>>()));
    for _ in 0..arguments.jobs.max(1) {
        let (waiting, done) = (Arc::clone(&waiting), done.clone());
        std::thread::spawn(move || work(&waiting, broken, &done));
    }
    drop(done);
    for (plan, outcome) in finished {
        ran += 1;
        println!("{}", if arguments.json { report::json(&plan, &outcome) } else { report::text(&plan, &outcome) });
        if outcome.as_ref().map_or(true, |outcome| !outcome.violations.is_empty()) {
            wrong.push(plan.seed);
        }
        let found = outcome.is_ok_and(|outcome| !outcome.violations.is_empty());
        if broken.is_some() && found {
            eprintln!("the checker found the fault in schedule {ran}, after {:.0} s", began.elapsed().as_secs_f64());
            return ExitCode::SUCCESS;
        }
    }
    eprintln!("{ran} schedules, {} of them wrong {wrong:?}, {:.0} s", wrong.len(), began.elapsed().as_secs_f64());
    if wrong.is_empty() && broken.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

type Done = std::sync::mpsc::Sender<(Plan, Result<tidings_tests::schedules::Outcome, tidings_tests::schedules::Error>)>;

/// One schedule after the other, on servers that stay as long as they fit.
fn work(waiting: &Mutex<VecDeque<Plan>>, broken: Option<Broken>, done: &Done) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime can be built");
    let mut world: Option<(Servers, World)> = None;
    loop {
        let next = {
            let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
            // Those first that fit the servers there are.
            let fits = world.as_ref().and_then(|(servers, _)| waiting.iter().position(|plan| plan.servers == *servers));
            waiting.remove(fits.unwrap_or(0))
        };
        let Some(plan) = next else { return };
        if world.as_ref().is_none_or(|(servers, _)| *servers != plan.servers) {
            world = None;
            match World::start(plan.servers) {
                Ok(started) => world = Some((plan.servers, started)),
                Err(error) => {
                    let _ = done.send((plan, Err(error)));
                    continue;
                }
            }
        }
        let Some((_, there)) = &world else { continue };
        let outcome = runtime.block_on(run(there, &plan, broken));
        if outcome.is_err() {
            // Servers that may be in any state are for nobody else.
            world = None;
        }
        let _ = done.send((plan, outcome));
    }
}
