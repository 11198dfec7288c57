//! Who runs the servers. PostgreSQL refuses root, so root hands them to another user.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use nix::unistd::{Uid, User};

use super::Error;

/// The user the servers run as.
#[derive(Debug, Clone)]
pub(super) enum Runner {
    /// The user of this process.
    Same,
    /// Another one, because this process is root's.
    Other { uid: u32, gid: u32, name: String },
}

impl Runner {
    pub(super) fn choose() -> Result<Runner, Error> {
        if !Uid::effective().is_root() {
            return Ok(Runner::Same);
        }
        ["postgres", "nobody"]
            .into_iter()
            .find_map(|name| User::from_name(name).ok().flatten())
            .map(|user| Runner::Other { uid: user.uid.as_raw(), gid: user.gid.as_raw(), name: user.name })
            .ok_or(Error::NoUnprivilegedUser)
    }

    /// A command that will run as this user, in the root folder and with nothing of our environment but what finding
    /// libraries needs: it may hold credentials, and `PG…` variables change what PostgreSQL's programs do.
    pub(super) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.env_clear().current_dir("/").env("LC_ALL", "C").env("TZ", "UTC");
        for kept in ["PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"] {
            if let Some(value) = std::env::var_os(kept) {
                command.env(kept, value);
            }
        }
        if let Runner::Other { uid, gid, .. } = self {
            command.uid(*uid).gid(*gid);
        }
        command
    }

    /// Makes the file or folder this user's.
    pub(super) fn own(&self, path: &Path) -> Result<(), Error> {
        match self {
            Runner::Same => Ok(()),
            Runner::Other { uid, gid, .. } => std::os::unix::fs::chown(path, Some(*uid), Some(*gid))
                .map_err(Error::file("hand over to the servers' user the path", path)),
        }
    }

    pub(super) fn name(&self) -> String {
        match self {
            Runner::Same => "this user".to_owned(),
            Runner::Other { name, .. } => format!("the user `{name}`, as which root runs it,"),
        }
    }
}
