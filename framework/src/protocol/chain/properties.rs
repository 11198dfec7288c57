//! The machine against a broker, a network and other owners that do their worst.

use proptest::prelude::*;
use proptest::test_runner::{TestCaseResult, TestError, TestRunner};

use super::*;
use simulation::{Late, Op, World, world};

mod simulation;

/// `PROPTEST_CASES` or a thousand.
fn config() -> ProptestConfig {
    let asked = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    ProptestConfig { cases: asked.unwrap_or(1_000), ..ProptestConfig::default() }
}

/// A run of a script, then good weather until nothing is left to do.
fn played(mut world: World, script: &[Op]) -> Result<World, TestCaseError> {
    for op in script {
        world.play(*op)?;
    }
    world.settle()?;
    Ok(world)
}

fn in_order(world: World, script: &[Op]) -> TestCaseResult {
    let world = played(world, script)?;
    world.everything_is_there()?;
    world.lanes_are_in_order()?;
    world.nothing_stands_twice()
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn what_is_believed_is_there_and_lanes_stay_in_order(
        world in world(Late::BeforeTheNextOwner),
        script in prop::collection::vec(any::<Op>(), 0..120),
    ) {
        in_order(world, &script)?;
    }

    #[test]
    fn whatever_the_old_owners_do_what_is_believed_is_there_and_all_goes_through(
        world in world(Late::AtAnyTime),
        script in prop::collection::vec(any::<Op>(), 0..120),
    ) {
        let world = played(world, &script)?;
        world.everything_is_there()?;
        world.an_old_owner_lands_only_within_its_window()?;
    }

    #[test]
    fn answers_in_any_order_say_the_same(
        outcomes in prop::collection::vec(outcome(), 1..12),
        order in any::<[u8; 12]>(),
    ) {
        let run = |order: &[usize]| {
            let mut chain = Chain::at(10);
            let tickets: Vec<Ticket> = outcomes.iter().map(|_| chain.sent(1)).collect();
            let mut steps = vec![None; tickets.len()];
            for &at in order {
                let predicted = 11 + at as u64;
                let outcome = match &outcomes[at] {
                    Outcome::Stored(stored) if !stored.duplicate => {
                        Outcome::Stored(Stored { stream_seq: predicted, duplicate: false })
                    }
                    other => other.clone(),
                };
                steps[at] = chain.answered(tickets[at], &outcome);
                assert_eq!(chain.answered(tickets[at], &outcome), None, "twice");
            }
            (steps, chain.end(), chain.expected())
        };
        let straight: Vec<usize> = (0..outcomes.len()).collect();
        let mut other = straight.clone();
        other.sort_by_key(|at| order[*at]);
        prop_assert_eq!(run(&straight), run(&other));
    }
}

fn outcome() -> impl Strategy<Value = Outcome> {
    prop_oneof![
        4 => Just(Outcome::Stored(Stored { stream_seq: 0, duplicate: false })),
        1 => (1u64..30).prop_map(|stream_seq| Outcome::Stored(Stored { stream_seq, duplicate: true })),
        1 => Just(Outcome::Refused(Refusal::TooLarge)),
        3 => Just(Outcome::OutOfStep),
        1 => Just(Outcome::Abandoned),
        1 => Just(Outcome::Unavailable(Outage::Full)),
        1 => Just(Outcome::Unconfirmed(Unclear::TimedOut)),
    ]
}

/// Whether some script breaks a property: the mechanism that was taken out is the one that upholds it.
fn breaks(change: impl Fn(&mut World)) -> bool {
    let mut runner = TestRunner::new_with_rng(
        ProptestConfig { cases: 5_000, failure_persistence: None, max_shrink_iters: 0, ..ProptestConfig::default() },
        proptest::test_runner::TestRng::deterministic_rng(proptest::test_runner::RngAlgorithm::ChaCha),
    );
    let cases = (world(Late::BeforeTheNextOwner), prop::collection::vec(any::<Op>(), 0..120));
    let ran = runner.run(&cases, |(mut world, script)| {
        change(&mut world);
        in_order(world, &script)
    });
    matches!(ran, Err(TestError::Fail(..)))
}

