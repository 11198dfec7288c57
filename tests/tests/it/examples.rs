//! The examples, run as a user runs them.

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tidings::services::{DATABASE_URL, NATS_URL};
use tidings::testing;
use tidings_tests::eventually;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::sync::OnceCell;

#[tokio::test]
async fn exports_add_up_though_the_relay_is_killed_twice() {
    let output = cargo_run("export").await;
    let said = story(&output);
    assert!(said.contains("in its hands; the outbox says `ready`"), "{said}");
    assert!(said.contains("relay 2 was killed in a batch"), "{said}");
    assert_eq!(number(&said, "exports"), 50, "{said}");
    assert_eq!(number(&said, "events appended"), 100, "{said}");
    assert_eq!(number(&said, "statistics total"), 50, "{said}");
    assert_eq!(number(&said, "search entries"), 50, "{said}");
    assert!(number(&said, "publishes") >= 100, "{said}");
    assert!(number(&said, "found in the streams") > 1, "{said}");
    assert_eq!(number(&said, "messages in the streams"), 100, "{said}");
    assert_eq!(number(&said, "lost"), 0, "{said}");
}

#[tokio::test]
async fn orders_add_up_though_the_relay_is_killed() {
    let output = cargo_run("orders").await;
    let said = story(&output);
    assert!(said.contains("relay 1 was killed"), "{said}");
    assert_eq!(number(&said, "orders"), 40, "{said}");
    assert_eq!(number(&said, "events appended"), 80, "{said}");
    assert_eq!(number(&said, "notifications"), 40, "{said}");
    // The broker's window for duplicates is over by then; nothing leans on it.
    assert!(number(&said, "found in the streams") > 0, "{said}");
    assert_eq!(number(&said, "messages in the streams"), 80, "{said}");
    assert_eq!(number(&said, "lost"), 0, "{said}");
}

#[tokio::test]
async fn both_run_again_on_servers_that_ran_them_before() {
    let out = tempfile::tempdir().expect("a folder");
    let twice = async |example: &str, arguments: &[&Path], what: &str, many: u64| {
        // A database is one source, so each has its own.
        let database = testing::empty_database().await.expect("a database");
        for _ in 0..2 {
            let mut command = program(example).await;
            command.env(DATABASE_URL, database.url()).env(NATS_URL, testing::servers().nats.url()).args(arguments);
            let said = story(&ended(command).await);
            assert_eq!((number(&said, what), number(&said, "lost")), (many, 0), "{said}");
        }
    };
    let folder = out.path().join("exported/files");
    let out_folder = [Path::new("--out"), &folder];
    tokio::join!(twice("export", &out_folder, "exports", 50), twice("orders", &[], "orders", 40));

    // Whole ones under their final names, and no leavings of attempts that died.
    let files = std::fs::read_dir(&folder).expect("the folder was made").map(|file| file.expect("a file").path());
    let (whole, others): (Vec<PathBuf>, Vec<PathBuf>) =
        files.partition(|path| path.extension().is_some_and(|e| e == "csv"));
    assert_eq!((whole.len(), others), (100, vec![]));
}

