//! Files below the root: whole ones, and the kernel's, in which a word is chosen.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use farrier_facts::node::{ReadError, Reading};
use farrier_facts::tune::{Choice, Content, FileContent, Value};

use crate::root::{Root, outcome};

/// What a file is called while it is written. Nothing that reads such folders takes a name that ends so.
const PART: &str = ".farrier-part";

/// As [`Root`] bounds it: dpkg's status file, below another root, is the largest.
const FILE_BYTES_MAX: u64 = 32 << 20;

/// The file at a path, or that there is none. A link is neither.
pub(super) fn read(root: &Root, path: &str) -> Reading<Value> {
    let real = match root.place_for(path) {
        Ok(real) => real,
        Err(err) => return no_file(outcome(Err(err))),
    };
    no_file(outcome(read_real(&real)))
}

fn no_file(reading: Reading<Value>) -> Reading<Value> {
    if reading == Reading::Absent { Reading::Value(Value::NoFile) } else { reading }
}

fn read_real(real: &Path) -> io::Result<Value> {
    let meta = fs::symlink_metadata(real)?;
    if !meta.is_file() {
        return Err(io::Error::other("it is a link, a folder or a device"));
    }
    if meta.len() > FILE_BYTES_MAX {
        return Err(io::Error::other(format!("larger than {} MiB", FILE_BYTES_MAX >> 20)));
    }
    let content = Content::from_bytes(fs::read(real)?);
    let mode = meta.permissions().mode() & 0o7777;
    let owner = Some((meta.uid(), meta.gid()));
    Ok(Value::File(FileContent { content, mode, owner }))
}

/// Folders on the way to a path that are not there, outermost first.
pub(super) fn missing_folders(root: &Root, path: &str) -> Vec<String> {
    let mut missing: Vec<String> = Path::new(path)
        .ancestors()
        .skip(1)
        .filter_map(Path::to_str)
        .take_while(|folder| root.exists(folder) == Reading::Value(false))
        .map(str::to_owned)
        .collect();
    missing.reverse();
    missing
}

/// Puts a file there, whole or not at all, or takes it away.
pub(super) fn write(root: &Root, path: &str, value: &Value) -> io::Result<()> {
    match value {
        Value::NoFile => {
            let Ok(real) = root.place_for(path) else { return Ok(()) };
            remove(&part_of(&real))?;
            remove(&real)?;
            sync_parent(&real)
        }
        Value::File(file) => {
            for folder in missing_folders(root, path) {
                let real = root.place_for(&folder)?;
                fs::create_dir(&real)?;
                // Whatever the mask of who runs it: jobs have to get through.
                fs::set_permissions(&real, fs::Permissions::from_mode(0o755))?;
                sync_parent(&real)?;
            }
            replace(&root.place_for(path)?, &file.content.bytes(), file.mode, file.owner)
        }
        _ => Err(io::Error::other("the value is none of a file")),
    }
}

/// Takes away what a write that was cut short has left behind.
pub(super) fn remove_part(root: &Root, path: &str) -> io::Result<()> {
    root.place_for(path).map_or(Ok(()), |real| remove(&part_of(&real)))
}

/// Takes a folder away where nothing is in it.
pub(super) fn remove_folder(root: &Root, path: &str) -> io::Result<()> {
    let Ok(real) = root.place_for(path) else { return Ok(()) };
    match fs::remove_dir(&real) {
        Err(err) if matches!(err.kind(), ErrorKind::NotFound | ErrorKind::DirectoryNotEmpty) => {
            Ok(())
        }
        Err(err) => Err(err),
        Ok(()) => sync_parent(&real),
    }
}

fn part_of(real: &Path) -> PathBuf {
    let mut name = real.as_os_str().to_owned();
    name.push(PART);
    name.into()
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(err) if err.kind() != ErrorKind::NotFound => Err(err),
        _ => Ok(()),
    }
}

fn replace(real: &Path, bytes: &[u8], mode: u32, owner: Option<(u32, u32)>) -> io::Result<()> {
    let part = part_of(real);
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
    real.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}

/// The word in force and all words, of a text such as `always [madvise] never`, or of one word.
pub(super) fn choice(text: &str) -> (Option<String>, Vec<String>) {
    let strip = |word: &str| word.trim_matches(['[', ']']).to_owned();
    let words: Vec<&str> = text.split_whitespace().collect();
    let chosen = words.iter().find(|word| word.starts_with('[')).map(|word| strip(word));
    let only = if words.len() == 1 { words.first().map(|word| strip(word)) } else { None };
    (chosen.or(only), words.into_iter().map(strip).collect())
}

/// A choice whose words are in the file itself, or in another one.
pub(super) fn read_choice(root: &Root, path: &str, available: Option<&str>) -> Reading<Choice> {
    root.text(path).map(|text| {
        let (current, words) = choice(&text);
        let current = current.map_or_else(
            || {
                Reading::Unreadable(ReadError::malformed(format!(
                    "`{path}` names no word as chosen"
                )))
            },
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

/// Chooses a word. The kernel takes the word alone; below another root there is no kernel, and what it would show then
/// is written.
pub(super) fn choose(root: &Root, path: &str, word: &str, is_kernel: bool) -> io::Result<()> {
    let real = root.real(path)?;
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
