//! Everything of a node that a driver change may touch, so that a rollback can be compared with the
//! state before.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use anyhow::{Context, bail};

use super::machine::Machine;

/// The parts of a node, each a map from a name to its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    /// Version and state of each package.
    Packages,
    /// Whether apt would remove a package that nothing needs any more.
    AutomaticallyInstalled,
    /// Packages on hold.
    Holds,
    /// `apt_preferences(5)` and the sources of packages.
    Apt,
    /// Options, blacklists and aliases of modules, and modules loaded at boot.
    ModuleConfiguration,
    /// Modules that DKMS built, for each kernel.
    Modules,
    /// Files that differ from their package.
    ChangedFiles,
    /// Checksum of each file in each initramfs.
    Initramfs,
    /// State of each unit file.
    Units,
    /// Targets of Debian's alternatives for the driver.
    Alternatives,
    /// Kernels that the boot loader offers.
    BootEntries,
}

/// A snapshot of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeFingerprint {
    parts: BTreeMap<Part, BTreeMap<String, String>>,
}

/// What differs between two snapshots; `None` where one of them lacks the entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Difference {
    pub(crate) part: Part,
    pub(crate) name: String,
    pub(crate) before: Option<String>,
    pub(crate) after: Option<String>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |value: &Option<String>| value.clone().unwrap_or_else(|| "nothing".to_owned());
        let (before, after) = (text(&self.before), text(&self.after));
        write!(f, "{:?}: `{}` was {before}, is {after}", self.part, self.name)
    }
}

/// Scripts that print `NAME<tab>CONTENT` lines.
const SCRIPTS: [(Part, &str); 11] = [
    (
        Part::Packages,
        r"dpkg-query --show --showformat '${Package}:${Architecture}\t${Version} ${db:Status-Abbrev}\n'",
    ),
    (Part::AutomaticallyInstalled, r"apt-mark showauto | sed 's/$/\tautomatic/'"),
    (Part::Holds, r"apt-mark showhold | sed 's/$/\thold/'"),
    (
        Part::Apt,
        "find /etc/apt -type f -print0 | sort -z | xargs -0 --no-run-if-empty sha256sum | sed -E 's/^([0-9a-f]+) +(.*)$/\\2\\t\\1/'",
    ),
    (
        Part::ModuleConfiguration,
        "find -L /etc/modprobe.d /etc/modules-load.d /etc/modules /lib/modprobe.d -type f -print0 | sort -z | xargs -0 sha256sum | sed -E 's/^([0-9a-f]+) +(.*)$/\\2\\t\\1/'",
    ),
    (
        Part::Modules,
        "for module in $(find /lib/modules -path '*/updates/*.ko*' | sort); do printf '%s\\t%s %s\\n' $module \"$(modinfo -F version $module)\" \"$(modinfo -F vermagic $module)\"; done",
    ),
    (Part::ChangedFiles, r"(dpkg --verify || true) | sed -E 's/^(\S+) +(.*)$/\2\t\1/'"),
    (
        Part::Initramfs,
        "for image in /boot/initrd.img-*; do\n\
         folder=$(mktemp --directory); unmkinitramfs $image $folder\n\
         (cd $folder && find . -type f -print0 | sort -z | xargs -0 sha256sum) | sed -E \"s|^([0-9a-f]+) +(.*)$|$image:\\\\2\\t\\\\1|\"\n\
         (cd $folder && find . -type l -printf \"$image:%p\\tlink to %l\\n\")\n\
         rm -r $folder; done",
    ),
    (Part::Units, r#"systemctl list-unit-files --plain --no-legend | awk '{ print $1 "\t" $2 }'"#),
    (
        Part::Alternatives,
        r#"update-alternatives --get-selections | awk '{ print $1 "\t" $2 " " $3 }'"#,
    ),
    (
        Part::BootEntries,
        r#"sed -nE "s/^\s*menuentry '([^']*)'.*/\1\tpresent/p" /boot/grub/grub.cfg"#,
    ),
];

impl NodeFingerprint {
    pub(crate) fn read(machine: &mut Machine) -> anyhow::Result<Self> {
        let mut parts = BTreeMap::new();
        for (part, script) in SCRIPTS {
            let text = machine.script(script).with_context(|| format!("{part:?}"))?;
            parts.insert(part, entries(&text).with_context(|| format!("{part:?}"))?);
        }
        Ok(Self { parts })
    }

    /// How many entries a part has.
    pub(crate) fn count(&self, part: Part) -> usize {
        self.parts.get(&part).map_or(0, BTreeMap::len)
    }

    /// What differs, in order.
    pub(crate) fn differences(&self, after: &Self) -> Vec<Difference> {
        let mut differences = Vec::new();
        let parts: BTreeSet<Part> = self.parts.keys().chain(after.parts.keys()).copied().collect();
        let empty = BTreeMap::new();
        for part in parts {
            let old = self.parts.get(&part).unwrap_or(&empty);
            let new = after.parts.get(&part).unwrap_or(&empty);
            let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
            for name in names {
                let (before, after) = (old.get(name).cloned(), new.get(name).cloned());
                if before != after {
                    differences.push(Difference { part, name: name.clone(), before, after });
                }
            }
        }
        differences
    }
}

fn entries(text: &str) -> anyhow::Result<BTreeMap<String, String>> {
    let mut entries = BTreeMap::new();
    for line in text.lines() {
        let (name, content) =
            line.split_once('\t').with_context(|| format!("no tab in the line `{line}`"))?;
        let before = entries.insert(name.to_owned(), content.to_owned());
        if before.is_some_and(|before| before != content) {
            bail!("`{name}` appears twice, with different content");
        }
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fingerprint(packages: &str) -> NodeFingerprint {
        NodeFingerprint { parts: BTreeMap::from([(Part::Packages, entries(packages).unwrap())]) }
    }

    #[test]
    fn entries_that_changed_vanished_or_appeared_differ() {
        let before = fingerprint("a\t1\nb\t1\nc\t1\n");
        let after = fingerprint("a\t1\nb\t2\nd\t1\n");
        let differences: Vec<String> =
            before.differences(&after).iter().map(ToString::to_string).collect();
        assert_eq!(
            differences,
            [
                "Packages: `b` was 1, is 2",
                "Packages: `c` was 1, is nothing",
                "Packages: `d` was nothing, is 1",
            ]
        );
        assert_eq!(before.differences(&before), []);
    }

    #[test]
    fn a_line_without_content_or_with_two_contents_is_an_error() {
        entries("name").unwrap_err();
        entries("a\t1\na\t2").unwrap_err();
    }
}
