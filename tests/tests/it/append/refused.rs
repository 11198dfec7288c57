//! What could never be published is refused before the commit, by the name of its field, and never shown.

use tidings::append::{Error, MAX_BATCH, Outcome};
use tidings::event::{Invalid, Limits};
use tidings::{NewEvent, Tx};

use super::{Failed, database, events, head, of, say, told};

#[tokio::test]
async fn what_cannot_be_published_is_refused_by_the_name_of_its_field() {
    let (_database, mut conn) = database().await;
    let cases = unfit();
    tidings::transaction(&mut conn, async |tx| {
        for (event, field) in &cases {
            assert_refused(tx.append(event.clone()).await.map(|_| ()), field, event);
            let good = NewEvent::raw("job.noticed", "{}");
            assert_refused(tx.append_all([good, event.clone()]).await.map(|_| ()), field, event);
        }
        // Nothing was sent for them, so the transaction is as good as before.
        tx.append(of("job-42")).await?;
        Ok::<_, Failed>(())
    })
    .await
    .unwrap();
    assert_eq!(events(&mut conn).await, 1);
}

fn assert_refused(result: Result<(), Error>, field: &str, event: &NewEvent) {
    let Err(Error::Invalid(Invalid { field: named, problem })) = &result else {
        panic!("{event:?} should be refused for its {field}: {result:?}")
    };
    assert_eq!(named, field, "{event:?}: {problem}");
    let error = result.unwrap_err();
    assert!(error.to_string().starts_with(&format!("the event's {field} ")), "{error}");
    assert!(!format!("{error} {error:?} {event:?}").contains("s3cret"), "{error:?}");
}

/// Each with the field that the refusal must name. Data and header values are secrets.
fn unfit() -> Vec<(NewEvent, &'static str)> {
    let raw = |r#type: &str| NewEvent::raw(r#type, "s3cret").header("tenant", "s3cret");
    let event = || raw("job.progressed");
    let mut all = Vec::new();
    let long = "x".repeat(257);
    for name in ["", " ", "a b", "a\tb", "a\r\nPUB evil 1", "a*", ">", "\0", "a\u{7f}", "a\u{85}b", "a\u{2003}b", &long]
    {
        all.push((event().id(name), "id"));
        all.push((raw(name), "type"));
        all.push((event().to(name), "recipient"));
        all.push((event().aggregate(name, "job-42"), "aggregate_type"));
        all.push((event().aggregate("job", name), "aggregate_id"));
    }
    // These become tokens of the subject: 54 bytes of three each are over the limit once they are escaped.
    for token in ["a..b", ".a", "a.", &"x".repeat(161), &"/".repeat(54)] {
        all.push((raw(token), "type"));
        all.push((event().to(token), "recipient"));
        all.push((event().aggregate(token, "job-42"), "aggregate_type"));
    }
    for value in ["s3cret\r\nb", "s3cret\nb", "s3cret\0", &"s3cret".repeat(683)] {
        all.push((event().header("tenant", value), "header tenant"));
        all.push((event().content_type(value), "content_type"));
        all.push((event().correlation_id(value), "correlation_id"));
        all.push((event().causation_id(value), "causation_id"));
        all.push((event().trace(TRACEPARENT, Some(value.into())), "tracestate"));
    }
    // The wire trims it.
    all.push((event().header("tenant", " s3cret"), "header tenant"));
    all.push((event().header("tenant", "s3cret "), "header tenant"));
    all.push((event().content_type(""), "content_type"));
    all.push((event().correlation_id(""), "correlation_id"));
    all.push((event().causation_id(""), "causation_id"));
    for traceparent in ["", "00-1-2-3", "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"] {
        all.push((event().trace(traceparent, None), "traceparent"));
    }
    for (name, field) in HEADERS {
        all.push((event().header(*name, "s3cret"), field));
    }
    // Each of them is as long as it may be.
    let many = (0..17).fold(event(), |event, n| event.header(format!("header-{n}"), "x".repeat(4_096)));
    all.push((many, "headers"));
    all.push((event().aggregate("job", "job-42").version(0), "version"));
    all.push((event().aggregate("job", "job-42").version(-1), "version"));
    all.push((event().version(1), "version"));
    all.push((event().schema_version(0), "schema_version"));
    all.push((event().schema_version(u32::MAX), "schema_version"));
    all.push((event().to("worker").aggregate("job", "job-42"), "aggregate"));
    all.push((NewEvent::raw("job.progressed", "s3cret".repeat(Limits::default().max_event_bytes / 6)), "data"));
    all
}

const TRACEPARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// Names that are none, and names that belong to CloudEvents, NATS or the framework, in any case.
const HEADERS: &[(&str, &str)] = &[
    ("", "header "),
    ("a b", "header a b"),
    ("x:y", "header x:y"),
    ("ü", "header ü"),
    ("a\r\nb", "header a\\r\\nb"),
    ("ce-id", "header ce-id"),
    ("CE-Tenant", "header ce-tenant"),
    ("Nats-Msg-Id", "header nats-msg-id"),
    ("nats-rollup", "header nats-rollup"),
    ("Tidings-Attempt", "header tidings-attempt"),
    ("Content-Type", "header content-type"),
    ("traceparent", "header traceparent"),
    ("tracestate", "header tracestate"),
    ("Status", "header status"),
    ("Description", "header description"),
];

#[tokio::test]
async fn dots_slashes_and_any_script_work_in_an_aggregate_id() {
    let (_database, mut conn) = database().await;
    let ids = [
        "a.b/c..d",
        "..",
        ".",
        "/",
        "_",
        "=2E",
        "%20",
        "заказ-7",
        "注文",
        "😀",
        "';--",
        "$1",
        "{id}",
        "A",
        "a",
        "é",
        "e\u{301}",
    ];
    for id in ids {
        let appended = say(&mut conn, of(id)).await.unwrap();
        assert_eq!(told(&appended), (Outcome::Appended, Some(1), None), "{id:?} is an aggregate of its own");
    }
    let longest = "ü".repeat(128);
    say(&mut conn, of(&longest).id(&longest)).await.unwrap();
    assert_eq!(head(&mut conn, &longest).await, 1);
    assert_eq!(events(&mut conn).await, ids.len() as i64 + 1);
}

#[tokio::test]
async fn more_than_one_statement_should_carry_is_refused() {
    let (_database, mut conn) = database().await;
    tidings::transaction(&mut conn, async |tx: &mut Tx<'_>| {
        let one = of("job-42");
        let too_many = tx.append_all((0..=MAX_BATCH).map(|_| one.clone())).await;
        assert!(matches!(too_many, Err(Error::TooMany(n)) if n == MAX_BATCH + 1), "{too_many:?}");
        assert_eq!(tx.append_all(Vec::<NewEvent>::new()).await?, []);
        Ok::<_, Failed>(())
    })
    .await
    .unwrap();
    assert_eq!(events(&mut conn).await, 0);
}

#[tokio::test]
async fn an_error_of_the_database_shows_no_payload() {
    let (_database, mut conn) = database().await;
    // The server's detail holds the whole row that failed, the payload too.
    super::run(&mut conn, "ALTER TABLE tidings.event ADD CHECK (octet_length(data) < 3)").await;
    let secret = || NewEvent::raw("job.noticed", "s3cret").header("tenant", "s3cret").aggregate("job", "job-42");
    for result in
        [say(&mut conn, secret()).await.map(|_| ()), super::say_all(&mut conn, vec![secret()]).await.map(|_| ())]
    {
        let error = result.unwrap_err();
        assert!(matches!(error, Failed::Append(Error::Query(_))), "{error}");
        let mut told = format!("{error} {error:?}");
        let mut cause: &dyn std::error::Error = &error;
        while let Some(next) = cause.source() {
            told += &format!(" {next} {next:?}");
            cause = next;
        }
        assert!(!told.contains("s3cret") && !told.contains("733363726574"), "{told}");
    }
}
