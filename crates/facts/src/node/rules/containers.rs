//! If there is a container runtime: is the container toolkit installed, is it free of known
//! vulnerabilities, and are its CDI specifications for this driver?

use crate::advisory::{Advisory, Product};
use crate::check::Verdict;
use crate::node::context::NodeContext;
use crate::node::item_code;
use crate::node::observation::Package;
use crate::node::reading::Reading;
use crate::node::report::NodeFindings;
use crate::version::PackageVersion;

const SUBJECT: &str = "container toolkit";
const PACKAGE: &str = "nvidia-container-toolkit";
const COMPONENT: &str = "container-toolkit";

pub(crate) fn evaluate(node: &NodeContext<'_>, findings: &mut NodeFindings) {
    if node.inside_container() {
        return;
    }
    present(node, findings);
    exposed(node, findings);
    specifications(node, findings);
    configuration(node, findings);
}

fn present(node: &NodeContext<'_>, findings: &mut NodeFindings) {
    let source = "/usr/bin/nvidia-ctk; the runtimes' programs";
    let containers = &node.observation.containers;
    let runtimes = match &containers.runtimes {
        Reading::Value(runtimes) => runtimes,
        Reading::Absent => return,
        Reading::Unreadable(why) => {
            let text = format!("cannot read which container runtimes are installed: {why}");
            findings.item(
                Verdict::Unknown,
                item_code::CONTAINER_RUNTIME_UNKNOWN,
                SUBJECT,
                text,
                source,
            );
            return;
        }
    };
    match (&containers.toolkit, runtimes.as_slice()) {
        (Reading::Value(true), _) => {
            let text = "the container toolkit is installed";
            findings.item(Verdict::Ok, item_code::CONTAINER_TOOLKIT_PRESENT, SUBJECT, text, source);
        }
        (_, []) => findings.item(
            Verdict::Ok,
            item_code::CONTAINER_RUNTIME_NONE,
            SUBJECT,
            "there is no container runtime, so the toolkit is not needed",
            source,
        ),
        (Reading::Unreadable(why), _) => findings.item(
            Verdict::Unknown,
            item_code::CONTAINER_TOOLKIT_UNKNOWN,
            SUBJECT,
            format!("cannot read whether the container toolkit is installed: {why}"),
            source,
        ),
        (_, runtimes) => {
            findings.item(
                Verdict::Caveat,
                item_code::CONTAINER_TOOLKIT_MISSING,
                SUBJECT,
                format!(
                    "{} is installed without the container toolkit, so containers cannot use GPUs",
                    runtimes.join(", ")
                ),
                source,
            );
            findings.remedy(
                "for GPUs in containers",
                "install the container toolkit and let it configure the runtime",
                Some("apt-get install nvidia-container-toolkit && nvidia-ctk runtime configure"),
            );
        }
    }
}

/// A runtime gives GPUs to containers through NVIDIA's hook, or through CDI specifications.
fn configuration(node: &NodeContext<'_>, findings: &mut NodeFindings) {
    let source = "/etc/containerd; /etc/docker/daemon.json; /etc/crio; /etc/cdi; NVIDIA Container \
                  Toolkit, Configuration";
    let containers = &node.observation.containers;
    let runtimes = containers.runtimes.value().map_or(&[][..], Vec::as_slice);
    let has_specs = containers.cdi.value().is_some_and(|specs| !specs.is_empty());
    if runtimes.is_empty() || has_specs || containers.toolkit != Reading::Value(true) {
        return;
    }
    match &containers.configured {
        Reading::Value(true) => {
            let text = "a container runtime is configured for GPUs";
            findings.item(
                Verdict::Ok,
                item_code::CONTAINER_RUNTIME_CONFIGURED,
                SUBJECT,
                text,
                source,
            );
        }
        Reading::Value(false) | Reading::Absent => {
            findings.item(
                Verdict::Caveat,
                item_code::CONTAINER_RUNTIME_UNCONFIGURED,
                SUBJECT,
                format!(
                    "{} has neither NVIDIA's hook nor a CDI specification, so containers cannot \
                     use GPUs",
                    runtimes.join(", ")
                ),
                source,
            );
            findings.remedy(
                "for GPUs in containers",
                "let the container toolkit write a CDI specification or configure the runtime",
                Some("nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"),
            );
        }
        Reading::Unreadable(why) => {
            let what = "the configuration of the container runtimes";
            findings.unreadable(item_code::CONTAINER_RUNTIME_UNREAD, SUBJECT, what, why, source);
        }
    }
}