#[test]
fn without_the_expected_sequence_the_order_breaks() {
    assert!(breaks(|world| world.server.checks = false));
}

#[test]
fn believing_another_place_than_the_predicted_one_breaks() {
    assert!(breaks(|world| world.believes_anything = true));
}

#[test]
fn predicting_where_the_stream_should_be_read_breaks() {
    assert!(breaks(|world| world.never_reads = true));
}

#[test]
fn an_echo_without_a_cause_reads_the_stream() {
    let mut chain = Chain::at(7);
    let (first, second) = (chain.sent(1), chain.sent(1));
    assert_eq!(chain.answered(first, &Outcome::OutOfStep), Some(Step::Echo));
    assert_eq!(chain.end(), None);
    assert_eq!(chain.answered(second, &Outcome::OutOfStep), Some(Step::Echo));
    assert_eq!(chain.end(), Some(End::Reconcile));
}

#[test]
fn a_refused_message_and_its_echoes_are_predicted_anew() {
    let mut chain = Chain::at(7);
    let tickets = [chain.sent(1), chain.sent(1), chain.sent(1)];
    let stored = Outcome::Stored(Stored { stream_seq: 8, duplicate: false });
    assert_eq!(chain.answered(tickets[2], &Outcome::OutOfStep), Some(Step::Echo));
    assert_eq!(
        chain.answered(tickets[1], &Outcome::Refused(Refusal::TooLarge)),
        Some(Step::Refused(Refusal::TooLarge))
    );
    assert_eq!(chain.answered(tickets[0], &stored), Some(Step::Stored { first: 8, last: 8 }));
    assert_eq!((chain.end(), chain.expected(), chain.is_broken()), (Some(End::Predict), 8, false));
    assert_eq!(chain.answered(tickets[1], &stored), None, "of the run before");
}

#[test]
fn a_batch_moves_the_prediction_by_its_size() {
    let mut chain = Chain::at(0);
    let (batch, single) = (chain.sent(500), chain.sent(1));
    let stored = |stream_seq| Outcome::Stored(Stored { stream_seq, duplicate: false });
    assert_eq!(chain.answered(single, &stored(501)), Some(Step::Stored { first: 501, last: 501 }));
    assert_eq!(chain.answered(batch, &stored(500)), Some(Step::Stored { first: 1, last: 500 }));
    assert_eq!((chain.end(), chain.expected()), (Some(End::GoOn), 501));
}

#[test]
fn what_fills_the_hole_of_a_refused_message_is_foreign() {
    let mut chain = Chain::at(7);
    let (refused, next) = (chain.sent(1), chain.sent(1));
    chain.answered(refused, &Outcome::Refused(Refusal::TooLarge));
    let stored = Outcome::Stored(Stored { stream_seq: 9, duplicate: false });
    assert_eq!(chain.answered(next, &stored), Some(Step::Stored { first: 9, last: 9 }));
    assert_eq!(chain.end(), Some(End::Reconcile));
}

/// The limit of the expected sequence as a fence, said in the module's description: it compares places, not owners.
#[test]
fn an_old_message_fits_again_when_as_many_were_stored_in_between() {
    let mut server = simulation::Server::new(false);
    let old: Vec<_> = (1..=3).map(|id| simulation::Message::single(id, id - 1, 1)).collect();
    let new = simulation::Message::single(100, 0, 2);
    assert!(matches!(server.take(&new), Outcome::Stored(_)));
    assert_eq!(server.take(&old[0]), Outcome::OutOfStep);
    assert!(matches!(server.take(&old[1]), Outcome::Stored(_)), "its place is the stream's last again");
}
