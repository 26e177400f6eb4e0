//! Are the driver's packages completely installed, of one version, and held?

use crate::check::Verdict;
use crate::node::context::NodeContext;
use crate::node::item_code;
use crate::node::observation::{Package, Pin};
use crate::node::reading::Reading;
use crate::node::report::NodeFindings;
use crate::version::DriverVersion;

const SOURCE: &str = "/var/lib/dpkg/status";
const SUBJECT: &str = "packages";

/// Minimum priority of a pin that prevents an upgrade. With a lower priority, apt may still
/// upgrade, for example to a version of the target release (`apt_preferences(5)`).
const PIN_PRIORITY_MIN: i32 = 1000;

/// Tools whose versions may differ from the driver's.
const OWN_VERSION: [&str; 4] =
    ["nvidia-settings", "nvidia-modprobe", "nvidia-xconfig", "nvidia-prime"];

pub(crate) fn evaluate(node: &NodeContext<'_>, findings: &mut NodeFindings) {
    if node.inside_container() {
        let text = "this is a container: the host's packages cannot be seen; give the host's root with --root";
        findings.item(Verdict::Unknown, item_code::PACKAGES_HIDDEN, SUBJECT, text, SOURCE);
        return;
    }
    if node.observation.driver.run_file_install == Reading::Value(true) {
        findings.item(
            Verdict::Caveat,
            item_code::RUN_FILE_INSTALL,
            SUBJECT,
            "the driver was installed from NVIDIA's .run file: no package manager knows it or can hold it",
            "/usr/bin/nvidia-uninstall",
        );
    }
    match &node.observation.packages.dpkg {
        Reading::Value(packages) => evaluate_dpkg(node, packages, findings),
        Reading::Absent if node.observation.packages.rpm == Reading::Value(true) => {
            findings.item(
                Verdict::Unknown,
                item_code::PACKAGES_RPM,
                SUBJECT,
                "the packages are in an RPM database, which Farrier does not read: list the installed and \
                 locked versions with rpm and dnf",
                "/var/lib/rpm",
            );
            findings.remedy(
                "to see the packages",
                "list the driver's packages and the version locks",
                Some("rpm -qa '*nvidia*' 'kernel-core*'; dnf versionlock list"),
            );
        }
        Reading::Absent => findings.item(
            Verdict::Unknown,
            item_code::PACKAGES_UNKNOWN,
            SUBJECT,
            "found no package database that Farrier can read",
            SOURCE,
        ),
        Reading::Unreadable(why) => findings.item(
            Verdict::Unknown,
            item_code::PACKAGES_UNKNOWN,
            SUBJECT,
            format!("the packages cannot be read: {why}"),
            SOURCE,
        ),
    }
}

/// Whether a package belongs to the driver: it has the kernel modules, or a driver version.
pub(crate) fn is_driver(package: &Package) -> bool {
    package.name.starts_with("linux-modules-nvidia-") || version(package).is_some()
}

/// The driver version of a package. `None` if the package is not part of the driver, or has the
/// version of a kernel (`linux-modules-nvidia-*`).
fn version(package: &Package) -> Option<DriverVersion> {
    let prefixes = ["nvidia-", "libnvidia-", "cuda-drivers", "libnvsdm", "libxnvctrl"];
    let is_candidate = prefixes.iter().any(|start| package.name.starts_with(start))
        && !package.name.starts_with("nvidia-driver-pinning-")
        && !OWN_VERSION.contains(&package.name.as_str());
    let version: DriverVersion = package.upstream().parse().ok().filter(|_| is_candidate)?;
    // Driver branches have three digits. The container toolkit, such as 1.17.8, does not.
    (version.branch().0 >= 100).then_some(version)
}

fn evaluate_dpkg(node: &NodeContext<'_>, packages: &[Package], findings: &mut NodeFindings) {
    let driver: Vec<&Package> = packages.iter().filter(|package| is_driver(package)).collect();
    if driver.is_empty() {
        if node.loaded().is_some()
            && node.observation.driver.run_file_install != Reading::Value(true)
            && node.observation.installation.driver_container != Reading::Value(true)
        {
            findings.item(
                Verdict::Caveat,
                item_code::PACKAGES_NONE,
                SUBJECT,
                "no package of the driver is installed: it was installed in another way, so no package \
                 manager holds or upgrades it",
                SOURCE,
            );
        }
        return;
    }
    state(&driver, findings);
    one_version(node, &driver, findings);
    evaluate_holds(node, packages, &driver, findings);
}

