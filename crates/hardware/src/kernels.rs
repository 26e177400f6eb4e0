//! The running kernel, the installed kernels, and the driver module for each of them.

use std::cmp::Ordering;

use farrier_facts::node::{BootChoice, InstalledKernel, KernelObservation, Reading};

use crate::modules;
use crate::root::{Root, read_text};

pub(crate) fn read(root: &Root) -> KernelObservation {
    let running = root.trimmed("/proc/sys/kernel/osrelease");
    KernelObservation {
        installed: installed(root, running.value()),
        boot_choice: boot_choice(root),
        reboot_required: reboot_required(root),
        running,
    }
}

/// Every kernel with a modules directory or an image in `/boot`, oldest first.
fn installed(root: &Root, running: Option<&String>) -> Reading<Vec<InstalledKernel>> {
    let with_modules = match root.list("/lib/modules") {
        Reading::Value(names) => names,
        Reading::Absent => Vec::new(),
        Reading::Unreadable(why) => return Reading::Unreadable(why),
    };
    let boot = root.list("/boot");
    let image = |release: &str| {
        boot.as_ref().map(|names| names.iter().any(|name| name == &format!("vmlinuz-{release}")))
    };
    let mut releases = with_modules;
    let images = boot.value().into_iter().flatten();
    releases.extend(images.filter_map(|name| name.strip_prefix("vmlinuz-")).map(str::to_owned));
    releases.extend(running.cloned());
    // Skip rescue images and the like.
    releases.retain(|release| release.starts_with(|letter: char| letter.is_ascii_digit()));
    releases.sort_by(|left, right| compare(left, right));
    releases.dedup();
    Reading::Value(
        releases
            .into_iter()
            .map(|release| InstalledKernel {
                bootable: image(&release),
                module: modules::for_kernel(root, &release),
                headers: root.exists(&format!("/lib/modules/{release}/build/Makefile")),
                release,
            })
            .collect(),
    )
}

/// Compares releases as boot loaders do: digits numerically, letters lexically.
fn compare(left: &str, right: &str) -> Ordering {
    let (mut left, mut right) = (left.as_bytes(), right.as_bytes());
    while !left.is_empty() && !right.is_empty() {
        let digits = |text: &[u8]| text.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let (a, b) = (digits(left), digits(right));
        if a > 0 && b > 0 {
            let trimmed = |text: &[u8]| -> Vec<u8> {
                text.iter().copied().skip_while(|byte| *byte == b'0').collect()
            };
            let (x, y) = (trimmed(&left[..a]), trimmed(&right[..b]));
            let order = x.len().cmp(&y.len()).then_with(|| x.cmp(&y));
            if order.is_ne() {
                return order;
            }
            (left, right) = (&left[a..], &right[b..]);
        } else if left[0] == right[0] {
            (left, right) = (&left[1..], &right[1..]);
        } else {
            return left[0].cmp(&right[0]);
        }
    }
    left.len().cmp(&right.len())
}

/// Which kernel GRUB boots next. Only root can read GRUB's configuration, but `/etc/default/grub`
/// is enough if it selects the first entry or names a kernel.
fn boot_choice(root: &Root) -> BootChoice {
    const PATH: &str = "/etc/default/grub";
    let fallback = |why: &str| BootChoice::Unknown(why.to_owned());
    if let Some(entry) = environment(root, "next_entry=").value() {
        let why = format!("GRUB's next entry `{entry}` does not name a kernel");
        return named(entry).unwrap_or(BootChoice::Unknown(why));
    }
    match default_of(root, PATH) {
        Reading::Value(default) if default == "0" => BootChoice::Newest,
        Reading::Value(default) if default == "saved" => saved_entry(root),
        Reading::Value(default) => named(&default)
            .unwrap_or_else(|| fallback(&format!("GRUB_DEFAULT is `{default}` in {PATH}"))),
        Reading::Absent => match root.list("/boot/loader/entries") {
            Reading::Value(_) => saved_entry(root),
            _ => fallback("no GRUB configuration; unknown boot loader"),
        },
        Reading::Unreadable(why) => fallback(&format!("{PATH}: {why}")),
    }
}

/// `GRUB_DEFAULT` from the file and from the drop-in directory that images add.
fn default_of(root: &Root, path: &str) -> Reading<String> {
    let dir = format!("{path}.d");
    let mut paths = vec![path.to_owned()];
    match root.list(&dir) {
        Reading::Value(names) => {
            let parts =
                names.iter().filter(|name| matches!(name.rsplit_once('.'), Some((_, "cfg"))));
            paths.extend(parts.map(|name| format!("{dir}/{name}")));
        }
        Reading::Absent => {}
        Reading::Unreadable(why) => return Reading::Unreadable(why),
    }
    let mut found = Reading::Absent;
    for path in paths {
        // Only this setting is captured, because the kernel's command line may contain secrets.
        match root.extract(&path, |file| read_text(file).map(|text| grub_default(&text))) {
            Reading::Value(Some(default)) => found = Reading::Value(default),
            Reading::Value(None) if found == Reading::Absent => {
                found = Reading::Value("0".to_owned());
            }
            Reading::Value(None) | Reading::Absent => {}
            Reading::Unreadable(why) => return Reading::Unreadable(why),
        }
    }
    found
}

