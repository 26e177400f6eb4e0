//! Which set of facts is in force: the embedded one, or a newer one that was installed beside it.
//!
//! Installed sets live in one folder, one file a set. The newest by date wins; the embedded one wins
//! a tie. An installed file that no longer reads is passed over with a warning, never half used.

use std::borrow::Cow;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use farrier_facts::FactSet;
use farrier_facts::set::{SetError, SetId};
use jiff::civil::Date;

use crate::failure::{Hinted, warn};

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
    let newest = installed()
        .into_iter()
        .filter(|found| found.id.date > embedded.set.date)
        .max_by(|left, right| left.id.date.cmp(&right.id.date));
    let Some(found) = newest else { return Cow::Borrowed(embedded) };
    match read(&found.path) {
        Ok(set) => Cow::Owned(set),
        Err(err) => {
            warn(&err.context(format!(
                "the installed fact set `{}` is passed over, `{}` is used",
                found.id.name, embedded.set.name
            )));
            Cow::Borrowed(embedded)
        }
    }
}

/// An installed set.
pub(crate) struct Installed {
    /// What its file name says.
    pub(crate) id: SetId,
    /// Where it is.
    pub(crate) path: PathBuf,
}

/// The installed sets, as their file names say. Nothing is opened here: most machines have none, and
/// every answer passes this way.
pub(crate) fn installed() -> Vec<Installed> {
    let Some(folder) = folder() else { return Vec::new() };
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut found: Vec<Installed> =
        entries.flatten().filter_map(|entry| parse_file_name(&entry.path())).collect();
    found.sort_by(|left, right| left.path.cmp(&right.path));
    found
}

/// `2026-12-01_farrier-2026.12.01.json`
fn file_name(id: &SetId) -> String {
    format!("{}_{}.json", id.date, id.name)
}

fn parse_file_name(path: &Path) -> Option<Installed> {
    let name = path.file_name()?.to_str()?.strip_suffix(".json")?;
    let (date, name) = name.split_once('_')?;
    let id = SetId {
        schema: farrier_facts::set::SCHEMA,
        name: name.to_owned(),
        date: date.parse().ok()?,
    };
    Some(Installed { id, path: path.to_owned() })
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

fn read(path: &Path) -> anyhow::Result<FactSet> {
    let bytes = fs::read(path).with_context(|| format!("failed to read `{}`", path.display()))?;
    Ok(FactSet::read(&bytes)?)
}

/// Checks the set in `file` and installs it. Nothing changes unless all of it is good.
pub(crate) fn install(file: &Path) -> anyhow::Result<Installed> {
    let bytes = fs::read(file).with_context(|| format!("failed to read `{}`", file.display()))?;
    let set = FactSet::checked(&bytes).map_err(|err| refusal(err, file))?;
    let current = active();
    if set.set.date <= current.set.date {
        return Err(Hinted::error(
            format!(
                "fact set `{}` of {} is not newer than the one in force, `{}` of {}",
                set.set.name, set.set.date, current.set.name, current.set.date
            ),
            "nothing was changed; `farrier facts sets` shows what is installed",
        ));
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '+');
    if set.set.name.is_empty() || !set.set.name.chars().all(plain) {
        return Err(Hinted::error(
            format!("`{}` is not a name for a fact set", set.set.name),
            "letters, digits, `.`, `-` and `+`",
        ));
    }
    let folder = folder().ok_or_else(|| {
        Hinted::error("there is no folder to install to", "set FARRIER_FACTS_DIR or HOME")
    })?;
    let path = folder.join(file_name(&set.set));
    write_whole(&folder, &path, &bytes).with_context(|| {
        format!("failed to install fact set `{}` in `{}`", set.set.name, folder.display())
    })?;
    Ok(Installed { id: set.set, path })
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
            format!("nothing was changed; all problems:\n  {}", problems.join("\n  "))
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
    fn file_names_say_which_set_it_is() {
        let id = SetId {
            schema: farrier_facts::set::SCHEMA,
            name: "farrier-2026.12.01".to_owned(),
            date: "2026-12-01".parse().unwrap(),
        };
        let found = parse_file_name(Path::new("/x").join(file_name(&id)).as_path()).unwrap();
        assert_eq!(found.id, id);
        assert!(parse_file_name(Path::new("/x/notes.json")).is_none());
    }
}
