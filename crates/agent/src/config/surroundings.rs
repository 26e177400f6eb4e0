//! Checks the effective configuration against the node, whether it comes from the file, the command
//! line or the defaults: the group exists, directories are writable, the address belongs to this
//! machine.
//!
//! Only for `--check-config`. A running agent meets these problems one by one, and tolerates some.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::net::TcpListener;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use farrier_hardware::access::may_write;

use super::section::near;
use super::{Config, Lines, Listen, Problem};
use crate::orders::host::MARK;
use crate::orders::journal;
use crate::orders::task::ALIVE;
use crate::uplink::Keep;

/// Maximum length of a Unix socket path, without its NUL (`sun_path`, unix(7)).
const SOCKET_PATH_BYTES_MAX: usize = 107;

const GROUPS: &str = "/etc/group";

/// Keys set by a flag, and the flag.
pub(crate) type Flags = BTreeMap<&'static str, &'static str>;

/// Problems of the effective configuration. `lines` has the keys in the file, which flags override.
pub(crate) fn look_around(config: &Config, lines: &Lines, flags: &Flags) -> Vec<Problem> {
    let socket = &config.socket;
    let shown = |path: &Path| format!("\"{}\"", path.display());
    let looks: [(&str, String, Option<String>); 9] = [
        ("state_dir", shown(&config.state_dir), folder(&config.state_dir)),
        ("listen", listen_text(config.listen), listen(config)),
        ("root", shown(&config.root), root(&config.root)),
        ("nvml", config.nvml.as_deref().map(shown).unwrap_or_default(), nvml(config)),
        ("cuda", config.cuda.as_deref().map(shown).unwrap_or_default(), cuda(config)),
        ("socket.path", shown(&socket.path), socket_path(&socket.path)),
        ("socket.group", quoted(socket.group.as_deref()), group(socket.group.as_deref())),
        (
            "sink.file",
            config.sink.file.as_deref().map(shown).unwrap_or_default(),
            config.sink.file.as_deref().and_then(|path| sink(path, &config.state_dir)),
        ),
        ("server.identity", shown(&config.server.identity), identity(config)),
    ];
    let wrong = looks.into_iter().filter_map(|(key, value, wrong)| {
        let flag = flags.get(key).copied();
        let line = lines.get(key).copied().filter(|_| flag.is_none()).unwrap_or(0);
        Some(Problem { line, key: flag.unwrap_or(key).to_owned(), value, expected: wrong? })
    });
    wrong.collect()
}

/// Checks the node's identity if a server with TLS is configured.
fn identity(config: &Config) -> Option<String> {
    let url = config.server.parsed_url().filter(|url| !url.is_plain())?;
    let keep = Keep::new(&config.server.identity, config.server.ca.as_deref());
    let err = keep.check().err()?;
    Some(format!(
        "{}; expected what `farrier agent enrol --server {url}` leaves there",
        crate::monitor::Chain(&err)
    ))
}

fn quoted(text: Option<&str>) -> String {
    format!("\"{}\"", text.unwrap_or_default())
}

fn listen_text(listen: Listen) -> String {
    match listen {
        Listen::Off => quoted(Some("off")),
        Listen::At(address) => quoted(Some(&address.to_string())),
    }
}

/// Checks a directory that the agent creates if it is missing.
fn folder(path: &Path) -> Option<String> {
    let there = path.ancestors().find(|path| fs::symlink_metadata(path).is_ok())?;
    let shown = there.display();
    if !there.is_dir() {
        return Some(format!(
            "`{shown}` is not a folder; expected one that the agent can write to"
        ));
    }
    let what = if there == path { "write to it" } else { "make it" };
    if !may_write(there) {
        return Some(format!(
            "this user may not {what}: `{shown}` is not writable; expected a folder of the agent's user"
        ));
    }
    takes_no_files(there).map(|err| {
        format!("failed to {what}: `{shown}` takes no files: {err}; expected a folder on a disk")
    })
}

/// Why no file can be created in a directory, found by creating one: permission bits do not tell,
/// since even root cannot create files in `/proc`.
fn takes_no_files(folder: &Path) -> Option<io::Error> {
    let path = folder.join(format!(".farrier-check-{}", std::process::id()));
    match fs::OpenOptions::new().write(true).create_new(true).open(&path) {
        Ok(_) => fs::remove_file(&path).err(),
        // The agent starts on a full disk, and reports it.
        Err(err) => (!matches!(err.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded))
            .then_some(err),
    }
}

fn root(path: &Path) -> Option<String> {
    let wrong = !path.is_dir();
    wrong.then(|| {
        "there is no such folder; expected one with the node's /proc, /sys and /dev".to_owned()
    })
}

fn nvml(config: &Config) -> Option<String> {
    let wrong = !config.nvml.as_deref()?.is_file();
    wrong.then(|| "there is no such file; expected NVML's library, libnvidia-ml.so.1".to_owned())
}