/// A value that GRUB stores between boots. Absent if it is empty.
fn environment(root: &Root, name: &str) -> Reading<String> {
    let mut unreadable = None;
    for path in ["/boot/grub/grubenv", "/boot/grub2/grubenv"] {
        match root.text(path) {
            Reading::Value(text) => {
                let entry = text.lines().find_map(|line| line.strip_prefix(name));
                return entry
                    .filter(|entry| !entry.is_empty())
                    .map_or(Reading::Absent, |entry| Reading::Value(entry.to_owned()));
            }
            Reading::Unreadable(why) => unreadable = Some(why.at(path)),
            Reading::Absent => {}
        }
    }
    unreadable.map_or(Reading::Absent, Reading::Unreadable)
}

fn saved_entry(root: &Root) -> BootChoice {
    match environment(root, "saved_entry=") {
        Reading::Value(entry) => {
            let why = format!("GRUB's saved entry `{entry}` does not name a kernel");
            named(&entry).unwrap_or(BootChoice::Unknown(why))
        }
        // If nothing was saved, GRUB boots the first entry.
        Reading::Absent => BootChoice::Newest,
        Reading::Unreadable(why) => BootChoice::Unknown(why.to_string()),
    }
}

/// The kernel in a menu entry: `Advanced options>Ubuntu, with Linux 6.8.0-60-generic`, or
/// `abc123-5.14.0-503.el9.x86_64` in boot loader entries.
fn named(entry: &str) -> Option<BootChoice> {
    let words = entry.split([' ', '>']);
    let kernel = words.rev().find_map(|word| {
        let start = word
            .char_indices()
            .find(|(at, _)| {
                let before = word[..*at].chars().next_back();
                let rest = &word[*at..];
                let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
                matches!(before, None | Some('-'))
                    && (1..=2).contains(&digits)
                    && rest.as_bytes().get(digits) == Some(&b'.')
            })?
            .0;
        Some(word[start..].to_owned())
    })?;
    Some(BootChoice::Named(kernel))
}

fn grub_default(text: &str) -> Option<String> {
    let last = text.lines().rev().find_map(|line| line.trim().strip_prefix("GRUB_DEFAULT="))?;
    Some(last.trim().trim_matches(['"', '\'']).to_owned())
}

fn reboot_required(root: &Root) -> Reading<Vec<String>> {
    match root.exists("/run/reboot-required") {
        Reading::Value(true) => {}
        Reading::Value(false) | Reading::Absent => return Reading::Absent,
        Reading::Unreadable(why) => return Reading::Unreadable(why),
    }
    let packages = root.text("/run/reboot-required.pkgs").map(|text| {
        let mut names: Vec<String> = text.lines().map(|line| line.trim().to_owned()).collect();
        names.retain(|name| !name.is_empty());
        names.sort();
        names.dedup();
        names
    });
    Reading::Value(packages.value().cloned().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_compare_numerically() {
        let mut releases =
            ["6.8.0-100-generic", "6.8.0-60-generic", "5.15.0-151-generic", "6.11.0-8-generic"];
        releases.sort_by(|left, right| compare(left, right));
        assert_eq!(
            releases,
            ["5.15.0-151-generic", "6.8.0-60-generic", "6.8.0-100-generic", "6.11.0-8-generic"]
        );
        assert_eq!(compare("6.8.0", "6.8.0"), Ordering::Equal);
        assert_eq!(compare("6.8.0-1", "6.8.0-01"), Ordering::Equal);
    }

    #[test]
    fn menu_entries_name_their_kernel() {
        let named = |text| match named(text) {
            Some(BootChoice::Named(kernel)) => Some(kernel),
            _ => None,
        };
        let ubuntu = "Advanced options for Ubuntu>Ubuntu, with Linux 6.8.0-60-generic";
        assert_eq!(named(ubuntu).as_deref(), Some("6.8.0-60-generic"));
        let loader = "0f3c8d61ab4b4b63b2c7b7ad2b8d8fb0-5.14.0-503.11.1.el9_5.x86_64";
        assert_eq!(named(loader).as_deref(), Some("5.14.0-503.11.1.el9_5.x86_64"));
        assert_eq!(named("1>2"), None);
        assert_eq!(named(""), None);
    }

    #[test]
    fn last_grub_default_wins() {
        assert_eq!(
            grub_default("GRUB_DEFAULT=0\nGRUB_DEFAULT=\"saved\"\n").as_deref(),
            Some("saved")
        );
        assert_eq!(grub_default("# GRUB_DEFAULT=2\nGRUB_TIMEOUT=0\n"), None);
    }
}
