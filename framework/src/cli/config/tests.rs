use super::*;

fn read(text: &str) -> Result<Config, String> {
    Config::text("tidings.toml", text, &given())
}

fn given() -> Given {
    Given {
        database_url: Some("postgres://app:s3cret@db.example/shop".into()),
        nats_url: Some("nats://app:s3cret@nats.example".into()),
        source: None,
    }
}

/// What is wrong with a file.
fn wrong(text: &str) -> String {
    read(text).err().unwrap_or_else(|| panic!("nothing is wrong with {text}"))
}

#[test]
fn a_source_is_enough_where_the_environment_says_the_rest() {
    let config = read("[[database]]\nsource = \"shop.orders\"\n").unwrap();
    let [served] = &config.databases[..] else { panic!("one database") };
    assert_eq!((config.drain, served.source.as_str()), (DRAIN, "shop.orders"));
    assert!(served.database_place.contains("\"shop\" at db.example:5432"), "{}", served.database_place);
    assert_eq!(served.nats_place, "nats.example");
    assert_eq!(served.relay, Relay::default().name(node_name()));
    assert_eq!(served.alarms, Alarms::default().report(REPORT));
}

#[test]
fn every_setting_arrives() {
    let config = read(
        r#"
        drain = "7s"

        [[database]]
        source = "shop.orders"
        url = "postgres://orders@db/orders"
        partitions = 8
        threads = 3
        statement_timeout = "9s"
        lock_timeout = "8s"
        connect_timeout = "2s"
        [database.nats]
        url = "nats://a, nats://b"
        replicas = 3
        max_age = "3days"
        duplicate_window = "5m"
        ack_timeout = "1s"
        [database.relay]
        name = "orders-1"
        lease = "6s"
        sync_horizon = "11m"
        window = 100
        window_bytes = 1_000
        in_flight = 10
        connections = 2
        backoff = "1s..2m"
        [database.alarms]
        every = "1s"
        report = "1h"
        oldest_pending = "2m"
        pending = 5
        held = "3m"
        dead = 4
        unroutable = "5s"
        unconfirmed = "6s"
        unowned = "7s"
        no_able_node = "8s"
        paused = "9s"
        blind = "10s"

        [[database]]
        source = "shop.parcels"
        url = "postgres://orders@db/parcels"
        "#,
    )
    .unwrap();
    let [orders, parcels] = &config.databases[..] else { panic!("two databases") };
    let seconds = Duration::from_secs;
    assert_eq!((config.drain, orders.threads, parcels.source.as_str()), (seconds(7), 3, "shop.parcels"));
    let database = Database::url("")
        .partitions(8)
        .statement_timeout(seconds(9))
        .lock_timeout(seconds(8))
        .connect_timeout(seconds(2));
    assert_eq!(format!("{:?}", orders.database), format!("{database:?}"));
    assert_eq!(orders.database.connect_timeout, seconds(2));
    assert_eq!(orders.database.url, "postgres://orders@db/orders");
    let jetstream = JetStream::url("")
        .replicas(3)
        .max_age(seconds(3 * 24 * 3600))
        .duplicate_window(seconds(300))
        .ack_timeout(seconds(1));
    assert_eq!(format!("{:?}", orders.jetstream), format!("{jetstream:?}"));
    assert_eq!(orders.nats_place, "a, b");
    let relay = Relay::default()
        .name("orders-1")
        .lease(seconds(6))
        .sync_horizon(seconds(660))
        .window(100)
        .window_bytes(1_000)
        .in_flight(10)
        .connections(2)
        .backoff(seconds(1), seconds(120));
    assert_eq!(orders.relay, relay);
    let alarms = Alarms::default()
        .every(seconds(1))
        .report(seconds(3_600))
        .oldest_pending(seconds(120))
        .pending(5)
        .held(seconds(180))
        .dead(4)
        .unroutable(seconds(5))
        .unconfirmed(seconds(6))
        .unowned(seconds(7))
        .no_able_node(seconds(8))
        .paused(seconds(9))
        .blind(seconds(10));
    assert_eq!(orders.alarms, alarms);
}

