//! One append call takes its locks in one order, and counts from the heads it finds once it has them.

use tidings::NewEvent;
use tidings::append::Outcome;

use super::{
    End, Failed, begin_with, connect, database, end, events, head, is_serialization_failure, of, run, say, say_all,
    told, unordered, until_waiting,
};

/// A third holds what stands in the middle of both calls. Were the locks taken in the order of the calls, each would
/// hold its first, and both would wait for the other's as soon as the third lets go.
async fn both_go_through(held: NewEvent, one: [NewEvent; 3], other: [NewEvent; 3], before: Vec<NewEvent>) {
    let (database, mut watcher) = database().await;
    let (mut first, mut second, mut third) =
        (connect(&database).await, connect(&database).await, connect(&database).await);
    for event in before {
        say(&mut watcher, event).await.unwrap();
    }
    begin_with(&mut third, held).await;
    let (first, second, ()) =
        tokio::join!(say_all(&mut first, one.to_vec()), say_all(&mut second, other.to_vec()), async {
            until_waiting(&mut watcher, 2).await;
            end(&mut third, End::Rollback).await;
        });
    first.unwrap();
    second.unwrap();
    events(&mut watcher).await;
}

#[tokio::test]
async fn ids_in_opposite_order_do_not_deadlock() {
    let [a, b, m] = ["id-a", "id-b", "id-m"].map(unordered);
    both_go_through(m.clone(), [a.clone(), m.clone(), b.clone()], [b, m, a], Vec::new()).await;
}

#[tokio::test]
async fn new_aggregates_in_opposite_order_do_not_deadlock() {
    let [a, b, m] = ["job-a", "job-b", "job-m"].map(|job| move || of(job));
    both_go_through(m(), [a(), m(), b()], [b().version(7), m(), a().version(7)], Vec::new()).await;
}

#[tokio::test]
async fn aggregates_in_opposite_order_do_not_deadlock() {
    let [a, b, m] = ["job-a", "job-b", "job-m"].map(|job| move || of(job));
    // Made in this order, so that the order of the rows does not happen to be the right one.
    both_go_through(m(), [a(), m(), b()], [b().version(7), m(), a().version(7)], vec![b(), m(), a()]).await;
}

#[tokio::test]
async fn who_waited_counts_from_the_latest_head() {
    let (database, mut watcher) = database().await;
    let (mut first, mut second) = (connect(&database).await, connect(&database).await);
    for batch in [false, true] {
        for job in ["job-new", "job-old"] {
            let job = &format!("{job}-{batch}");
            if job.starts_with("job-old") {
                say(&mut first, of(job)).await.unwrap();
            }
            let before = head(&mut watcher, job).await;
            begin_with(&mut first, of(job)).await;
            let (mine, ()) = tokio::join!(
                async {
                    if batch {
                        say_all(&mut second, vec![of(job)]).await.unwrap()[0]
                    } else {
                        say(&mut second, of(job)).await.unwrap()
                    }
                },
                async {
                    until_waiting(&mut watcher, 1).await;
                    end(&mut first, End::Commit).await;
                }
            );
            assert_eq!(told(&mine), (Outcome::Appended, Some(before + 2), Some(before + 1)));
        }
    }
    events(&mut watcher).await;
}

#[tokio::test]
async fn a_stricter_snapshot_gets_a_serialization_failure_and_no_fork() {
    let (database, mut conn) = database().await;
    let mut other = connect(&database).await;
    say(&mut other, of("job-old")).await.unwrap();
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        run(&mut conn, &format!("SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL {level}")).await;
        for batch in [false, true] {
            let (old, new) = ("job-old".to_owned(), format!("job-{level}-{batch}").replace(' ', "-"));
            let repeated = unordered(&format!("evt-{new}"));
            let pairs = [
                (of(&old), of(&old)),
                (of(&old), of(&old).version(1_000)),
                (of(&new), of(&new)),
                (repeated.clone(), repeated),
            ];
            for (theirs, mine) in pairs {
                let failed = tidings::transaction(&mut conn, async |tx| {
                    super::number(tx.conn(), "SELECT count(*) AS n FROM tidings.event").await;
                    say(&mut other, theirs).await?;
                    match batch {
                        true => tx.append_all([mine]).await.map(|_| ())?,
                        false => tx.append(mine).await.map(|_| ())?,
                    }
                    Ok::<_, Failed>(())
                })
                .await;
                assert!(failed.as_ref().is_err_and(is_serialization_failure), "{level} {batch}: {failed:?}");
            }
        }
    }
    events(&mut conn).await;
}
