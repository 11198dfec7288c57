//! What is printed.

use serde_json::json;

use super::plan::Plan;
use super::{Error, Outcome};

/// One line for a schedule; all that is known where something is wrong.
pub fn text(plan: &Plan, outcome: &Result<Outcome, Error>) -> String {
    let head = format!("seed {} ({}, {} faults)", plan.seed, plan.servers, plan.steps.len());
    let again = format!("run it again: schedules --seed {} --nodes {} --count 1", plan.seed, plan.servers);
    match outcome {
        Ok(outcome) => {
            let figures = format!(
                "{} events, {} changes of owner, {} repeats, settled in {:.1} s, {:.1} s in all",
                outcome.events,
                outcome.takeovers,
                outcome.repeats,
                outcome.settled.as_secs_f64(),
                outcome.took.as_secs_f64()
            );
            if outcome.violations.is_empty() {
                return format!("{head}: well, {figures}");
            }
            let wrong: String = outcome.violations.iter().map(|wrong| format!("  wrong: {wrong}\n")).collect();
            format!("{head}: VIOLATED, {figures}\n{plan}{wrong}  logs: {}\n  {again}", outcome.logs.display())
        }
        Err(error) => format!("{head}: could not be run: {error}\n{plan}  {again}"),
    }
}

/// One object for a schedule.
pub fn json(plan: &Plan, outcome: &Result<Outcome, Error>) -> String {
    let (outcome, error) = match outcome {
        Ok(outcome) => (outcome.clone(), None),
        Err(error) => (Outcome::default(), Some(error.to_string())),
    };
    json!({
        "seed": plan.seed,
        "nodes": plan.servers.to_string(),
        "faults": plan.steps.iter().map(|step| step.fault.to_string()).collect::<Vec<_>>(),
        "events": outcome.events,
        "takeovers": outcome.takeovers,
        "repeats": outcome.repeats,
        "settled_s": outcome.settled.as_secs_f64(),
        "took_s": outcome.took.as_secs_f64(),
        "violations": outcome.violations,
        "error": error,
    })
    .to_string()
}
