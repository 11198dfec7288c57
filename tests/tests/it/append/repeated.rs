//! The same id again: nothing new where the content is the same, an error where it is not, and never a version used.

use tidings::append::{Error, Outcome};
use tidings::{Appended, NewEvent};

use super::{
    End, Failed, begin_with, connect, database, end, events, head, of, say, say_all, told, unordered, until_waiting,
};
use Outcome::{AlreadyAppended, Appended as New};

/// What the same append answers the second time.
fn already(mut first: Appended) -> Appended {
    first.outcome = AlreadyAppended;
    first
}

#[tokio::test]
async fn the_same_event_again_is_nothing_new_and_uses_no_version() {
    let (_database, mut conn) = database().await;
    let event = of("job-42").id("evt-90");
    let first = say(&mut conn, event.clone()).await.unwrap();
    assert_eq!(told(&first), (New, Some(1), None));
    let again = already(first);
    assert_eq!(say(&mut conn, event.clone()).await.unwrap(), again);
    assert_eq!(say_all(&mut conn, vec![event.clone()]).await.unwrap(), [again]);
    assert_eq!(say_all(&mut conn, vec![event.clone(), event.clone()]).await.unwrap(), [again, again]);
    // Looked up before any version is judged: a stale one is no conflict, a higher one moves nothing.
    for version in [1, 7] {
        assert_eq!(say(&mut conn, event.clone().version(version)).await.unwrap(), again);
        assert_eq!(say_all(&mut conn, vec![event.clone().version(version)]).await.unwrap(), [again]);
    }
    assert_eq!((head(&mut conn, "job-42").await, events(&mut conn).await), (1, 1));
    let next = say(&mut conn, of("job-42")).await.unwrap();
    assert_eq!(told(&next), (New, Some(2), Some(1)), "no version is missing between");

    for event in [unordered("note-1"), unordered("cmd-1").to("worker")] {
        let first = say(&mut conn, event.clone()).await.unwrap();
        assert_eq!(told(&first), (New, None, None));
        let again = already(first);
        assert_eq!(say(&mut conn, event.clone()).await.unwrap(), again);
        assert_eq!(say_all(&mut conn, vec![event.clone(), event]).await.unwrap(), [again, again]);
    }
    assert_eq!(events(&mut conn).await, 4);
}

#[tokio::test]
async fn twice_in_one_batch_is_once() {
    let (_database, mut conn) = database().await;
    say(&mut conn, of("job-42").id("old")).await.unwrap();
    let batch = vec![
        of("job-42").id("a"),
        unordered("n"),
        of("job-42").id("a"),
        of("job-42").id("old"),
        of("job-42").id("b"),
        unordered("n"),
        of("job-7").id("c"),
        of("job-42").id("b").version(50),
        of("job-42").id("d"),
    ];
    let rows = say_all(&mut conn, batch).await.unwrap();
    let expected = [
        (New, Some(2), Some(1)),
        (New, None, None),
        (AlreadyAppended, Some(2), Some(1)),
        (AlreadyAppended, Some(1), None),
        (New, Some(3), Some(2)),
        (AlreadyAppended, None, None),
        (New, Some(1), None),
        (AlreadyAppended, Some(3), Some(2)),
        (New, Some(4), Some(3)),
    ];
    assert_eq!(rows.iter().map(told).collect::<Vec<_>>(), expected);
    assert_eq!((rows[2].seq, rows[5].seq, rows[7].seq), (rows[0].seq, rows[1].seq, rows[4].seq));
    assert!(rows[0].seq < rows[4].seq && rows[4].seq < rows[8].seq, "seq follows the version: {rows:?}");
    assert_eq!((head(&mut conn, "job-42").await, head(&mut conn, "job-7").await, events(&mut conn).await), (4, 1, 6));
}

#[tokio::test]
async fn the_same_id_with_other_content_is_a_conflict() {
    let (_database, mut conn) = database().await;
    say(&mut conn, of("job-42").id("evt-90")).await.unwrap();
    say(&mut conn, unordered("cmd-1").to("worker")).await.unwrap();
    let other = |r#type: &str, data: &str| NewEvent::raw(r#type, data).id("evt-90");
    let all = [
        other("job.progressed", "s3cret").aggregate("job", "job-42"),
        other("job.ended", "{}").aggregate("job", "job-42"),
        other("job.progressed", "{}").aggregate("job", "job-43"),
        other("job.progressed", "{}").aggregate("task", "job-42"),
        other("job.progressed", "{}"),
        unordered("cmd-1").to("another-worker"),
        unordered("cmd-1"),
    ];
    for event in all {
        assert_conflict(say(&mut conn, event.clone()).await.map(|_| ()), &event);
        let batch = vec![of("job-42"), event.clone(), unordered("n")];
        assert_conflict(say_all(&mut conn, batch).await.map(|_| ()), &event);
    }
    for pair in [
        [of("job-42").id("x"), of("job-43").id("x")],
        [unordered("x"), NewEvent::raw("job.noticed", "s3cret").id("x")],
        [unordered("x").to("worker"), unordered("x").to("another-worker")],
    ] {
        assert_conflict(say_all(&mut conn, pair.to_vec()).await.map(|_| ()), &pair[0]);
    }
    assert_eq!((head(&mut conn, "job-42").await, head(&mut conn, "job-43").await, events(&mut conn).await), (1, 0, 2));
}

fn assert_conflict(result: Result<(), Failed>, event: &NewEvent) {
    let Err(Failed::Append(error @ Error::IdConflict(_))) = result else { panic!("{event:?}: {result:?}") };
    assert!(error.to_string().contains(&format!("'{}'", event.event_id())), "{error}");
    assert!(!format!("{error} {error:?}").contains("s3cret"), "{error:?}");
}

