//! Makes a notification of a finding.

use farrier_facts::FactSet;
use farrier_fleet::fleet::NodeId;
use farrier_fleet::health::finding::Action;
use farrier_fleet::health::{Finding, GpuIdentity, Subject};
use farrier_fleet::notify::{AffectedNode, Notification, NotificationKind, NotificationStatus};
use farrier_fleet::runbook::page_code;
use jiff::Timestamp;

use crate::config::HookConfig;

/// What a message needs besides the finding.
#[derive(Debug, Clone)]
pub(super) struct MessageContext<'c> {
    pub(super) node: &'c NodeId,
    pub(super) gpus: &'c [GpuIdentity],
    pub(super) facts: &'static FactSet,
}

/// The key of the group, which has all notifications of one finding. The journal numbers findings
/// from 0 again if it was removed, so that the number alone is not unique.
pub(super) fn group(node: &NodeId, finding: &Finding) -> String {
    let Finding { id, code, first_seen, .. } = finding;
    format!("{node}/{code}/{id}/{}", first_seen.as_second())
}

/// Whether a hook gets this finding.
pub(super) fn is_selected(hook: &HookConfig, finding: &Finding, facts: &FactSet) -> bool {
    let page = page_code(facts, &finding.code, &finding.detail);
    // In the configuration of rules, the code of Xid 79 is `gpu.xid.79`.
    let rule = format!("gpu.{page}");
    let has = |pattern: &String| {
        [finding.code.as_str(), &page, &rule].iter().any(|code| {
            code.strip_prefix(pattern.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        })
    };
    finding.severity >= hook.severity && (hook.codes.is_empty() || hook.codes.iter().any(has))
}

/// The notification of a finding. The queue sets its key.
pub(super) fn notification(
    hook: &HookConfig,
    finding: &Finding,
    at: Timestamp,
    context: &MessageContext<'_>,
) -> Notification {
    let colon = if finding.detail.is_empty() { "" } else { ": " };
    let page = page_code(context.facts, &finding.code, &finding.detail);
    let action =
        (finding.action != Action::Ignore).then(|| finding.action.instruction().to_owned());
    let node = AffectedNode {
        node: context.node.clone(),
        pool: None,
        site: None,
        tenant: None,
        part: part(&finding.subject, context.gpus),
    };
    Notification {
        key: String::new(),
        group: group(context.node, finding),
        status: if finding.is_open() {
            NotificationStatus::Firing
        } else {
            NotificationStatus::Resolved
        },
        severity: finding.severity,
        kind: NotificationKind::Finding,
        code: finding.code.clone(),
        cause: format!("{}{colon}{}", finding.detail, finding.text),
        nodes: vec![node],
        nodes_total: 1,
        action_taken: None,
        action_needed: finding.remedy.clone().or(action),
        runbook_url: hook.runbooks.as_ref().map(|url| url.replace("{code}", &page)),
        started: finding.first_seen,
        at: finding.cleared.as_ref().map_or(at, |cleared| cleared.at),
    }
}

/// The part of the node: `GPU 3 (0000:1b:00.0)`. `None` if it is the whole node.
fn part(subject: &Subject, gpus: &[GpuIdentity]) -> Option<String> {
    let gpu = gpus.iter().find(|gpu| match subject {
        Subject::Pci(address) => gpu.has_pci_address(address),
        _ => subject.gpu() == Some(&gpu.uuid),
    });
    let name = gpu.map(|gpu| match &gpu.pci {
        Some(pci) => format!("GPU {} ({pci})", gpu.index),
        None => format!("GPU {}", gpu.index),
    });
    match (subject, name) {
        (Subject::Node | Subject::Agent, _) => None,
        (Subject::Link { link, .. }, Some(name)) => Some(format!("{name} NVLink {link}")),
        (_, Some(name)) => Some(name),
        (subject, None) => Some(subject.to_string()),
    }
}
