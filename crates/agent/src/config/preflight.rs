//! Checks the effective configuration against the node: the group exists, directories are writable,
//! the address belongs to this machine. Covers values from the file, the command line and the
//! defaults.
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
use farrier_notify::ReceiverFiles;

use super::section::near;
use super::{Config, ConfigProblem, KeyLines, Listen};
use crate::orders::journal;
use crate::orders::scheduler::host::CORDON_FILE;
use crate::orders::task::CHANGE_LOCK;
use crate::uplink::IdentityStore;

/// Maximum length of a Unix socket path, without its NUL (`sun_path`, unix(7)).
const SOCKET_PATH_BYTES_MAX: usize = 107;

const GROUPS: &str = "/etc/group";

/// The flag of each key that is set on the command line.
pub(crate) type Flags = BTreeMap<&'static str, &'static str>;

/// Problems of the effective configuration. `lines` has the line of each key in the file, and
/// `flags` the keys that a command-line flag overrides.
pub(crate) fn preflight(config: &Config, lines: &KeyLines, flags: &Flags) -> Vec<ConfigProblem> {
    let socket = &config.socket;
    let quote_path = |path: &Path| format!("\"{}\"", path.display());
    let checks: [(&str, String, Option<String>); 9] = [
        ("state_dir", quote_path(&config.state_dir), directory(&config.state_dir)),
        ("listen", listen_text(config.listen), listen(config)),
        ("root", quote_path(&config.root), root(&config.root)),
        ("nvml", config.nvml.as_deref().map(quote_path).unwrap_or_default(), nvml(config)),
        ("cuda", config.cuda.as_deref().map(quote_path).unwrap_or_default(), cuda(config)),
        ("socket.path", quote_path(&socket.path), socket_path(&socket.path)),
        ("socket.group", quoted(socket.group.as_deref()), group(socket.group.as_deref())),
        (
            "sink.file",
            config.sink.file.as_deref().map(quote_path).unwrap_or_default(),
            config.sink.file.as_deref().and_then(|path| sink(path, &config.state_dir)),
        ),
        ("server.identity", quote_path(&config.server.identity), identity(config)),
    ];
    let problems = checks.into_iter().filter_map(|(key, value, problem)| {
        let flag = flags.get(key).copied();
        let line = lines.get(key).copied().filter(|_| flag.is_none()).unwrap_or(0);
        Some(ConfigProblem { line, key: flag.unwrap_or(key).to_owned(), value, expected: problem? })
    });
    problems.chain(hooks(config, lines)).collect()
}

/// Checks the receivers of the hooks: templates, and files with secrets. Root writes the agent's
/// configuration, so a hook may use any program and file.
fn hooks(config: &Config, lines: &KeyLines) -> Vec<ConfigProblem> {
    let problems = config.hooks.iter().enumerate().flat_map(|(index, hook)| {
        let line = lines.get(&format!("hook[{index}].name")).copied().unwrap_or(0);
        farrier_notify::check(&hook.receiver, &ReceiverFiles::Any).into_iter().map(move |problem| {
            ConfigProblem {
                line,
                key: format!("hook.{}.{}", hook.name, problem.key),
                value: String::new(),
                expected: crate::monitor::Chain(&problem.err).to_string(),
            }
        })
    });
    problems.collect()
}

