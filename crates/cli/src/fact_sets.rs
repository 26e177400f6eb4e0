//! Selects the active fact set: the embedded one, or a newer installed one.
//!
//! Installed sets live in one directory, one file per set, named by date, name and a checksum of
//! the content. `install` validates a set completely; later reads only verify the checksum. The
//! newest date wins. A set that can no longer be read is skipped with a warning; it is never used
//! in part.

use std::borrow::Cow;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use farrier_facts::FactSet;
use farrier_facts::set::{SetError, SetId};
use jiff::civil::Date;

use crate::failure::{Hinted, warn};
use crate::printer::Printer;

/// More than fifty times the embedded set; a larger file is not a fact set.
const SET_BYTES_MAX: u64 = 64 << 20;

/// How far a set's date may be ahead of this machine's clock.
const CLOCK_SLACK_DAYS: i64 = 7;

/// Maximum number of problems printed for a rejected set.
const PROBLEMS_SHOWN: usize = 10;

/// Today in UTC, so that all nodes of a fleet agree.
pub(crate) fn today() -> Date {
    let now = jiff::Timestamp::now().as_second();
    let days = i32::try_from(now.div_euclid(86_400)).unwrap_or(i32::MAX);
    let epoch = Date::constant(1970, 1, 1);
    epoch.checked_add(jiff::Span::new().days(days)).unwrap_or(Date::MAX)
}

/// The active set.
pub(crate) fn active() -> Cow<'static, FactSet> {
    let embedded = FactSet::embedded();
    let mut newer = installed();
    newer.retain(|entry| entry.id.date > embedded.set.date);
    newer.sort_by_key(|entry| std::cmp::Reverse(entry.id.date));
    for entry in newer {
        match read(&entry) {
            Ok(set) => return Cow::Owned(set),
            Err(err) => {
                warn(&err.context(format!("skipped installed fact set `{}`", entry.id.name)));
            }
        }
    }
    Cow::Borrowed(embedded)
}

/// Prints the last line of every table: the fact set behind the answer.
pub(crate) fn print(set: &SetId, printer: &mut Printer) -> std::io::Result<()> {
    printer.line("")?;
    printer.line(&format!("data: {} of {}", set.name, set.date))
}

/// An installed set, as described by its file name.
pub(crate) struct Installed {
    pub(crate) id: SetId,
    pub(crate) path: PathBuf,
    checksum: u64,
}

/// The installed sets, read from their file names. Opens no file: every command calls this, and
/// most machines have no installed set.
pub(crate) fn installed() -> Vec<Installed> {
    let Some(folder) = folder() else { return Vec::new() };
    let entries = match fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(err) if matches!(err.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Vec::new();
        }
        Err(err) => {
            let what = format!("failed to list fact sets in `{}`", folder.display());
            warn(&anyhow::Error::new(err).context(what));
            return Vec::new();
        }
    };
    let mut sets: Vec<Installed> =
        entries.flatten().filter_map(|entry| parse_file_name(&entry.path())).collect();
    sets.sort_by(|left, right| left.path.cmp(&right.path));
    sets
}

/// `2026-12-01_farrier-2026.12.01_9ae16a3b2f90404f.json`
fn file_name(id: &SetId, checksum: u64) -> String {
    format!("{}_{}_{checksum:016x}.json", id.date, id.name)
}

fn parse_file_name(path: &Path) -> Option<Installed> {
    let name = path.file_name()?.to_str()?.strip_suffix(".json")?;
    let (date, name) = name.split_once('_')?;
    let (name, checksum) = name.rsplit_once('_')?;
    let id = SetId {
        schema: farrier_facts::set::SCHEMA,
        name: name.to_owned(),
        date: date.parse().ok()?,
    };
    let checksum = u64::from_str_radix(checksum, 16).ok()?;
    Some(Installed { id, path: path.to_owned(), checksum })
}

/// FNV-1a. It detects corruption only: anyone who can write to the directory can install a set.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// `FARRIER_FACTS_DIR`, or the user's data directory.
pub(crate) fn folder() -> Option<PathBuf> {
    let path = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(folder) = path("FARRIER_FACTS_DIR") {
        return Some(folder);
    }
    let user = || path("HOME").map(|home| home.join(".local/share"));
    let data = path("XDG_DATA_HOME").or_else(user)?;
    Some(data.join("farrier/facts"))
}

