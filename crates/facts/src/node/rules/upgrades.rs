//! Can unattended upgrades replace the kernel or the driver?

use regex_lite::Regex;

use super::packages::is_driver;
use crate::check::Verdict;
use crate::node::context::NodeContext;
use crate::node::item_code;
use crate::node::observation::Package;
use crate::node::reading::Reading;
use crate::node::report::NodeFindings;

const SOURCE: &str = "/etc/apt/apt.conf.d; /var/lib/dpkg/status";
const SUBJECT: &str = "unattended upgrades";

pub(crate) fn evaluate(node: &NodeContext<'_>, findings: &mut NodeFindings) {
    // The rule in `packages.rs` reports packages that cannot be read.
    let Some(packages) = node.observation.packages.dpkg.value() else { return };
    if node.inside_container() {
        return;
    }
    let mut item = |verdict, code, text: String| {
        findings.item(verdict, code, SUBJECT, text, SOURCE);
    };
    if !packages.iter().any(|package| package.name == "unattended-upgrades") {
        return item(
            Verdict::Ok,
            item_code::UNATTENDED_UPGRADES_ABSENT,
            "unattended-upgrades is not installed".to_owned(),
        );
    }
    let unattended = match &node.observation.packages.unattended {
        Reading::Value(unattended) => unattended,
        Reading::Absent => {
            return item(
                Verdict::Ok,
                item_code::UNATTENDED_UPGRADES_OFF,
                "apt has no configuration that turns unattended upgrades on".to_owned(),
            );
        }
        Reading::Unreadable(why) => {
            return item(
                Verdict::Unknown,
                item_code::UNATTENDED_UPGRADES_UNKNOWN,
                format!("apt's configuration cannot be read: {why}"),
            );
        }
    };
    if !unattended.enabled {
        return item(
            Verdict::Ok,
            item_code::UNATTENDED_UPGRADES_OFF,
            "unattended upgrades are turned off".to_owned(),
        );
    }
    let free = |package: &&Package| !package.held && !listed(&unattended.blacklist, &package.name);
    let driver = packages.iter().filter(|package| is_driver(package)).filter(free).count();
    let kernel = packages.iter().filter(|package| is_kernel_meta(package)).filter(free).count();
    let what = match (driver, kernel) {
        (0, 0) => {
            return item(
                Verdict::Ok,
                item_code::UNATTENDED_UPGRADES_KEPT_OUT,
                "unattended upgrades are on, but exclude the kernel and the driver".to_owned(),
            );
        }
        (0, _) => "the kernel",
        (_, 0) => "the driver",
        _ => "the kernel and the driver",
    };
    item(
        Verdict::Caveat,
        item_code::UNATTENDED_UPGRADES_MAY_REPLACE,
        format!("unattended upgrades are on, and may replace {what} at any time"),
    );
    findings.remedy(
        "for upgrades that happen only when planned",
        "exclude the kernel and the driver from unattended upgrades",
        Some(
            "echo 'Unattended-Upgrade::Package-Blacklist { \"nvidia-\"; \"libnvidia-\"; \"linux-\"; };' > \
             /etc/apt/apt.conf.d/52farrier",
        ),
    );
}

/// Whether a package installs each new kernel, as `linux-image-generic` does.
/// `linux-image-6.8.0-60-generic` does not.
pub(crate) fn is_kernel_meta(package: &Package) -> bool {
    let name = package.name.as_str();
    match name.strip_prefix("linux-image-") {
        Some(rest) => !rest.starts_with(|letter: char| letter.is_ascii_digit()),
        None => name.starts_with("linux-generic") || name.starts_with("linux-nvidia"),
    }
}

/// The list contains regular expressions anchored at the start of a name (unattended-upgrades
/// README).
fn listed(blacklist: &[String], name: &str) -> bool {
    blacklist.iter().any(|pattern| {
        Regex::new(&format!("^(?:{pattern})")).is_ok_and(|pattern| pattern.is_match(name))
    })
}