#[tokio::test]
async fn a_version_must_be_above_the_head() {
    let (_database, mut conn) = database().await;
    let batch = vec![
        of("job-42"),
        of("job-42").version(10),
        of("job-42"),
        of("job-7").version(5),
        of("job-42").version(12),
        of("job-42"),
        of("job-7"),
    ];
    let rows = say_all(&mut conn, batch).await.unwrap();
    let versions: Vec<_> = rows.iter().map(told).map(|(_, version, previous)| (version.unwrap(), previous)).collect();
    let expected = [(1, None), (10, Some(1)), (11, Some(10)), (5, None), (12, Some(11)), (13, Some(12)), (6, Some(5))];
    assert_eq!(versions, expected);
    assert_eq!(told(&say(&mut conn, of("job-42").version(20)).await.unwrap()), (New, Some(20), Some(13)));

    for batch in [
        vec![of("job-42").version(20)],
        vec![of("job-42").version(3)],
        vec![of("job-42").version(30), of("job-42").version(30)],
        vec![of("job-42").version(30), of("job-42"), of("job-42").version(31)],
        vec![of("job-42"), of("job-42").version(21)],
        vec![unordered("n"), of("job-7"), of("job-42").version(1)],
    ] {
        let refused = say_all(&mut conn, batch).await;
        let Err(Failed::Append(error @ Error::VersionConflict(_))) = refused else { panic!("{refused:?}") };
        assert!(error.to_string().contains("'job' 'job-42'"), "{error}");
    }
    let refused = say(&mut conn, of("job-42").version(20)).await;
    let Err(Failed::Append(Error::VersionConflict(message))) = refused else { panic!("{refused:?}") };
    assert!(message.contains("version 20 is not above the head 20"), "{message}");
    assert_eq!((head(&mut conn, "job-42").await, head(&mut conn, "job-7").await, events(&mut conn).await), (20, 6, 8));
}

/// Somebody else's append of the same id is not committed yet: this one waits, and then knows.
#[tokio::test]
async fn the_same_event_at_the_same_time_is_once() {
    let (database, mut watcher) = database().await;
    let (mut first, mut second) = (connect(&database).await, connect(&database).await);
    say(&mut first, of("job-7").id("before")).await.unwrap();
    for (n, how) in [End::Commit, End::Rollback, End::Commit, End::Rollback].into_iter().enumerate() {
        let batch = n >= 2;
        for event in [of("job-42"), of(&format!("job-of-{n}")), unordered(""), unordered("").to("worker")] {
            let event = event.id(format!("evt-{}", uuid::Uuid::new_v4()));
            let before = head(&mut watcher, "job-42").await;
            let one = begin_with(&mut first, event.clone()).await;
            let (again, ()) = tokio::join!(
                async {
                    // The batch repeats what is there, and what is only being written.
                    if batch {
                        let all = vec![of("job-7").id("before"), event.clone(), event.clone()];
                        say_all(&mut second, all).await.map(|rows| rows[1])
                    } else {
                        say(&mut second, event.clone()).await
                    }
                },
                async {
                    until_waiting(&mut watcher, 1).await;
                    end(&mut first, how).await;
                }
            );
            let again = again.unwrap();
            if how == End::Commit {
                assert_eq!(again, already(one), "{event:?}");
            } else {
                assert_eq!(told(&again), told(&one), "the other never was: {event:?}");
            }
            let moved = head(&mut watcher, "job-42").await - before;
            assert_eq!(moved, i64::from(event == of("job-42").id(event.event_id())), "{event:?}");
        }
    }
    events(&mut watcher).await;
}

#[tokio::test]
async fn a_conflict_that_shows_only_after_waiting_is_one() {
    let (database, mut watcher) = database().await;
    let (mut first, mut second) = (connect(&database).await, connect(&database).await);
    for batch in [false, true] {
        for event in [of("job-42"), unordered("")] {
            let event = event.id(format!("evt-{}", uuid::Uuid::new_v4()));
            begin_with(&mut first, unordered(event.event_id()).to("worker")).await;
            let (conflict, ()) = tokio::join!(
                async {
                    if batch {
                        say_all(&mut second, vec![of("job-42"), event.clone()]).await.map(|_| ())
                    } else {
                        say(&mut second, event.clone()).await.map(|_| ())
                    }
                },
                async {
                    until_waiting(&mut watcher, 1).await;
                    end(&mut first, End::Commit).await;
                }
            );
            assert_conflict(conflict, &event);
        }
    }
    assert_eq!((head(&mut watcher, "job-42").await, events(&mut watcher).await), (0, 4));
}

/// Only the id may be there already: a version that is taken, because somebody set a head back, must not pass as a repeat.
#[tokio::test]
async fn a_version_that_is_taken_is_an_error_of_its_own() {
    let (_database, mut conn) = database().await;
    say_all(&mut conn, vec![of("job-42"), of("job-42")]).await.unwrap();
    super::run(&mut conn, "UPDATE tidings.aggregate SET head_version = 0").await;
    for result in
        [say(&mut conn, of("job-42")).await.map(|_| ()), say_all(&mut conn, vec![of("job-42")]).await.map(|_| ())]
    {
        use diesel::result::{DatabaseErrorKind::UniqueViolation, Error::DatabaseError};
        let unique = matches!(result, Err(Failed::Append(Error::Query(DatabaseError(UniqueViolation, _)))));
        assert!(unique, "{result:?}");
    }
    assert_eq!(events(&mut conn).await, 2);
}
