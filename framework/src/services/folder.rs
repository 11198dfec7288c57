//! Where a server's data lives: a folder with an owner, removed with it, or by the next start.
//!
//! `<temporary folder>/tidings-services-<uid>/<kind>-<id>/` holds `owner.lock`, which the owning process keeps locked
//! for as long as it lives, `port`, the server's `log`, and its configuration and data.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::ops::RangeInclusive;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::unistd::Uid;
use uuid::Uuid;

use super::{Error, process};

/// A server's own folder.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    port: u16,
    /// Locked while this process lives; the kernel lets go of it whatever the process dies of.
    _lock: File,
}

impl Folder {
    /// Makes a folder and gives its server a port, after removing what processes that died left behind.
    ///
    /// One start of this user at a time does this, so nobody sees a folder without its lock, and no two servers, nor
    /// one that is stopped for a while, get the same port.
    pub(super) fn create(kind: &str, program: &'static str, port: Option<u16>) -> Result<Folder, Error> {
        let base = base()?;
        let _turn = lock(&base.join("turn.lock"))?;
        let taken = sweep(&base);
        let port = choose_port(program, port, &taken)?;

        let id = Uuid::new_v4().simple().to_string();
        let path = base.join(format!("{kind}-{}", &id[..16]));
        make_folder(&path, 0o711)?;
        let lock = lock(&path.join("owner.lock"))?;
        let port_file = path.join("port");
        fs::write(&port_file, port.to_string()).map_err(Error::file("write", &port_file))?;
        Ok(Folder { path, port, _lock: lock })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// The folder's name, which every process of its server bears in its command line.
    pub(super) fn id(&self) -> &str {
        self.path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
    }

    /// The server's log, opened to be written to by the server.
    pub(super) fn log(&self) -> Result<File, Error> {
        let path = self.path.join("log");
        OpenOptions::new().create(true).append(true).mode(0o600).open(&path).map_err(Error::file("open", &path))
    }

    /// The last lines of the log.
    pub(super) fn end_of_log(&self) -> String {
        let log = fs::read(self.path.join("log")).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = remove(&self.path) {
            tracing::warn!(folder = %self.path.display(), %error, "cannot remove a private server's folder; the next start tries again");
        }
    }
}

/// Creates a folder with exactly these permissions.
pub(super) fn make_folder(path: &Path, mode: u32) -> Result<(), Error> {
    DirBuilder::new().recursive(true).mode(mode).create(path).map_err(Error::file("create the folder", path))?;
    fs::set_permissions(path, Permissions::from_mode(mode)).map_err(Error::file("set the permissions of", path))
}

/// Creates a file that only `mode` lets read, with this text in it.
pub(super) fn write_private(path: &Path, text: &str) -> Result<(), Error> {
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .and_then(|mut file| io::Write::write_all(&mut file, text.as_bytes()))
        .map_err(Error::file("write", path))
}

/// Refuses a folder that belongs to neither this user nor root: its owner could replace what is in it.
pub(super) fn check_owner(path: &Path, variable: &'static str) -> Result<(), Error> {
    let owner = fs::symlink_metadata(path).map_err(Error::file("look at", path))?;
    if !owner.is_dir() {
        let source = io::Error::from(io::ErrorKind::NotADirectory);
        return Err(Error::File { doing: "use as a folder", path: path.to_owned(), source });
    }
    if owner.uid() == 0 || owner.uid() == Uid::effective().as_raw() {
        return Ok(());
    }
    Err(Error::ForeignFolder { path: path.to_owned(), owner: owner.uid(), variable })
}

/// Whether every user can get into this folder; root hands files in it to another user.
pub(super) fn everyone_may_enter(path: &Path) -> bool {
    path.ancestors()
        .all(|folder| fs::metadata(folder).map_or(true, |metadata| metadata.permissions().mode() & 0o001 != 0))
}

/// Opens the file and waits until nobody else has it locked.
pub(super) fn lock(path: &Path) -> Result<File, Error> {
    let file = open_lock(path).map_err(Error::file("open", path))?;
    file.lock().map_err(Error::file("lock", path))?;
    Ok(file)
}

/// The folder that all of this user's servers have theirs in.
pub(super) fn base() -> Result<PathBuf, Error> {
    let mut temporary = std::env::temp_dir();
    if Uid::effective().is_root() && !everyone_may_enter(&temporary) {
        temporary = PathBuf::from("/tmp");
    }
    let temporary = std::path::absolute(&temporary).map_err(Error::file("use the temporary folder", &temporary))?;
    let base = temporary.join(format!("tidings-services-{}", Uid::effective()));
    if !base.exists() {
        make_folder(&base, 0o711)?;
    }
    check_owner(&base, "TMPDIR")?;
    Ok(base)
}

/// Ends the servers and removes the folders of owners that are gone. Answers with the ports of those still there.
fn sweep(base: &Path) -> Vec<u16> {
    let Ok(entries) = fs::read_dir(base) else { return Vec::new() };
    let folders = entries.flatten().map(|entry| entry.path()).filter(|path| is_a_server_folder(path));
    folders.filter_map(|folder| remove_abandoned(&folder)).collect()
}

/// Removes the folder if its owner is gone; its port if it could not or must not.
fn remove_abandoned(folder: &Path) -> Option<u16> {
    let port = fs::read_to_string(folder.join("port")).ok().and_then(|port| port.parse().ok());
    // No lock file: its owner died before it had locked it, or the watchdog is just removing the folder.
    if let Ok(lock) = File::open(folder.join("owner.lock")) {
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock | TryLockError::Error(_)) => return port,
        }
    }
    let id = folder.file_name().and_then(|name| name.to_str())?;
    tracing::info!(folder = %folder.display(), "removing a private server that its owner left behind");
    let ended = process::end_all(id);
    match remove(folder) {
        Ok(()) if ended => None,
        Ok(()) => {
            tracing::warn!(folder = %folder.display(), "a server that was left behind does not end");
            port
        }
        Err(error) => {
            tracing::warn!(folder = %folder.display(), %error, "cannot remove a folder that was left behind");
            port
        }
    }
}