#[test]
fn a_mistake_is_said_with_its_line_its_key_and_the_remedy() {
    let one = "[[database]]\nsource = \"shop\"\n";
    for (text, line, told) in [
        ("", 1, "`database`: there is none: begin one by a line `[[database]]`"),
        ("[database]\nsource = \"shop\"", 1, "`database`: expected tables, each begun by `[[database]]`"),
        ("[[database]]\nsource = shop", 2, "this is not TOML"),
        ("[[database]]\npartitions = 4", 1, "`database[1].source`: is missing"),
        ("drian = \"5s\"\n[[database]]\nsource = \"shop\"", 1, "`drian`: there is no such key, did you mean `drain`?"),
        ("[[database]]\nsource = \"a b\"", 2, "`database[1].source`: \"a b\" "),
        (
            &format!("{one}[database.relay]\nleese = \"5s\""),
            4,
            "`database[1].relay.leese`: there is no such key, did you mean `lease`?",
        ),
        (
            &format!("{one}[database.relay]\nqqq = 1"),
            4,
            "there is no such key; those of this table are `name`, `lease`",
        ),
        (
            &format!("{one}relay.lease = 15"),
            3,
            "`database[1].relay.lease`: expected a duration such as \"500ms\" or \"5m\", found 15",
        ),
        (&format!("{one}relay.lease = \"100ms\""), 3, "`database[1].relay.lease`: is under 500 ms"),
        (
            &format!("{one}relay.window = 0"),
            3,
            "`database[1].relay.window`: expected a number from 1 to 100000, without quotes, found 0",
        ),
        (&format!("{one}relay.backoff = \"1s\""), 3, "expected two durations such as \"200ms..1m\", found \"1s\""),
        (
            &format!("{one}relay.backoff = \"2s..1s\""),
            3,
            "`database[1].relay.backoff`: has a first wait of 0 or above its ceiling",
        ),
        (&format!("{one}relay = 1"), 3, "`database[1].relay`: expected a table"),
        (&format!("{one}alarms.dead = 0"), 3, "`database[1].alarms.dead`: expected a number from 1 to 1000"),
        (&format!("{one}alarms.oldest_pending = \"0s\""), 3, "`database[1].alarms.oldest_pending`: is 0"),
        (
            &format!("{one}alarms.every = \"5m\"\nalarms.report = \"1m\""),
            4,
            "`database[1].alarms.report`: is under `every`, which is 5m",
        ),
        (
            &format!("{one}partitions = \"4\""),
            3,
            "`database[1].partitions`: expected a number from 1 to 1024, without quotes, found \"4\"",
        ),
        (
            &format!("{one}url = \"mysql://x\""),
            3,
            "`database[1].url`: the URL is not of the form postgres://user:password@host:port/name",
        ),
        (
            &format!("{one}url_env = \"TIDINGS_NO_SUCH_VARIABLE\""),
            3,
            "`database[1].url_env`: the environment variable TIDINGS_NO_SUCH_VARIABLE is not set",
        ),
        (&format!("{one}url_env = \"PATH\""), 3, "`database[1].url_env`: the URL is not of the form"),
        (&format!("{one}url = \"postgres://a/b\"\nurl_env = \"X\""), 4, "`database[1].url_env`: there is `url` too"),
        (&format!("{one}nats.url = \"nonsense://h o s t\""), 3, "`database[1].nats.url`: "),
        (
            &format!("{one}url = \"postgres://a/b\"\n{one}url = \"postgres://a/c\""),
            5,
            "`database[2].source`: another `[[database]]` has \"shop\"",
        ),
        (
            &format!("{one}[[database]]\nsource = \"other\""),
            3,
            "`database[2].url`: another `[[database]]` is the same database",
        ),
    ] {
        let said = wrong(text);
        assert!(said.starts_with(&format!("tidings.toml:{line}: ")) && said.contains(told), "{text}\n{said}");
        assert!(!said.contains("s3cret"), "{said}");
    }
}

#[test]
fn all_mistakes_are_said_at_once_in_the_order_of_the_lines() {
    let said = wrong("drain = 5\n[[database]]\nsource = \"\"\nurl = 7\nrelay.lease = \"x\"\nalarms.deed = 1\n");
    let lines: Vec<&str> = said.lines().map(|line| line.split(' ').next().unwrap_or_default()).collect();
    assert_eq!(
        lines,
        (1..=6).filter(|line| *line != 2).map(|line| format!("tidings.toml:{line}:")).collect::<Vec<_>>()
    );
}

#[test]
fn a_password_in_the_wrong_place_is_not_repeated() {
    let said = wrong(
        "[[database]]\nsource = \"shop\"\npartitions = \"postgres://app:s3cret@db/shop\"\nrelay.lease = \"nats://app:s3cret@n\"\n",
    );
    assert!(said.lines().count() == 2 && !said.contains("s3cret"), "{said}");
}

#[test]
fn without_a_file_what_is_missing_is_named_with_its_flag_and_variable() {
    let with = |database: Option<&str>, nats: Option<&str>, source: Option<&str>| {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        Config::of_one(&Given { database_url: owned(database), nats_url: owned(nats), source: owned(source) })
    };
    let (database, nats) = (Some("postgres://app:s3cret@db/shop"), Some("nats://n"));
    for (config, told) in [
        (with(None, nats, Some("shop")), "--database-url is missing: say it, or set TIDINGS_DATABASE_URL"),
        (with(database, None, Some("shop")), "--nats-url is missing: say it, or set TIDINGS_NATS_URL"),
        (with(database, nats, None), "--source is missing: say it, or set TIDINGS_SOURCE"),
        (with(database, nats, Some("a b")), "the source \"a b\""),
        (
            with(Some("mysql://app:s3cret@db"), nats, Some("shop")),
            "--database-url (or TIDINGS_DATABASE_URL): the URL is not",
        ),
        (with(database, Some("nonsense://h o s t"), Some("shop")), "--nats-url (or TIDINGS_NATS_URL): "),
    ] {
        let said = config.err().expect(told);
        assert!(said.contains(told) && !said.contains("s3cret"), "{said}");
    }
    assert!(with(database, nats, Some("shop")).is_ok());
}