/// Checks the node's identity if a server with TLS is configured.
fn identity(config: &Config) -> Option<String> {
    let url = config.server.parsed_url().filter(|url| !url.is_plain())?;
    let identity_store = IdentityStore::new(&config.server.identity, config.server.ca.as_deref());
    let err = identity_store.check().err()?;
    Some(format!(
        "{}; expected the identity that `farrier agent enrol --server {url}` stores there",
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
fn directory(path: &Path) -> Option<String> {
    let existing = path.ancestors().find(|path| fs::symlink_metadata(path).is_ok())?;
    let shown = existing.display();
    if !existing.is_dir() {
        return Some(format!(
            "`{shown}` is not a directory; expected one that the agent can write to"
        ));
    }
    let action = if existing == path { "write to it" } else { "create it" };
    if !may_write(existing) {
        return Some(format!(
            "this user may not {action}: `{shown}` is not writable; expected a directory of the agent's user"
        ));
    }
    create_file_error(existing).map(|err| {
        format!(
            "failed to {action}: no file can be created in `{shown}`: {err}; expected a directory on a disk"
        )
    })
}

/// Why no file can be created in a directory. Creates one to find out, because permission bits do
/// not tell: even root cannot create files in `/proc`.
fn create_file_error(dir: &Path) -> Option<io::Error> {
    let path = dir.join(format!(".farrier-check-{}", std::process::id()));
    match fs::OpenOptions::new().write(true).create_new(true).open(&path) {
        Ok(_) => fs::remove_file(&path).err(),
        // A full disk is not a problem of the configuration: the agent starts, and reports it.
        Err(err) => (!matches!(err.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded))
            .then_some(err),
    }
}

fn root(path: &Path) -> Option<String> {
    let missing = !path.is_dir();
    missing
        .then(|| "no such directory; expected one with the node's /proc, /sys and /dev".to_owned())
}

fn nvml(config: &Config) -> Option<String> {
    let missing = !config.nvml.as_deref()?.is_file();
    missing.then(|| "no such file; expected NVML's library, libnvidia-ml.so.1".to_owned())
}

fn cuda(config: &Config) -> Option<String> {
    let missing = !config.cuda.as_deref()?.is_file();
    missing.then(|| "no such file; expected simulated GPUs, as in docs/tour/gpus.json".to_owned())
}

/// Tries to bind the address. If the address is in use while an agent serves the socket, assumes
/// that this agent uses it.
fn listen(config: &Config) -> Option<String> {
    let Listen::At(address) = config.listen else { return None };
    let err = TcpListener::bind(address).err()?;
    match err.kind() {
        ErrorKind::AddrInUse if is_served(&config.socket.path) => None,
        ErrorKind::AddrInUse => Some(format!(
            "port {} is in use by another program; expected a free one",
            address.port()
        )),
        ErrorKind::AddrNotAvailable => {
            Some(format!("{} is not an address of this machine", address.ip()))
        }
        ErrorKind::PermissionDenied => Some(format!(
            "this user may not listen on port {}; expected one from 1024",
            address.port()
        )),
        _ => Some(format!("failed to listen there: {err}")),
    }
}

/// `true` if an agent listens on the socket, even if this user may not connect to it.
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
            "it has {bytes} bytes; expected at most {SOCKET_PATH_BYTES_MAX}, the limit of a socket path"
        ));
    }
    if fs::symlink_metadata(path).is_ok_and(|meta| !meta.file_type().is_socket()) {
        return Some("the path exists and is not a socket; expected a free path".to_owned());
    }
    path.parent().and_then(directory)
}

fn group(name: Option<&str>) -> Option<String> {
    let name = name.filter(|name| group_id(name).is_none())?;
    let text = fs::read_to_string(GROUPS).unwrap_or_default();
    let near = near(name, text.lines().filter_map(|line| line.split(':').next()));
    Some(format!("no such group; expected one of {GROUPS}, or its number{near}"))
}

fn sink(path: &Path, state_dir: &Path) -> Option<String> {
    if is_agent_file(path, state_dir) {
        return Some("the agent stores its own state there; expected another file".to_owned());
    }
    if path.is_dir() {
        return Some("this is a directory; expected a file".to_owned());
    }
    let parent = path.parent()?;
    if !parent.is_dir() {
        return Some(format!(
            "no such directory `{}`; the agent creates only the file",
            parent.display()
        ));
    }
    let target = if path.exists() { path } else { parent };
    let shown = target.display();
    if !may_write(target) {
        return Some(format!(
            "this user may not write to `{shown}`; expected a file that the agent can write"
        ));
    }
    let err = (target == parent).then(|| create_file_error(parent)).flatten()?;
    Some(format!("failed to create a file in `{shown}`: {err}; expected a file on a disk"))
}