fn exposed(node: &NodeContext<'_>, findings: &mut NodeFindings) {
    let packages = node.observation.packages.dpkg.value().map_or(&[][..], Vec::as_slice);
    let Some(package) = packages.iter().find(|package| package.name == PACKAGE) else { return };
    let Ok(installed) = package.upstream().parse::<PackageVersion>() else {
        unreadable(package, findings);
        return;
    };
    let fixed_version = |advisory: &Advisory| -> Option<PackageVersion> {
        let component =
            advisory.fixed_components.iter().find(|component| component.component == COMPONENT)?;
        component.version.parse().ok()
    };
    let lacking: Vec<(&Advisory, PackageVersion)> = node
        .set
        .advisories
        .advisory
        .iter()
        .filter(|advisory| advisory.product == Product::ContainerToolkit)
        .filter(|advisory| advisory.published <= node.on)
        .filter_map(|advisory| Some((advisory, fixed_version(advisory)?)))
        .filter(|(_, fixed)| installed < *fixed)
        .collect();
    let worst = lacking.iter().max_by(|(left, _), (right, _)| left.score.total_cmp(&right.score));
    let newest = lacking.iter().map(|(_, fixed)| fixed).max();
    let (Some((worst, _)), Some(newest)) = (worst, newest) else {
        let text = format!("{PACKAGE} {installed} has the fixes of every advisory in the data");
        findings.item(
            Verdict::Ok,
            item_code::CONTAINER_TOOLKIT_FIXED,
            SUBJECT,
            text,
            "/var/lib/dpkg/status",
        );
        return;
    };
    let verdict = if node.strict { Verdict::Blocked } else { Verdict::Caveat };
    findings.item(
        verdict,
        item_code::CONTAINER_TOOLKIT_EXPOSED,
        SUBJECT,
        format!(
            "{PACKAGE} {installed} lacks {}, the most severe being {} ({} {}): {}",
            if lacking.len() == 1 {
                "a security fix".to_owned()
            } else {
                format!("{} security fixes", lacking.len())
            },
            worst.id,
            worst.score,
            worst.level.name(),
            worst.summary
        ),
        worst.origin.line(),
    );
    findings.remedy(
        "for secure containers",
        &format!("upgrade the container toolkit to {newest} or newer"),
        Some("apt-get install --only-upgrade nvidia-container-toolkit"),
    );
}

fn unreadable(package: &Package, findings: &mut NodeFindings) {
    findings.item(
        Verdict::Unknown,
        item_code::CONTAINER_TOOLKIT_VERSION_UNKNOWN,
        SUBJECT,
        format!("the version of {PACKAGE}, {}, cannot be compared", package.version),
        "/var/lib/dpkg/status",
    );
}

fn specifications(node: &NodeContext<'_>, findings: &mut NodeFindings) {
    let source = "/etc/cdi; /var/run/cdi";
    let specs = match &node.observation.containers.cdi {
        Reading::Value(specs) => specs.as_slice(),
        Reading::Absent => &[],
        Reading::Unreadable(why) => {
            let text = format!("the CDI specifications cannot be read: {why}");
            findings.item(Verdict::Unknown, item_code::CDI_UNKNOWN, SUBJECT, text, source);
            return;
        }
    };
    let library = node.user_space();
    for spec in specs {
        let path = &spec.path;
        match (&spec.driver, library) {
            (Reading::Value(driver), Some(library)) if driver != library => {
                findings.item(
                    Verdict::Caveat,
                    item_code::CDI_STALE,
                    SUBJECT,
                    format!("{path} mounts the libraries of driver {driver}, but {library} is installed: containers that use it do not start"),
                    source,
                );
                findings.remedy(
                    "for GPUs in containers",
                    "generate the CDI specification again",
                    Some(&format!("nvidia-ctk cdi generate --output={path}")),
                );
            }
            (Reading::Value(driver), _) => findings.item(
                Verdict::Ok,
                item_code::CDI_CURRENT,
                SUBJECT,
                format!("{path} is for driver {driver}"),
                source,
            ),
            (Reading::Absent, _) => {}
            (Reading::Unreadable(why), _) => findings.item(
                Verdict::Unknown,
                item_code::CDI_UNKNOWN,
                SUBJECT,
                format!("{path} cannot be read: {why}"),
                source,
            ),
        }
    }
}
