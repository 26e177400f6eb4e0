//! Files below the root: regular files, and kernel files with a selectable value.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use farrier_facts::node::{ReadError, Reading};
use farrier_facts::tune::{Choice, Content, FileContent, Value};

use crate::root::{Root, outcome};

/// Suffix of a file while it is written. Programs that read these directories ignore files with
/// this suffix.
const TEMPORARY_SUFFIX: &str = ".farrier-part";

/// Maximum size of a file, the same as in [`Root`]. The largest file is dpkg's status file, which
/// is written if the root is not this machine.
const FILE_BYTES_MAX: u64 = 32 << 20;

/// Reads a file. If it does not exist, the value is [`Value::NoFile`]. A symlink is an error.
pub(super) fn read(root: &Root, path: &str) -> Reading<Value> {
    let real = match root.resolve_parent(path) {
        Ok(real) => real,
        Err(err) => return absent_is_no_file(outcome(Err(err))),
    };
    absent_is_no_file(outcome(read_real(&real)))
}

fn absent_is_no_file(reading: Reading<Value>) -> Reading<Value> {
    if reading == Reading::Absent { Reading::Value(Value::NoFile) } else { reading }
}

fn read_real(real: &Path) -> io::Result<Value> {
    let meta = fs::symlink_metadata(real)?;
    if !meta.is_file() {
        return Err(io::Error::other("it is a link, a directory or a device"));
    }
    if meta.len() > FILE_BYTES_MAX {
        return Err(io::Error::other(format!("larger than {} MiB", FILE_BYTES_MAX >> 20)));
    }
    let content = Content::from_bytes(fs::read(real)?);
    let mode = meta.permissions().mode() & 0o7777;
    let owner = Some((meta.uid(), meta.gid()));
    Ok(Value::File(FileContent { content, mode, owner }))
}

/// Missing parent directories of a path, outermost first.
pub(super) fn missing_directories(root: &Root, path: &str) -> Vec<String> {
    let mut missing: Vec<String> = Path::new(path)
        .ancestors()
        .skip(1)
        .filter_map(Path::to_str)
        .take_while(|dir| root.exists(dir) == Reading::Value(false))
        .map(str::to_owned)
        .collect();
    missing.reverse();
    missing
}

/// Replaces or removes a file atomically.
pub(super) fn write(root: &Root, path: &str, value: &Value) -> io::Result<()> {
    match value {
        Value::NoFile => {
            let Ok(real) = root.resolve_parent(path) else { return Ok(()) };
            remove(&temporary_path(&real))?;
            remove(&real)?;
            sync_parent(&real)
        }
        Value::File(file) => {
            for dir in missing_directories(root, path) {
                let real = root.resolve_parent(&dir)?;
                fs::create_dir(&real)?;
                // Ignore the umask, because jobs must be able to enter the directory.
                fs::set_permissions(&real, fs::Permissions::from_mode(0o755))?;
                sync_parent(&real)?;
            }
            replace(&root.resolve_parent(path)?, &file.content.bytes(), file.mode, file.owner)
        }
        _ => Err(io::Error::other("the value is not a file's")),
    }
}

/// Removes the temporary file of an interrupted write.
pub(super) fn remove_temporary(root: &Root, path: &str) -> io::Result<()> {
    root.resolve_parent(path).map_or(Ok(()), |real| remove(&temporary_path(&real)))
}

/// Removes a directory if it is empty.
pub(super) fn remove_directory(root: &Root, path: &str) -> io::Result<()> {
    let Ok(real) = root.resolve_parent(path) else { return Ok(()) };
    match fs::remove_dir(&real) {
        Err(err) if matches!(err.kind(), ErrorKind::NotFound | ErrorKind::DirectoryNotEmpty) => {
            Ok(())
        }
        Err(err) => Err(err),
        Ok(()) => sync_parent(&real),
    }
}

fn temporary_path(real: &Path) -> PathBuf {
    let mut name = real.as_os_str().to_owned();
    name.push(TEMPORARY_SUFFIX);
    name.into()
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(err) if err.kind() != ErrorKind::NotFound => Err(err),
        _ => Ok(()),
    }
}

fn replace(real: &Path, bytes: &[u8], mode: u32, owner: Option<(u32, u32)>) -> io::Result<()> {
    let part = temporary_path(real);
    remove(&part)?;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&part)?;
    let written = file.write_all(bytes).and_then(|()| {
        let meta = file.metadata()?;
        if let Some((user, group)) = owner.filter(|owner| *owner != (meta.uid(), meta.gid())) {
            chown(&part, Some(user), Some(group))?;
        }
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        file.sync_all()?;
        fs::rename(&part, real)
    });
    if let Err(err) = written {
        let _ = remove(&part);
        return Err(err);
    }
    sync_parent(real)
}

fn sync_parent(real: &Path) -> io::Result<()> {
    real.parent().map_or(Ok(()), |dir| File::open(dir)?.sync_all())
}

/// The selected word and all words of a text such as `always [madvise] never`. A single word is
/// selected without brackets.
pub(super) fn choice(text: &str) -> (Option<String>, Vec<String>) {
    let strip = |word: &str| word.trim_matches(['[', ']']).to_owned();
    let words: Vec<&str> = text.split_whitespace().collect();
    let chosen = words.iter().find(|word| word.starts_with('[')).map(|word| strip(word));
    let only = if words.len() == 1 { words.first().map(|word| strip(word)) } else { None };
    (chosen.or(only), words.into_iter().map(strip).collect())
}

/// Reads a choice whose words are listed in the file itself or in the file `available`.
pub(super) fn read_choice(root: &Root, path: &str, available: Option<&str>) -> Reading<Choice> {
    root.text(path).map(|text| {
        let (current, words) = choice(&text);
        let current = current.map_or_else(
            || Reading::Unreadable(ReadError::malformed(format!("`{path}` has no selected value"))),
            Reading::Value,
        );
        let available = match available {
            Some(list) => {
                root.text(list).map(|text| text.split_whitespace().map(str::to_owned).collect())
            }
            None => Reading::Value(words),
        };
        Choice { current, available }
    })
}

/// Selects a word. The kernel takes the bare word. If the root is not this machine, there is no
/// kernel, so this writes the text that the kernel would show.
pub(super) fn choose(root: &Root, path: &str, word: &str, is_kernel: bool) -> io::Result<()> {
    let real = root.resolve_existing(path)?;
    if is_kernel {
        return OpenOptions::new().write(true).open(&real)?.write_all(word.as_bytes());
    }
    let text = fs::read_to_string(&real)?;
    let (_, words) = choice(&text);
    let shown = if text.contains('[') {
        let marked =
            |known: &String| if known == word { format!("[{known}]") } else { known.clone() };
        words.iter().map(marked).collect::<Vec<String>>().join(" ")
    } else {
        word.to_owned()
    };
    let end = if text.ends_with('\n') { "\n" } else { "" };
    let meta = fs::metadata(&real)?;
    let owner = Some((meta.uid(), meta.gid()));
    replace(&real, format!("{shown}{end}").as_bytes(), meta.mode() & 0o7777, owner)
}
