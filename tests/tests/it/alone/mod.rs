//! `tidings relay`: a relay for services that host none.

mod cli;
mod ends;
mod serves;

use std::fmt::Write as _;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use diesel::sql_types::BigInt;
use diesel_async::{AsyncConnection, AsyncPgConnection, RunQueryDsl, SimpleAsyncConnection};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tidings::testing::{self, TestDatabase};
use tidings_tests::eventually;

/// `tidings relay` in a process of its own. It is killed when dropped, and what it said is printed if the test fails.
struct Alone {
    child: Child,
    said: Arc<Mutex<Vec<u8>>>,
    _file: Option<tempfile::NamedTempFile>,
}

impl Alone {
    /// With a file.
    fn with(config: &str, variables: &[(&str, &str)]) -> Alone {
        let file = file(config);
        let mut command = tidings(&["--config", &file.path().display().to_string()], variables);
        Alone::spawn(&mut command, Some(file))
    }

    /// Without one.
    fn plain(arguments: &[&str], variables: &[(&str, &str)]) -> Alone {
        Alone::spawn(&mut tidings(arguments, variables), None)
    }

    fn spawn(command: &mut Command, file: Option<tempfile::NamedTempFile>) -> Alone {
        let mut child =
            command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it is built with the tests");
        let said: Arc<Mutex<Vec<u8>>> = Arc::default();
        let (mut pipe, heard) = (child.stderr.take().expect("it is piped"), Arc::clone(&said));
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = pipe.read(&mut bytes) {
                heard.lock().unwrap().extend_from_slice(&bytes[..count]);
            }
        });
        Alone { child, said, _file: file }
    }

    fn log(&self) -> String {
        String::from_utf8_lossy(&self.said.lock().unwrap()).into_owned()
    }

    async fn says(&self, what: &str) {
        eventually(&format!("it says {what:?}"), SOON, async || self.log().contains(what).then_some(())).await;
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).expect("the process is there");
    }

    /// Waits until it has ended, and returns with which code.
    async fn ended(&mut self) -> Option<i32> {
        let ended: ExitStatus =
            eventually("the process ends", SOON, async || self.child.try_wait().expect("a child of ours")).await;
        ended.code()
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- tidings relay {}\n{}", self.child.id(), self.log());
        }
    }
}

/// The program with these arguments, and no more in its environment than that.
fn tidings(arguments: &[&str], variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_services_role"));
    command.args(["cli", "relay"]).args(arguments).stdin(Stdio::null());
    for inherited in ["TIDINGS_DATABASE_URL", "TIDINGS_NATS_URL", "TIDINGS_SOURCE", "TIDINGS_CONFIG", "RUST_LOG"] {
        command.env_remove(inherited);
    }
    command.envs(variables.iter().copied());
    command
}

fn output(arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    tidings(arguments, variables).output().expect("it runs")
}

fn file(config: &str) -> tempfile::NamedTempFile {
    let file = tempfile::Builder::new().prefix("tidings").suffix(".toml").tempfile().expect("a file");
    std::fs::write(file.path(), config).expect("it can be written");
    file
}

/// The part of a file for these databases, whose URLs stand in `URL_0`, `URL_1`, …
fn databases(sources: &[&str]) -> String {
    sources.iter().enumerate().fold(String::new(), |mut config, (n, source)| {
        let _ = writeln!(config, "[[database]]\nsource = \"{source}\"\nurl_env = \"URL_{n}\"\nrelay.lease = \"3s\"");
        config
    })
}

/// The example's producer in plain SQL.
async fn psql_appends(database: &TestDatabase, order: &str) {
    let postgres = &testing::servers().postgres;
    let beside = postgres.binary().parent().map(PathBuf::from).unwrap_or_default();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(std::iter::once(beside).chain(std::env::split_paths(&path))).expect("a path");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/producers/orders.sh");
    let mut command = tokio::process::Command::new("sh");
    command.args([script, order, "1200"]).env("PATH", path).env("DATABASE_URL", database.url());
    let output = command.output().await.expect("there is a shell");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Waits until a query with one number answers this.
async fn becomes(database: &TestDatabase, sql: &str, wanted: i64) {
    let mut conn = AsyncPgConnection::establish(database.url()).await.unwrap();
    let sql = format!("SELECT ({sql}) AS number");
    eventually(&format!("{wanted} for {sql}"), SOON, async || {
        let found: Number = diesel::sql_query(&sql).get_result(&mut conn).await.unwrap();
        (found.number == wanted).then_some(())
    })
    .await;
}

async fn execute(database: &TestDatabase, sql: &str) {
    AsyncPgConnection::establish(database.url()).await.unwrap().batch_execute(sql).await.unwrap();
}

#[derive(diesel::QueryableByName)]
struct Number {
    #[diesel(sql_type = BigInt)]
    number: i64,
}

const CONFIRMED: &str = "SELECT count(*) FROM tidings.confirmation";
const OWNED: &str = "SELECT count(*) FROM tidings.partition WHERE owner IS NOT NULL";

/// For what needs a moment on a slow machine; nothing here takes so long when it works.
const SOON: Duration = Duration::from_secs(60);
