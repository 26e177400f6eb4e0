//! Does DKMS build the driver version that is loaded?

use crate::check::Verdict;
use crate::node::context::NodeContext;
use crate::node::item_code;
use crate::node::reading::Reading;
use crate::node::report::NodeFindings;

const SOURCE: &str = "/var/lib/dkms/nvidia";

pub(crate) fn evaluate(node: &NodeContext<'_>, findings: &mut NodeFindings) {
    let trees = match &node.observation.dkms {
        Reading::Value(trees) if !trees.is_empty() => trees,
        // Precompiled modules need no DKMS. The kernel rule checks that there is a module.
        Reading::Value(_) | Reading::Absent => return,
        Reading::Unreadable(why) => {
            let text = format!("DKMS's trees cannot be read: {why}");
            findings.item(Verdict::Unknown, item_code::DKMS_UNKNOWN, "DKMS", text, SOURCE);
            return;
        }
    };
    let versions: Vec<&str> = trees.iter().map(|tree| tree.version.as_str()).collect();
    if trees.len() > 1 {
        findings.item(
            Verdict::Caveat,
            item_code::DKMS_SEVERAL,
            "DKMS",
            format!("DKMS has several versions of the driver: {}; a new kernel gets the one that is built last", versions.join(", ")),
            SOURCE,
        );
        return;
    }
    let Some(tree) = trees.first() else { return };
    let built =
        if tree.built_for.is_empty() { "no kernel".to_owned() } else { tree.built_for.join(", ") };
    match node.loaded() {
        Some(loaded) if loaded != tree.version => {
            findings.item(
                Verdict::Caveat,
                item_code::DKMS_DIFFERS,
                "DKMS",
                format!(
                    "DKMS builds {}, but {loaded} is loaded: a new kernel gets another driver",
                    tree.version
                ),
                SOURCE,
            );
            super::driver::remedy_one_driver_version(findings);
        }
        _ if tree.built_for.is_empty() => {
            findings.item(
                Verdict::Caveat,
                item_code::DKMS_NOT_BUILT,
                "DKMS",
                format!("DKMS has {}, but has not built it for any kernel", tree.version),
                SOURCE,
            );
            findings.remedy(
                "for a driver that can be loaded again",
                "build the module for the running kernel",
                Some("dkms autoinstall"),
            );
        }
        _ => findings.item(
            Verdict::Ok,
            item_code::DKMS_BUILT,
            "DKMS",
            format!("DKMS has built {} for {built}", tree.version),
            SOURCE,
        ),
    }
}