fn cuda(config: &Config) -> Option<String> {
    let wrong = !config.cuda.as_deref()?.is_file();
    wrong.then(|| {
        "there is no such file; expected simulated GPUs, as docs/tour/gpus.json".to_owned()
    })
}

/// Tries to bind the address. If it is in use, the running agent or another process has it.
fn listen(config: &Config) -> Option<String> {
    let Listen::At(address) = config.listen else { return None };
    let err = TcpListener::bind(address).err()?;
    match err.kind() {
        ErrorKind::AddrInUse if is_served(&config.socket.path) => None,
        ErrorKind::AddrInUse => Some(format!(
            "port {} is taken by another program; expected a free one",
            address.port()
        )),
        ErrorKind::AddrNotAvailable => {
            Some(format!("{} is no address of this machine; expected one that is", address.ip()))
        }
        ErrorKind::PermissionDenied => Some(format!(
            "this user may not listen on port {}; expected one from 1024",
            address.port()
        )),
        _ => Some(format!("failed to listen there: {err}")),
    }
}

/// Whether an agent answers there, even one that this user may not access.
fn is_served(socket: &Path) -> bool {
    match UnixStream::connect(socket) {
        Ok(_) => true,
        Err(err) => err.kind() == ErrorKind::PermissionDenied,
    }
}

fn socket_path(path: &Path) -> Option<String> {
    let bytes = path.as_os_str().len();
    if bytes > SOCKET_PATH_BYTES_MAX {
        return Some(format!(
            "it has {bytes} bytes; expected at most {SOCKET_PATH_BYTES_MAX}, the most that a socket can have"
        ));
    }
    if fs::symlink_metadata(path).is_ok_and(|meta| !meta.file_type().is_socket()) {
        return Some(
            "something else than a socket is there; expected a path that is free".to_owned(),
        );
    }
    path.parent().and_then(folder)
}

fn group(name: Option<&str>) -> Option<String> {
    let name = name.filter(|name| group_id(name).is_none())?;
    let text = fs::read_to_string(GROUPS).unwrap_or_default();
    let near = near(name, text.lines().filter_map(|line| line.split(':').next()));
    Some(format!("there is no such group; expected one of {GROUPS}, or its number{near}"))
}

fn sink(path: &Path, state_dir: &Path) -> Option<String> {
    if is_agents_own(path, state_dir) {
        return Some("the agent keeps its own state there; expected another file".to_owned());
    }
    if path.is_dir() {
        return Some("this is a folder; expected a file".to_owned());
    }
    let parent = path.parent()?;
    if !parent.is_dir() {
        return Some(format!(
            "there is no folder `{}`; the agent makes only the file",
            parent.display()
        ));
    }
    let place = if path.exists() { path } else { parent };
    let shown = place.display();
    if !may_write(place) {
        return Some(format!(
            "this user may not write to `{shown}`; expected a file that the agent can write"
        ));
    }
    let refused = (place == parent).then(|| takes_no_files(parent)).flatten()?;
    Some(format!("`{shown}` takes no files: {refused}; expected a file on a disk"))
}

/// Whether the path is one of the agent's own files in its state directory.
fn is_agents_own(path: &Path, state_dir: &Path) -> bool {
    let whole = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return false };
    let name = name.to_string_lossy();
    let of_orders = [journal::FILE, journal::LOCK, ALIVE, MARK];
    let own = ["lock", "inventory.json", "hardware.json"].contains(&&*name)
        || of_orders.contains(&&*name)
        || name.starts_with("findings-")
        || name.ends_with(".part");
    own && whole(parent) == whole(state_dir)
}