fn is_a_server_folder(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.split_once('-'));
    path.is_dir() && name.is_some_and(|(kind, id)| KINDS.contains(&kind) && id.len() == 16)
}

/// The port that was asked for, or a free one below those the system gives to outgoing connections: such a connection
/// could otherwise sit on the port of a server that is stopped and will be started again.
fn choose_port(program: &'static str, wanted: Option<u16>, taken: &[u16]) -> Result<u16, Error> {
    let free = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
    if let Some(port) = wanted {
        return if free(port) { Ok(port) } else { Err(Error::PortTaken { program, port }) };
    }
    let (from, to) = (*PORTS.start(), *PORTS.end());
    let count = u32::from(to - from) + 1;
    let seed = Uuid::new_v4().as_u64_pair().0 as u32 % count;
    (0..count)
        .filter_map(|step| u16::try_from(u32::from(from) + (seed + step) % count).ok())
        .find(|port| !taken.contains(port) && free(*port))
        .ok_or(Error::NoFreePort { program, from, to })
}

fn open_lock(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path)
}

/// Removes a folder that may be written to, or be removed by another, at the same time.
fn remove(path: &Path) -> io::Result<()> {
    let mut result = Ok(());
    for _ in 0..REMOVE_TRIES {
        result = fs::remove_dir_all(path);
        match &result {
            Ok(()) => return Ok(()),
            Err(_) if !path.exists() => return Ok(()),
            Err(_) => std::thread::sleep(process::LOOK),
        }
    }
    result
}

/// What server folders' names begin with.
pub(super) const POSTGRES: &str = "postgres";
pub(super) const NATS: &str = "nats";
const KINDS: [&str; 2] = [POSTGRES, NATS];
const PORTS: RangeInclusive<u16> = 20_000..=31_999;
const LOG_LINES: usize = 20;
const REMOVE_TRIES: u32 = 40;