/// `true` if the path is one of the agent's own files in its state directory.
fn is_agent_file(path: &Path, state_dir: &Path) -> bool {
    let canonical = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return false };
    let name = name.to_string_lossy();
    let order_files = [journal::FILE, journal::LOCK, CHANGE_LOCK, CORDON_FILE];
    let own = ["lock", "inventory.json", "hardware.json", crate::hooks::FILE].contains(&&*name)
        || order_files.contains(&&*name)
        || name.starts_with("findings-")
        || name.ends_with(".part");
    own && canonical(parent) == canonical(state_dir)
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

    fn problems(text: &str) -> Vec<String> {
        problems_with(text, &Flags::new())
    }

    fn problems_with(text: &str, flags: &Flags) -> Vec<String> {
        let parsed = from_text(text);
        assert!(parsed.problems.is_empty());
        let problems = preflight(&parsed.config, &parsed.lines, flags);
        // Whether the default paths are usable depends on the user who runs the tests.
        let defaults = Config::default();
        let default_paths = [defaults.state_dir, defaults.socket.path];
        let is_default =
            |line: &String| default_paths.iter().any(|path| line.contains(path.to_str().unwrap()));
        problems.iter().map(ToString::to_string).filter(|line| !is_default(line)).collect()
    }

    #[test]
    fn problems_with_the_node_are_reported_with_their_line() {
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
        let lines = problems(&text);
        let parts = [
            ("line 1: `state_dir = ", "is not a directory"),
            ("line 2: `listen = \"192.0.2.1:9402\"`", "not an address of this machine"),
            ("line 3: `root", "no such directory"),
            ("line 4: `nvml", "no such file"),
            ("line 5: `cuda", "no such file"),
            ("line 7: `socket.path", "not a socket"),
            ("line 8: `socket.group = \"rooot\"`", "did you mean `root`?"),
            ("line 10: `sink.file", "no such directory"),
        ];
        assert_eq!(lines.len(), parts.len(), "{lines:#?}");
        for (line, (prefix, contains)) in lines.iter().zip(parts) {
            assert!(line.starts_with(prefix) && line.contains(contains), "{line}");
        }
    }

    #[test]
    fn a_directory_as_sink_a_long_socket_path_and_a_used_port_are_reported() {
        let folder = tempfile::tempdir().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let path = format!("/tmp/{}", "a".repeat(200));
        let text = format!(
            "listen = \"{}\"\n[socket]\npath = \"{path}\"\n[sink]\nfile = \"{}\"\n",
            listener.local_addr().unwrap(),
            folder.path().display()
        );
        let text = problems(&text).join("\n");
        assert!(text.contains("is in use by another program"), "{text}");
        assert!(text.contains("it has 205 bytes"), "{text}");
        assert!(text.contains("this is a directory; expected a file"), "{text}");
    }

    #[test]
    fn a_sink_must_not_be_a_file_of_the_agent() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().display();
        let names = ["lock", "inventory.json", "findings-000009.jsonl", "hardware.part"];
        for (name, is_reported) in names.map(|name| (name, true)).into_iter().chain([("x", false)])
        {
            let sink = format!("{dir}/../{}/{name}", folder.path().file_name().unwrap().display());
            let lines = problems(&format!("state_dir = \"{dir}\"\n[sink]\nfile = \"{sink}\"\n"));
            assert_eq!(
                lines.concat().contains("stores its own state"),
                is_reported,
                "{name}: {lines:?}"
            );
        }
    }

    #[test]
    fn a_valid_configuration_has_no_problems() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name).display().to_string();
        let text = format!(
            "state_dir = \"{}\"\nlisten = \"127.0.0.1:0\"\n[socket]\npath = \"{}\"\ngroup = \"root\"\n[sink]\nfile = \"{}\"\n",
            at("new/state"),
            at("new/agent.sock"),
            at("sink.jsonl")
        );
        assert_eq!(problems(&text), [""; 0]);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "probe files are removed");
        assert!(!folder.path().join("new").exists(), "the check creates nothing");
    }

    #[test]
    fn a_directory_in_which_even_root_cannot_create_files_is_reported() {
        let text =
            "listen = \"off\"\nstate_dir = \"/proc/x\"\n[sink]\nfile = \"/proc/sink.jsonl\"\n";
        let lines = problems(text);
        assert_eq!(lines.len(), 2, "{lines:#?}");
        assert!(lines[0].starts_with("line 2: `state_dir = \"/proc/x\"`: "), "{lines:#?}");
        assert!(lines[1].starts_with("line 4: `sink.file = \"/proc/sink.jsonl\"`: "), "{lines:#?}");
    }

    #[test]
    fn problems_of_defaults_and_flags_name_their_source() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let text = format!("root = \"/nonexistent\"\nlisten = \"{address}\"\n");
        let flags = Flags::from([("root", "--root"), ("listen", "--listen")]);
        let lines = problems_with(&text, &flags);
        assert_eq!(lines.len(), 2, "{lines:#?}");
        assert!(lines[0].starts_with(&format!("`--listen \"{address}\"`: ")), "{lines:#?}");
        assert!(lines[1].starts_with("`--root \"/nonexistent\"`: no such"), "{lines:#?}");
        let config =
            Config { root: "/nonexistent".into(), listen: Listen::Off, ..Config::default() };
        let problems = preflight(&config, &KeyLines::new(), &Flags::new());
        let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
        let root = "`root = \"/nonexistent\"`, the default: no such directory";
        assert!(lines.iter().any(|line| line.starts_with(root)), "{lines:#?}");
    }
}