fn state(driver: &[&Package], findings: &mut NodeFindings) {
    let broken: Vec<String> = driver
        .iter()
        .filter(|package| package.status != "installed")
        .map(|package| format!("{} ({})", package.name, package.status))
        .collect();
    if broken.is_empty() {
        return;
    }
    findings.item(
        Verdict::Blocked,
        item_code::PACKAGES_BROKEN,
        SUBJECT,
        format!("packages are not completely installed: {}", broken.join(", ")),
        SOURCE,
    );
    findings.remedy(
        "for packages that are not completely installed",
        "let dpkg finish, then check again",
        Some("dpkg --configure -a"),
    );
}

fn one_version(node: &NodeContext<'_>, driver: &[&Package], findings: &mut NodeFindings) {
    let mut versions: Vec<DriverVersion> =
        driver.iter().filter_map(|package| version(package)).collect();
    versions.sort();
    versions.dedup();
    if versions.len() > 1 {
        let newest = versions.last().cloned();
        let older: Vec<String> = driver
            .iter()
            .filter(|package| version(package) != newest)
            .filter_map(|package| Some(format!("{} {}", package.name, version(package)?)))
            .collect();
        let newest = newest.map(|version| version.to_string()).unwrap_or_default();
        findings.item(
            Verdict::Caveat,
            item_code::PACKAGES_VERSIONS_MIXED,
            SUBJECT,
            format!(
                "the driver's packages have different versions: {newest}, and also {}",
                few(&older)
            ),
            SOURCE,
        );
        findings.remedy(
            "for matching driver versions",
            "install all packages of the driver in one version",
            None,
        );
    } else if let ([version], Some(loaded)) = (versions.as_slice(), node.loaded()) {
        let (verdict, code, text) = if version.to_string() == loaded {
            let text = format!("the driver's packages are {version}, like the loaded module");
            (Verdict::Ok, item_code::PACKAGES_VERSION_EQUAL, text)
        } else {
            let text = format!("the driver's packages are {version}, but {loaded} is loaded");
            (Verdict::Caveat, item_code::PACKAGES_VERSION_DIFFERS, text)
        };
        findings.item(verdict, code, SUBJECT, text, SOURCE);
        if verdict == Verdict::Caveat {
            super::driver::remedy_one_driver_version(findings);
        }
    }
}

fn evaluate_holds(
    node: &NodeContext<'_>,
    packages: &[Package],
    driver: &[&Package],
    findings: &mut NodeFindings,
) {
    let source = "/var/lib/dpkg/status; /etc/apt/preferences.d";
    let pinning =
        packages.iter().find(|package| package.name.starts_with("nvidia-driver-pinning-"));
    let pins = match &node.observation.packages.pins {
        Reading::Value(pins) => pins.as_slice(),
        Reading::Absent => &[],
        Reading::Unreadable(why) => {
            let text = format!("apt's preferences cannot be read: {why}");
            findings.item(
                Verdict::Unknown,
                item_code::PACKAGES_HELD_UNKNOWN,
                SUBJECT,
                text,
                source,
            );
            return;
        }
    };
    let free: Vec<String> = driver
        .iter()
        .filter(|package| !package.held && !pins.iter().any(|pin| pinned(pin, &package.name)))
        .map(|package| package.name.clone())
        .collect();
    if free.is_empty() {
        let text = format!("all {} packages of the driver are held or pinned", driver.len());
        findings.item(Verdict::Ok, item_code::PACKAGES_HELD, SUBJECT, text, source);
    } else if let Some(pinning) = pinning {
        let text = format!("{} keeps the driver on its branch or version", pinning.name);
        findings.item(Verdict::Ok, item_code::PACKAGES_PINNED, SUBJECT, text, source);
    } else {
        findings.item(
            Verdict::Caveat,
            item_code::PACKAGES_NOT_HELD,
            SUBJECT,
            format!(
                "{} of {} packages of the driver are not held, so an upgrade may replace the driver \
                 while jobs run: {}",
                free.len(),
                driver.len(),
                few(&free)
            ),
            source,
        );
        let command = format!("apt-mark hold {}", free.join(" "));
        findings.remedy(
            "to keep upgrades from replacing the driver",
            "hold its packages",
            Some(&command),
        );
    }
}

fn pinned(pin: &Pin, name: &str) -> bool {
    let matches = match pin.package.split_once('*') {
        Some((start, "")) => name.starts_with(start),
        Some((start, end)) => name.starts_with(start) && name.ends_with(end),
        None => pin.package == name,
    };
    matches && pin.pin.starts_with("version") && pin.priority >= PIN_PRIORITY_MIN
}

/// The first names of a list, and how many more there are.
fn few(names: &[String]) -> String {
    const SHOWN: usize = 4;
    let mut text = names[..names.len().min(SHOWN)].join(", ");
    if names.len() > SHOWN {
        text.push_str(&format!(" and {} more", names.len() - SHOWN));
    }
    text
}
