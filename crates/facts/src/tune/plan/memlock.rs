//! The limit on locked memory. `pam_limits` sets it for log-ins, and systemd sets it for services.

use super::host::{file, without_current};
use super::{Evaluation, Need, StepStatus, StepSubject};
use crate::node::Reading;
use crate::tune::readings::{ConfigFile, Readings};
use crate::tune::setting::{MEMLOCK_FILE, SettingKind, memlock_drop_in};

/// `word` is `unlimited`, or a number of KiB.
pub(super) fn evaluate(kind: &SettingKind, word: &str, readings: &Readings) -> Vec<Evaluation> {
    let text =
        format!("# Written by farrier tune.\n* soft memlock {word}\n* hard memlock {word}\n");
    let path = kind.file().unwrap_or_default();
    let mut evaluations = vec![file(&path, text, word, vec![Need::LogIn], readings)];
    match &readings.memlock.limits {
        Reading::Value(files) => evaluations.extend(overriding_limits(files, word)),
        Reading::Unreadable(why) => {
            let unknown = StepStatus::Unknown(why.to_string());
            evaluations.push(without_current("/etc/security/limits.d", word, unknown));
        }
        Reading::Absent => {}
    }
    match &readings.memlock.services {
        Reading::Value(services) => {
            let files = services.iter();
            evaluations.extend(files.map(|(unit, files)| service(unit, files, word, readings)));
        }
        Reading::Unreadable(why) => {
            let unknown = StepStatus::Unknown(why.to_string());
            evaluations.push(without_current("services", word, unknown));
        }
        Reading::Absent => {}
    }
    evaluations
}

/// Files that `pam_limits` reads after Farrier's and that set another limit for all users. The last
/// entry wins (limits.conf(5)).
fn overriding_limits(files: &[ConfigFile], word: &str) -> Vec<Evaluation> {
    let later = files.iter().filter(|file| file.path.as_str() > MEMLOCK_FILE);
    let (mut soft, mut hard) = (None, None);
    for file in later {
        for (kind, value) in file.text.lines().filter_map(memlock_entry) {
            if kind != "hard" {
                soft = Some((file, value));
            }
            if kind != "soft" {
                hard = Some((file, value));
            }
        }
    }
    let mut evaluations: Vec<Evaluation> = Vec::new();
    for (file, value) in soft.into_iter().chain(hard) {
        let subject = StepSubject::Host(file.path.clone());
        if limit(value) == limit(word) || evaluations.iter().any(|other| other.subject == subject) {
            continue;
        }
        let advice = format!(
            "this file is read after {MEMLOCK_FILE} and wins: remove its memlock lines, or set \
             them to {word}"
        );
        let standing = StepStatus::ByHand(advice);
        let current = Some(value.to_owned());
        let evaluation = without_current(&file.path, word, standing);
        evaluations.push(Evaluation { current, ..evaluation });
    }
    evaluations
}

/// The kind and the value of a line `* soft memlock 65536`. `-` stands for both kinds.
fn memlock_entry(line: &str) -> Option<(&str, &str)> {
    let line = line.split('#').next().unwrap_or_default();
    match line.split_whitespace().collect::<Vec<_>>()[..] {
        ["*", kind @ ("soft" | "hard" | "-"), "memlock", value] => Some((kind, value)),
        _ => None,
    }
}

/// A limit in KiB. `None` for no limit.
fn limit(word: &str) -> Option<u64> {
    word.parse().ok()
}

