//! States what auditors ask about a node. These items never change the verdict: whether a node
//! needs a TPM or encryption is the operator's decision.

use crate::check::Verdict;
use crate::node::compliance::ImagePolicy;
use crate::node::context::{NodeContext, counted};
use crate::node::item_code;
use crate::node::reading::Reading;
use crate::node::report::NodeFindings;

const SUBJECT: &str = "compliance";

pub(crate) fn evaluate(node: &NodeContext<'_>, findings: &mut NodeFindings) {
    if node.inside_container() {
        findings.not_judged("TPM, encryption and image policy (this is a container)");
        return;
    }
    tpm(node, findings);
    volumes(node, findings);
    image_policy(node, findings);
}

fn tpm(node: &NodeContext<'_>, findings: &mut NodeFindings) {
    let source = "/sys/class/tpm";
    match &node.observation.compliance.tpm_version {
        Reading::Value(version) => {
            let text = format!("the node has a TPM {version}");
            findings.item(Verdict::Ok, item_code::TPM_PRESENT, SUBJECT, text, source);
        }
        Reading::Absent => {
            findings.item(
                Verdict::Ok,
                item_code::TPM_ABSENT,
                SUBJECT,
                "the node has no TPM",
                source,
            );
        }
        Reading::Unreadable(why) => findings.not_judged(&format!("TPM ({why})")),
    }
}

fn volumes(node: &NodeContext<'_>, findings: &mut NodeFindings) {
    let source = "/proc/1/mountinfo; /sys/dev/block/*/dm/uuid";
    let volumes = match &node.observation.compliance.volumes {
        Reading::Value(volumes) => volumes.as_slice(),
        Reading::Absent => return,
        Reading::Unreadable(why) => return findings.not_judged(&format!("encryption ({why})")),
    };
    let plain: Vec<&str> = volumes
        .iter()
        .filter(|volume| volume.encrypted == Reading::Value(false))
        .map(|volume| volume.path.as_str())
        .collect();
    if let Some(why) = volumes.iter().find_map(|volume| volume.encrypted.why_unreadable()) {
        findings.not_judged(&format!("encryption ({why})"));
    } else if !plain.is_empty() {
        let text = format!("LUKS does not encrypt {}", plain.join(", "));
        findings.item(Verdict::Ok, item_code::VOLUMES_PLAIN, SUBJECT, text, source);
    } else if !volumes.is_empty() {
        let text = format!("LUKS encrypts {}", counted(volumes.len(), "data volume"));
        findings.item(Verdict::Ok, item_code::VOLUMES_ENCRYPTED, SUBJECT, text, source);
    }
}

fn image_policy(node: &NodeContext<'_>, findings: &mut NodeFindings) {
    let source = "/etc/containers/policy.json; containers-policy.json(5)";
    let text = match &node.observation.compliance.image_policy {
        Reading::Value(ImagePolicy::AcceptAnything) => "the image policy accepts every image",
        Reading::Value(ImagePolicy::Reject) => "the image policy rejects images without a rule",
        Reading::Value(ImagePolicy::Signed) => "the image policy requires signatures",
        Reading::Value(ImagePolicy::Other) => "the image policy has an unknown requirement",
        Reading::Absent => "there is no signature policy for container images",
        Reading::Unreadable(why) => return findings.not_judged(&format!("image policy ({why})")),
    };
    findings.item(Verdict::Ok, item_code::IMAGE_POLICY, SUBJECT, text, source);
}
