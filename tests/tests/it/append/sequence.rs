//! The numbers have room, and are handed out one at a time.

use tidings::append::Outcome;
use tidings::{Relay, Tidings, testing};

use super::{connect, database, events, head, of, run, say, say_all, told};

#[tokio::test]
async fn sequence_and_versions_go_beyond_every_smaller_integer() {
    let (_database, mut conn) = database().await;
    for start in [i64::from(i32::MAX) - 2, i64::from(u32::MAX) - 2, (1 << 53) - 2] {
        run(&mut conn, &format!("ALTER SEQUENCE tidings.event_seq_seq RESTART {start}")).await;
        let mut seqs = Vec::new();
        for n in 0..3 {
            seqs.push(say(&mut conn, of("job-42")).await.unwrap().seq);
            let batch = vec![of("job-42"), of(&format!("job-{start}-{n}")), of("job-42")];
            seqs.extend(say_all(&mut conn, batch).await.unwrap().iter().map(|row| row.seq));
        }
        assert_eq!(seqs, (start..start + 12).collect::<Vec<_>>());
        let next = start.max(head(&mut conn, "job-42").await + 1);
        say(&mut conn, of("job-42").version(next)).await.unwrap();
        for n in 1..5 {
            let appended = say(&mut conn, of("job-42")).await.unwrap();
            assert_eq!(told(&appended), (Outcome::Appended, Some(next + n), Some(next + n - 1)));
        }
    }
    assert_eq!(events(&mut conn).await, 3 * 17);
}

/// With a cache two sessions number the events of one aggregate out of their order: seen here, refused at the start.
#[tokio::test]
async fn a_cached_sequence_is_refused_at_the_start() {
    let (database, mut conn) = database().await;
    run(&mut conn, "ALTER SEQUENCE tidings.event_seq_seq CACHE 50").await;
    let (mut first, mut second) = (connect(&database).await, connect(&database).await);
    let one = say(&mut first, of("job-42")).await.unwrap();
    let two = say(&mut second, of("job-42")).await.unwrap();
    let three = say(&mut first, of("job-42")).await.unwrap();
    assert!(one.version < two.version && two.version < three.version, "the versions are right all the same");
    assert!(three.seq < two.seq, "this is why it is refused");

    let start = || {
        Tidings::new(database.database(), testing::jetstream())
            .source(database.source())
            .relay(Relay::default())
            .start()
    };
    let error = start().await.expect_err("it is refused").to_string();
    assert!(error.contains("`tidings.event_seq_seq` has CACHE 50"), "{error}");
    assert!(error.contains("ALTER SEQUENCE tidings.event_seq_seq CACHE 1"), "{error}");
    run(&mut conn, "ALTER SEQUENCE tidings.event_seq_seq CACHE 1").await;
    start().await.unwrap().drain(super::LIMIT).await.unwrap();
}