/// Evaluates the limit of a service, which `pam_limits` does not reach. Its jobs inherit the limit.
fn service(unit: &str, files: &[ConfigFile], word: &str, readings: &Readings) -> Evaluation {
    let wanted = if word == "unlimited" { "infinity".to_owned() } else { format!("{word}K") };
    let path = memlock_drop_in(unit);
    let assigned = files.iter().rev().find_map(|file| Some((file, assigned_limit(&file.text)?)));
    let current = assigned.map_or("the default of systemd", |(_, value)| value);
    if assigned.is_some_and(|(_, value)| service_limit(value) == service_limit(&wanted)) {
        let evaluation = without_current(&path, &wanted, StepStatus::AsWanted);
        return Evaluation { current: Some(wanted), ..evaluation };
    }
    let text = format!("# Written by farrier tune.\n[Service]\nLimitMEMLOCK={wanted}\n");
    let mut evaluation = file(&path, text, &wanted, vec![Need::ServiceRestart], readings);
    if let (StepStatus::AsWanted, Some((winner, _))) = (&evaluation.standing, assigned) {
        let advice = format!(
            "{} is read later and wins: remove its LimitMEMLOCK, or set it to {wanted}",
            winner.path
        );
        evaluation.standing = StepStatus::ByHand(advice);
    }
    if !matches!(evaluation.standing, StepStatus::Unknown(_)) {
        evaluation.current = Some(current.to_owned());
    }
    evaluation
}

/// The last `LimitMEMLOCK=` of a unit or drop-in.
fn assigned_limit(text: &str) -> Option<&str> {
    text.lines().rev().find_map(|line| {
        let (name, value) = line.trim().split_once('=')?;
        (name.trim_end() == "LimitMEMLOCK").then_some(value.trim_start())
    })
}

/// A limit of systemd in bytes, with soft and hard limit (systemd.exec(5)). `None` in place of a
/// number is no limit.
fn service_limit(value: &str) -> (Option<u64>, Option<u64>) {
    let bytes = |word: &str| {
        let (digits, unit) = match word.char_indices().last() {
            Some((end, 'K')) => (&word[..end], 1 << 10),
            Some((end, 'M')) => (&word[..end], 1 << 20),
            Some((end, 'G')) => (&word[..end], 1 << 30),
            _ => (word, 1),
        };
        digits.parse::<u64>().ok().map(|number| number.saturating_mul(unit))
    };
    match value.split_once(':') {
        Some((soft, hard)) => (bytes(soft), bytes(hard)),
        None => (bytes(value), bytes(value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(path: &str, text: &str) -> ConfigFile {
        ConfigFile { path: path.to_owned(), text: text.to_owned() }
    }

    #[test]
    fn a_later_file_wins() {
        let overriding = |files: &[ConfigFile]| -> Vec<String> {
            let evaluations = overriding_limits(files, "unlimited");
            evaluations.into_iter().filter_map(|evaluation| evaluation.current).collect()
        };
        let earlier = config("/etc/security/limits.conf", "* - memlock 64\n");
        let own = config(MEMLOCK_FILE, "* soft memlock unlimited\n");
        let site = config(
            "/etc/security/limits.d/99-site.conf",
            "# ours\n* soft nofile 4\n* hard memlock 65536 # why\n",
        );
        let files = [earlier, own, site];
        assert_eq!(overriding(&files[..2]), Vec::<String>::new(), "an earlier file loses");
        assert_eq!(overriding(&files), ["65536"]);
        let last = config("/etc/security/limits.d/99-z.conf", "* - memlock infinity\n");
        let with_last: Vec<ConfigFile> = files.iter().cloned().chain([last]).collect();
        assert_eq!(overriding(&with_last), Vec::<String>::new(), "the last file is as wanted");
    }

    #[test]
    fn limits_of_services_are_compared_in_bytes() {
        assert_eq!(service_limit("64K"), service_limit("65536"));
        assert_eq!(service_limit("infinity"), (None, None));
        assert_eq!(service_limit("8M:infinity"), (Some(8 << 20), None));
        let unit = "[Service]\nLimitMEMLOCK = 8M\nLimitNOFILE=1\n";
        assert_eq!(assigned_limit(unit), Some("8M"));
        assert_eq!(assigned_limit("[Service]\n#LimitMEMLOCK=1\n"), None);
    }
}