/// Reads a regular file of at most [`SET_BYTES_MAX`] bytes.
fn read_file(path: &Path) -> anyhow::Result<Vec<u8>> {
    let what = || format!("failed to read `{}`", path.display());
    let file = fs::File::open(path).with_context(what)?;
    if !file.metadata().with_context(what)?.is_file() {
        bail!("`{}` is not a regular file", path.display());
    }
    let mut bytes = Vec::new();
    file.take(SET_BYTES_MAX + 1).read_to_end(&mut bytes).with_context(what)?;
    if bytes.len() as u64 > SET_BYTES_MAX {
        bail!("`{}` is larger than {} MiB", path.display(), SET_BYTES_MAX >> 20);
    }
    Ok(bytes)
}

fn read(entry: &Installed) -> anyhow::Result<FactSet> {
    let bytes = read_file(&entry.path)?;
    if checksum(&bytes) != entry.checksum {
        bail!("`{}` does not match its checksum", entry.path.display());
    }
    let set = FactSet::parse(&bytes)?;
    if set.set != entry.id {
        bail!("`{}` contains `{}` of {}", entry.path.display(), set.set.name, set.set.date);
    }
    Ok(set)
}

/// Validates the set in `file` and installs it. An invalid set changes nothing.
pub(crate) fn install(file: &Path) -> anyhow::Result<Installed> {
    let bytes = read_file(file)?;
    let set = FactSet::parse_validated(&bytes).map_err(|err| refusal(err, file))?;
    may_replace(&set.set, &active().set)?;
    let folder = folder().ok_or_else(|| {
        Hinted::error("no directory to install to", "set FARRIER_FACTS_DIR or HOME")
    })?;
    let checksum = checksum(&bytes);
    let path = folder.join(file_name(&set.set, checksum));
    write_atomically(&folder, &path, &bytes).with_context(|| {
        format!("failed to install fact set `{}` in `{}`", set.set.name, folder.display())
    })?;
    Ok(Installed { id: set.set, path, checksum })
}

/// Checks that a set is newer than the active one, has a plain name, and is not dated in the
/// future: a future date would block every set released before it.
fn may_replace(new: &SetId, current: &SetId) -> anyhow::Result<()> {
    const UNCHANGED: &str = "nothing was changed; `farrier facts sets` shows what is installed";
    let SetId { name, date, .. } = new;
    if *date <= current.date {
        let message = format!(
            "fact set `{name}` of {date} is not newer than the active one, `{}` of {}",
            current.name, current.date
        );
        return Err(Hinted::error(message, UNCHANGED));
    }
    let latest = today().saturating_add(jiff::Span::new().days(CLOCK_SLACK_DAYS));
    if *date > latest {
        let message = format!("fact set `{name}` is dated {date}, and today is {}", today());
        return Err(Hinted::error(message, UNCHANGED));
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '+');
    if name.is_empty() || !name.chars().all(plain) {
        let message = format!("`{name}` is not a valid fact set name");
        return Err(Hinted::error(message, "use letters, digits, `.`, `-` and `+`"));
    }
    Ok(())
}

/// Writes to a temporary file, syncs it, and renames it, so that no reader sees a partial file.
fn write_atomically(folder: &Path, path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    fs::create_dir_all(folder)?;
    let part = path.with_extension("part");
    let mut file = fs::File::create(&part)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&part, path)?;
    fs::File::open(folder)?.sync_all()
}

fn refusal(err: SetError, file: &Path) -> anyhow::Error {
    let hint = match &err {
        SetError::Content { problems, .. } if problems.len() > 1 => {
            let shown: Vec<&str> =
                problems.iter().take(PROBLEMS_SHOWN).map(String::as_str).collect();
            let more = problems.len() - shown.len();
            let more = if more > 0 { format!("\n  and {more} more") } else { String::new() };
            format!("nothing was changed; the problems:\n  {}{more}", shown.join("\n  "))
        }
        SetError::Form(_) => {
            "nothing was changed; a set is one JSON document, `farrier facts export` prints one"
                .to_owned()
        }
        _ => "nothing was changed".to_owned(),
    };
    anyhow::Error::new(err)
        .context(Hinted::plain(format!("rejected fact set `{}`", file.display()), hint))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_fnv_1a() {
        // Test vectors of the algorithm's authors.
        assert_eq!(checksum(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(checksum(b"foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn file_names_identify_the_set() {
        let id = SetId {
            schema: farrier_facts::set::SCHEMA,
            name: "farrier-2026.12.01".to_owned(),
            date: "2026-12-01".parse().unwrap(),
        };
        let parsed = parse_file_name(&Path::new("/x").join(file_name(&id, 7))).unwrap();
        assert_eq!((parsed.id, parsed.checksum), (id, 7));
        assert!(parse_file_name(Path::new("/x/notes.json")).is_none());
    }
}
