//! Which set of facts is in force: the embedded one, or a newer one that was installed beside it.
//!
//! Installed sets live in one folder, one file a set, named by date, name and a checksum of the content.
//! A set is checked whole when it is installed; afterwards the checksum says that it is still that set.
//! The newest by date wins. One that no longer reads is passed over with a warning, never half used.

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

/// More than fifty times the embedded set: what is larger is no set.
const SET_BYTES_MAX: u64 = 64 << 20;

/// How far a set may be ahead of this machine's clock.
const CLOCK_SLACK_DAYS: i64 = 7;

/// Problems of a refused set that are shown.
const PROBLEMS_SHOWN: usize = 10;

/// Today, in UTC: the same answer everywhere in a fleet.
pub(crate) fn today() -> Date {
    let now = jiff::Timestamp::now().as_second();
    let days = i32::try_from(now.div_euclid(86_400)).unwrap_or(i32::MAX);
    let epoch = Date::constant(1970, 1, 1);
    epoch.checked_add(jiff::Span::new().days(days)).unwrap_or(Date::MAX)
}

/// The set that answers rest on.
pub(crate) fn active() -> Cow<'static, FactSet> {
    let embedded = FactSet::embedded();
    let mut newer = installed();
    newer.retain(|found| found.id.date > embedded.set.date);
    newer.sort_by_key(|found| std::cmp::Reverse(found.id.date));
    for found in newer {
        match read(&found) {
            Ok(set) => return Cow::Owned(set),
            Err(err) => warn(
                &err.context(format!("the installed fact set `{}` is passed over", found.id.name)),
            ),
        }
    }
    Cow::Borrowed(embedded)
}

/// The last line of every table: which set the answer rests on.
pub(crate) fn print(set: &SetId, printer: &mut Printer) -> std::io::Result<()> {
    printer.line("")?;
    printer.line(&format!("data: {} of {}", set.name, set.date))
}

/// An installed set.
pub(crate) struct Installed {
    /// What its file name says.
    pub(crate) id: SetId,
    /// Where it is.
    pub(crate) path: PathBuf,
    /// Of its content, as its file name says.
    checksum: u64,
}

/// The installed sets, as their file names say. Nothing is opened here: most machines have none, and
/// every answer passes this way.
pub(crate) fn installed() -> Vec<Installed> {
    let Some(folder) = folder() else { return Vec::new() };
    let entries = match fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(err) if matches!(err.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Vec::new();
        }
        Err(err) => {
            let what = format!("failed to look for fact sets in `{}`", folder.display());
            warn(&anyhow::Error::new(err).context(what));
            return Vec::new();
        }
    };
    let mut found: Vec<Installed> =
        entries.flatten().filter_map(|entry| parse_file_name(&entry.path())).collect();
    found.sort_by(|left, right| left.path.cmp(&right.path));
    found
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

/// FNV-1a: sees damage, which is all that it is for; whoever can write here can install a set.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// `FARRIER_FACTS_DIR`, or the user's data folder.
pub(crate) fn folder() -> Option<PathBuf> {
    let path = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(folder) = path("FARRIER_FACTS_DIR") {
        return Some(folder);
    }
    let user = || path("HOME").map(|home| home.join(".local/share"));
    let data = path("XDG_DATA_HOME").or_else(user)?;
    Some(data.join("farrier/facts"))
}

/// Reads a file that ought to be a set, and not more than one can be.
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

fn read(found: &Installed) -> anyhow::Result<FactSet> {
    let bytes = read_file(&found.path)?;
    if checksum(&bytes) != found.checksum {
        bail!("`{}` is not what was installed", found.path.display());
    }
    let set = FactSet::parse(&bytes)?;
    if set.set != found.id {
        bail!("`{}` holds `{}` of {}", found.path.display(), set.set.name, set.set.date);
    }
    Ok(set)
}

/// Checks the set in `file` and installs it. Nothing changes unless all of it is good.
pub(crate) fn install(file: &Path) -> anyhow::Result<Installed> {
    let bytes = read_file(file)?;
    let set = FactSet::parse_validated(&bytes).map_err(|err| refusal(err, file))?;
    may_replace(&set.set, &active().set)?;
    let folder = folder().ok_or_else(|| {
        Hinted::error("there is no folder to install to", "set FARRIER_FACTS_DIR or HOME")
    })?;
    let checksum = checksum(&bytes);
    let path = folder.join(file_name(&set.set, checksum));
    write_whole(&folder, &path, &bytes).with_context(|| {
        format!("failed to install fact set `{}` in `{}`", set.set.name, folder.display())
    })?;
    Ok(Installed { id: set.set, path, checksum })
}

/// A set takes the place of an older one, has a plain name, and is not of the future: that one would
/// stand in the way of every set to come.
fn may_replace(new: &SetId, current: &SetId) -> anyhow::Result<()> {
    const UNCHANGED: &str = "nothing was changed; `farrier facts sets` shows what is installed";
    let SetId { name, date, .. } = new;
    if *date <= current.date {
        let message = format!(
            "fact set `{name}` of {date} is not newer than the one in force, `{}` of {}",
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
        let message = format!("`{name}` is not a name for a fact set");
        return Err(Hinted::error(message, "letters, digits, `.`, `-` and `+`"));
    }
    Ok(())
}

/// A file appears under its name only when all of it is on disk.
fn write_whole(folder: &Path, path: &Path, bytes: &[u8]) -> std::io::Result<()> {
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
    anyhow::Error::new(err).context(Hinted::plain(format!("`{}` is refused", file.display()), hint))
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
    fn file_names_say_which_set_it_is() {
        let id = SetId {
            schema: farrier_facts::set::SCHEMA,
            name: "farrier-2026.12.01".to_owned(),
            date: "2026-12-01".parse().unwrap(),
        };
        let found = parse_file_name(&Path::new("/x").join(file_name(&id, 7))).unwrap();
        assert_eq!((found.id, found.checksum), (id, 7));
        assert!(parse_file_name(Path::new("/x/notes.json")).is_none());
    }
}