/// The id of a group, from `/etc/group`.
pub(crate) fn group_id(name: &str) -> Option<u32> {
    if let Ok(id) = name.parse() {
        return Some(id);
    }
    let text = fs::read_to_string(GROUPS).ok()?;
    text.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::super::file::from_text;
    use super::*;

    fn wrong(text: &str) -> Vec<String> {
        wrong_with(text, &Flags::new())
    }

    fn wrong_with(text: &str, flags: &Flags) -> Vec<String> {
        let judgement = from_text(text);
        assert!(judgement.problems.is_empty());
        let wrong = look_around(&judgement.config, &judgement.lines, flags);
        // Whether the default paths are usable depends on the user who runs the tests.
        let usual = Config::default();
        let usual = [usual.state_dir, usual.socket.path];
        let is_usual =
            |said: &String| usual.iter().any(|path| said.contains(path.to_str().unwrap()));
        wrong.iter().map(ToString::to_string).filter(|said| !is_usual(said)).collect()
    }

    #[test]
    fn what_the_node_does_not_have_is_told_with_its_line() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name).display().to_string();
        fs::write(at("file"), "").unwrap();
        let text = format!(
            "state_dir = \"{}\"\nlisten = \"192.0.2.1:9402\"\nroot = \"/nonexistent\"\nnvml = \"/nonexistent\"\n\
             cuda = \"/nonexistent\"\n[socket]\npath = \"{}\"\ngroup = \"rooot\"\n[sink]\nfile = \"{}\"\n",
            at("file/state"),
            at("file"),
            at("none/sink.jsonl")
        );
        let wrong = wrong(&text);
        let parts = [
            ("line 1: `state_dir = ", "is not a folder"),
            ("line 2: `listen = \"192.0.2.1:9402\"`", "no address of this machine"),
            ("line 3: `root", "no such folder"),
            ("line 4: `nvml", "no such file"),
            ("line 5: `cuda", "no such file"),
            ("line 7: `socket.path", "else than a socket"),
            ("line 8: `socket.group = \"rooot\"`", "did you mean `root`?"),
            ("line 10: `sink.file", "there is no folder"),
        ];
        assert_eq!(wrong.len(), parts.len(), "{wrong:#?}");
        for (said, (begins, contains)) in wrong.iter().zip(parts) {
            assert!(said.starts_with(begins) && said.contains(contains), "{said}");
        }
    }

    #[test]
    fn a_sink_that_is_a_folder_a_long_socket_and_a_taken_port_are_wrong() {
        let folder = tempfile::tempdir().unwrap();
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let path = format!("/tmp/{}", "a".repeat(200));
        let text = format!(
            "listen = \"{}\"\n[socket]\npath = \"{path}\"\n[sink]\nfile = \"{}\"\n",
            taken.local_addr().unwrap(),
            folder.path().display()
        );
        let wrong = wrong(&text).join("\n");
        assert!(wrong.contains("is taken by another program"), "{wrong}");
        assert!(wrong.contains("it has 205 bytes"), "{wrong}");
        assert!(wrong.contains("this is a folder; expected a file"), "{wrong}");
    }

    #[test]
    fn a_sink_that_is_a_file_of_the_agents_own_is_wrong() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().display();
        let names = ["lock", "inventory.json", "findings-000009.jsonl", "hardware.part"];
        for (name, is_wrong) in names.map(|name| (name, true)).into_iter().chain([("x", false)]) {
            let sink = format!("{dir}/../{}/{name}", folder.path().file_name().unwrap().display());
            let wrong = wrong(&format!("state_dir = \"{dir}\"\n[sink]\nfile = \"{sink}\"\n"));
            assert_eq!(
                wrong.concat().contains("keeps its own state"),
                is_wrong,
                "{name}: {wrong:?}"
            );
        }
    }

    #[test]
    fn what_is_right_is_not_wrong() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name).display().to_string();
        let text = format!(
            "state_dir = \"{}\"\nlisten = \"127.0.0.1:0\"\n[socket]\npath = \"{}\"\ngroup = \"root\"\n[sink]\nfile = \"{}\"\n",
            at("new/state"),
            at("new/agent.sock"),
            at("sink.jsonl")
        );
        assert_eq!(wrong(&text), [""; 0]);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "what is tried does not stay");
        assert!(!folder.path().join("new").exists(), "looking makes nothing");
    }

    #[test]
    fn a_folder_that_root_may_write_to_and_that_takes_nothing_is_wrong() {
        let text =
            "listen = \"off\"\nstate_dir = \"/proc/x\"\n[sink]\nfile = \"/proc/sink.jsonl\"\n";
        let wrong = wrong(text);
        assert_eq!(wrong.len(), 2, "{wrong:#?}");
        assert!(wrong[0].starts_with("line 2: `state_dir = \"/proc/x\"`: "), "{wrong:#?}");
        assert!(wrong[1].starts_with("line 4: `sink.file = \"/proc/sink.jsonl\"`: "), "{wrong:#?}");
    }

    #[test]
    fn defaults_and_flags_are_looked_at_and_named_as_such() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let text = format!("root = \"/nonexistent\"\nlisten = \"{address}\"\n");
        let flags = Flags::from([("root", "--root"), ("listen", "--listen")]);
        let wrong = wrong_with(&text, &flags);
        assert_eq!(wrong.len(), 2, "{wrong:#?}");
        assert!(wrong[0].starts_with(&format!("`--listen \"{address}\"`: ")), "{wrong:#?}");
        assert!(wrong[1].starts_with("`--root \"/nonexistent\"`: there is no"), "{wrong:#?}");
        let config =
            Config { root: "/nonexistent".into(), listen: Listen::Off, ..Config::default() };
        let wrong = look_around(&config, &Lines::new(), &Flags::new());
        let said: Vec<String> = wrong.iter().map(ToString::to_string).collect();
        let root = "`root = \"/nonexistent\"`, the default: there is no such folder";
        assert!(said.iter().any(|said| said.starts_with(root)), "{said:#?}");
    }
}
