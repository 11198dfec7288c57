//! The watchdog: a small shell that ends a server when its owner is gone.
//!
//! No signal handler can do that: the host program may have its own, and nothing runs after `kill -9` or an abort. The
//! watchdog holds the reading end of a pipe whose writing end only the owner has; the kernel closes it whatever the
//! owner dies of. It stands in a process group of its own, so that the terminal's Ctrl-C passes it by, and has none of
//! the owner's output open, so that nobody waits for it to close.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::Error;

/// Ends the server in `folder` and removes the folder when this process dies.
#[derive(Debug)]
pub(super) struct Watchdog {
    shell: Child,
}

impl Watchdog {
    pub(super) fn start(folder: &Path) -> Result<Watchdog, Error> {
        let shell = Command::new("/bin/sh")
            .args(["-c", include_str!("watchdog.sh"), "tidings-watchdog"])
            .env("TIDINGS_FOLDER", folder)
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(Error::file("start the watchdog with", Path::new("/bin/sh")))?;
        Ok(Watchdog { shell })
    }
}

impl Drop for Watchdog {
    /// Sends it away: the owner has cleaned up itself.
    fn drop(&mut self) {
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}