#[tokio::test]
async fn it_serves_until_it_is_asked_to_end() {
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let mut command = program("export").await;
        command.arg("--serve");
        let mut serving = Started::of(command);
        let url = serving.url().await;

        let (first, job) = post(&url, Some("export-intent-7"), COURSES).await;
        let (again, same) = post(&url, Some("export-intent-7"), COURSES_SAID_OTHERWISE).await;
        assert_eq!((first, again), (201, 200));
        assert_eq!(job["id"], same["id"]);
        let (other, _) =
            post(&url, Some("export-intent-7"), r#"{"tenant":"academy","dataset":"courses","rows":8}"#).await;
        assert_eq!(other, 409);
        assert_eq!(post(&url, None, COURSES).await.0, 400);
        assert_eq!(post(&url, Some("export-intent-8"), r#"{"tenant":"academy"}"#).await.0, 400);
        assert_eq!(get(&format!("{url}/exports/job-of-nobody")).await.0, 404);

        let place = format!("{url}/exports/{}", job["id"].as_str().expect("an id"));
        let done = eventually("the export succeeds", LIMIT, async || {
            let (status, job) = get(&place).await;
            assert_eq!(status, 200);
            (job["state"] == "succeeded").then_some(job)
        })
        .await;
        assert_eq!((&done["rows"], &done["file"].is_string()), (&json!(7), &true));

        let output = serving.end_by(signal).await;
        assert_eq!(output.status.code(), Some(0), "{output:?}");
    }
}

#[tokio::test]
async fn one_key_at_the_same_time_is_one_job() {
    let mut command = program("export").await;
    command.arg("--serve");
    let mut serving = Started::of(command);
    let url = serving.url().await;
    for n in 0..10 {
        let key = format!("export-intent-{n}");
        let answers = futures_util::future::join_all((0..8).map(|_| post(&url, Some(&key), COURSES))).await;
        let created = answers.iter().filter(|(status, _)| *status == 201).count();
        assert!(answers.iter().all(|(status, job)| matches!(status, 200 | 201) && job["id"] == answers[0].1["id"]));
        assert_eq!(created, 1);
    }
    assert_eq!(serving.end_by(Signal::SIGTERM).await.status.code(), Some(0));
}

#[tokio::test]
async fn ctrl_c_ends_a_run_with_all_its_processes() {
    for example in ["export", "orders"] {
        let mut running = Started::of(program(example).await);
        running.lines.next_line().await.expect("its output").expect("a first line");
        // The pipe of the relay's errors is ours: the output ends when the relay has ended as well.
        let output = running.end_by(Signal::SIGINT).await;
        assert_eq!(output.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&output.stderr).contains("interrupted"), "{output:?}");
    }
}

/// What it has told, if it ended well.
fn story(output: &Output) -> String {
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{said}\n{errors}");
    said.into_owned()
}

/// A number of the table.
fn number(said: &str, what: &str) -> u64 {
    let line = said.lines().find_map(|line| line.trim_start().strip_prefix(what)?.strip_prefix("  "));
    let number = line.and_then(|line| line.split_whitespace().next()).and_then(|number| number.parse().ok());
    number.unwrap_or_else(|| panic!("no number for {what:?} in:\n{said}"))
}

async fn post(url: &str, key: Option<&str>, body: &'static str) -> (u16, Value) {
    let mut request = ureq::post(format!("{url}/exports")).header("Content-Type", "application/json");
    if let Some(key) = key {
        request = request.header("Idempotency-Key", key);
    }
    let request = request.config().http_status_as_error(false).timeout_global(Some(LIMIT)).build();
    tokio::task::spawn_blocking(move || answer(request.send(body).expect("an answer"))).await.expect("no panic")
}

async fn get(url: &str) -> (u16, Value) {
    let request = ureq::get(url).config().http_status_as_error(false).timeout_global(Some(LIMIT)).build();
    tokio::task::spawn_blocking(move || answer(request.call().expect("an answer"))).await.expect("no panic")
}

fn answer(mut response: ureq::http::Response<ureq::Body>) -> (u16, Value) {
    (response.status().as_u16(), response.body_mut().read_json().expect("JSON"))
}

/// An example that runs.
struct Started {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Started {
    fn of(mut command: Command) -> Started {
        let mut child = command.spawn().expect("it starts");
        let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        Started { child, lines }
    }

    async fn url(&mut self) -> String {
        let line = self.lines.next_line().await.expect("its output").expect("a first line");
        let url = line.split_whitespace().find(|word| word.starts_with("http://"));
        url.unwrap_or_else(|| panic!("no URL in {line:?}")).to_owned()
    }

    /// Sends the signal and waits for the end of the process and of everything it has started.
    async fn end_by(self, signal: Signal) -> Output {
        let pid = self.child.id().expect("it runs").cast_signed();
        kill(Pid::from_raw(pid), signal).expect("it is there");
        let mut stdout = self.lines.into_inner();
        let mut rest = Vec::new();
        let ending = async {
            let (output, rest) = tokio::join!(self.child.wait_with_output(), stdout.read_to_end(&mut rest));
            rest.expect("its output");
            output.expect("its end")
        };
        tokio::time::timeout(LIMIT, ending).await.expect("it ends when asked")
    }
}

/// `cargo run --bin …`, with nothing else.
async fn cargo_run(example: &str) -> Output {
    built().await;
    let mut command = cargo();
    command.args(["run", "--quiet", "--bin", example]);
    ended(command).await
}

async fn ended(mut command: Command) -> Output {
    tokio::time::timeout(LIMIT, command.output()).await.expect("it ends by itself").expect("it runs")
}

/// The built example, to be sent signals to, which cargo would keep.
async fn program(example: &str) -> Command {
    quiet(Command::new(built().await.join(example)))
}

/// Builds both; the folder they are in.
async fn built() -> &'static Path {
    static FOLDER: OnceCell<PathBuf> = OnceCell::const_new();
    FOLDER
        .get_or_init(async || {
            let mut command = cargo();
            command.args(["build", "--quiet", "--bin", "export", "--bin", "orders", "--message-format", "json"]);
            let output = command.output().await.expect("cargo runs");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            let messages = output.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
            let executable = messages
                .filter_map(|line| serde_json::from_slice::<Value>(line).ok())
                .find_map(|message| message["executable"].as_str().map(PathBuf::from));
            executable.expect("an executable").parent().expect("in a folder").to_owned()
        })
        .await
}

fn cargo() -> Command {
    let mut command = quiet(Command::new(env!("CARGO")));
    command.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    command
}

/// With its output to read, and the servers that it starts for itself.
fn quiet(mut command: Command) -> Command {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .env_remove(DATABASE_URL)
        .env_remove(NATS_URL)
        .env_remove("RUST_LOG")
        .kill_on_drop(true);
    command
}

const COURSES: &str = r#"{"tenant":"academy","dataset":"courses","rows":7}"#;
const COURSES_SAID_OTHERWISE: &str = r#"{ "rows": 7, "dataset": "courses", "tenant": "academy" }"#;
const LIMIT: Duration = Duration::from_secs(180);
