//! `tidings migrate`

use std::error::Error;
use std::io::Write;

use crate::postgres::{self, Database, LATEST, Migration};
use crate::services::DATABASE_URL;

/// Bring the schema `tidings` of a database up to date, print its SQL, or undo it.
///
/// All steps run in one transaction, and it says which it applied. Your own tables and your own migrations are not
/// touched. Running it again, or from several places at once, does no harm.
///
/// The role needs the right to create a schema in the database (GRANT CREATE ON DATABASE … TO …), or to own the schema
/// `tidings`. What a service needs afterwards is less: see migrations/README.md.
///
/// Exit codes: 0 done, or nothing to do; 1 failed, and nothing was changed; 2 wrong arguments.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The database, postgres://user:password@host:port/name. The variable keeps the password out of the process list.
    #[arg(
        long,
        value_name = "URL",
        env = DATABASE_URL,
        hide_env_values = true,
        required_unless_present = "print"
    )]
    database_url: Option<String>,

    /// How many partitions a new database gets, 1 to 1024 [default: 4]. One that has another number is refused.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    partitions: Option<u16>,

    /// Print the SQL of all migrations as one script, and do nothing.
    #[arg(long)]
    print: bool,

    /// Undo the steps above version N instead; 0 undoes all. Removes their tables and every event in them: needs --yes.
    #[arg(long, value_name = "N", conflicts_with_all = ["partitions", "print"], value_parser = clap::value_parser!(i32).range(0..))]
    revert_to: Option<i32>,

    /// Yes, remove what --revert-to removes, published or not.
    #[arg(long, requires = "revert_to")]
    yes: bool,
}

/// Prints, reverts or applies.
pub(crate) fn run(arguments: Arguments) -> Result<(), Box<dyn Error>> {
    let mut out = std::io::stdout().lock();
    if arguments.print {
        return Ok(out.write_all(postgres::script(arguments.partitions)?.as_bytes())?);
    }
    let url = arguments.database_url.unwrap_or_default();
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let database = Database::url(&url);
    let Some(target) = arguments.revert_to else {
        let database = arguments.partitions.into_iter().fold(database, Database::partitions);
        let applied = runtime.block_on(postgres::migrate(&database)).map_err(|error| explain(error, &url))?;
        return say(&mut out, "applied", &applied, &format!("the schema `tidings` is at version {LATEST} or newer"));
    };
    if !arguments.yes {
        return Err(format!(
            "--revert-to {target} removes the tables of every version above {target} {}, with all events in them, those not yet published too. Nothing was done. If that is what you want, say it again with --yes",
            place(&url)
        )
        .into());
    }
    let undone = runtime.block_on(postgres::revert(&database, target)).map_err(|error| explain(error, &url))?;
    say(&mut out, "reverted", &undone, &format!("the schema `tidings` has no version above {target}"))
}

fn say(out: &mut impl Write, done: &str, steps: &[&Migration], otherwise: &str) -> Result<(), Box<dyn Error>> {
    for step in steps {
        writeln!(out, "{done} {:04} {}", step.version, step.name)?;
    }
    if steps.is_empty() {
        writeln!(out, "nothing to do: {otherwise}")?;
    }
    Ok(())
}

/// What failed, where, and that nothing was changed.
pub(super) fn explain(error: postgres::Error, url: &str) -> Box<dyn Error> {
    let remedy = match &error {
        postgres::Error::Connect(_) | postgres::Error::ConnectTimeout | postgres::Error::NoAnswer => {
            "check the URL, that the server runs, and that it is reachable from here"
        }
        postgres::Error::Query(_) => "it is one transaction, so nothing was changed",
        postgres::Error::Schema(_)
        | postgres::Error::PoolExhausted
        | postgres::Error::Restarted
        | postgres::Error::Stopping => {
            return format!("{error} ({})", place(url)).into();
        }
    };
    format!("{error} ({}); {remedy}", place(url)).into()
}

/// Which database is meant, without the password.
pub(super) fn place(url: &str) -> String {
    use tokio_postgres::config::Host;

    let Ok(config) = url.parse::<tokio_postgres::Config>() else { return "in the database of --database-url".into() };
    let host = match config.get_hosts().first() {
        Some(Host::Tcp(host)) => host.clone(),
        #[cfg(unix)]
        Some(Host::Unix(path)) => path.display().to_string(),
        None => "no host".into(),
    };
    let port = config.get_ports().first().copied().unwrap_or(5432);
    let (name, user) = (config.get_dbname().unwrap_or("?"), config.get_user().unwrap_or("?"));
    format!("in database {name:?} at {host}:{port}, as {user:?}")
}
