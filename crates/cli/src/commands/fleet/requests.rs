//! Operator requests: cordon, uncordon, repaired, approve, verify, diag, tune, retire, freeze.

use farrier_fleet::fleet::decide::affects_service;
use farrier_fleet::fleet::{Domain, NodeId, VerificationLevel};
use farrier_fleet::health::{Action, Finding};
use farrier_wire::rest::{Done, NodeDetail};
use jiff::SignedDuration;
use serde_json::{Value, json};

use super::bulk::{self, NodeRequest, NodeTarget};
use super::findings::code_with_detail;
use super::preview::RequestEffect;
use super::session::FleetSession;
use crate::commands::Outcome;
use crate::commands::server::span;
use crate::printer::Printer;

#[derive(Debug, clap::Args)]
pub(crate) struct NodeArgs {
    #[command(flatten)]
    target: NodeTarget,
}

#[derive(Debug, clap::Args)]
pub(crate) struct CordonArgs {
    #[command(flatten)]
    target: NodeTarget,
    /// Reason, shown to other operators
    #[arg(long)]
    reason: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RepairedArgs {
    #[command(flatten)]
    target: NodeTarget,
    /// Description of the repair, shown to other operators
    #[arg(long, value_name = "TEXT")]
    repair: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct VerifyArgs {
    #[command(flatten)]
    target: NodeTarget,
    /// Verification level: v0, v1, v2, v3
    #[arg(long, value_parser = parse_level)]
    level: VerificationLevel,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DiagArgs {
    #[command(flatten)]
    target: NodeTarget,
    /// Diag level: level 1 takes seconds, level 2 takes minutes, level 3 takes as long as --minutes
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=3))]
    level: u32,
    /// Duration of the level 3 load, in minutes
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1440))]
    minutes: u32,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TuneArgs {
    /// Name of the node
    node: NodeId,
    /// Tuning profile: training, inference, shared
    profile: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RetireArgs {
    /// Name of the node
    node: NodeId,
    /// Reason, shown to other operators
    #[arg(long)]
    reason: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct FreezeArgs {
    /// Domain to freeze: `fleet`, or one such as `pool:train`, `rack:r1`
    domain: Domain,
    /// Duration, such as 90m, 2h or 7d
    #[arg(long = "for", value_name = "TIME", value_parser = span)]
    duration: SignedDuration,
    /// Reason, shown to other operators
    #[arg(long)]
    reason: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct UnfreezeArgs {
    /// Domain to unfreeze
    domain: Domain,
}

fn parse_level(text: &str) -> Result<VerificationLevel, String> {
    serde_json::from_value(json!(text.to_lowercase()))
        .map_err(|_| "expected v0, v1, v2 or v3".to_owned())
}

fn send(
    session: &mut FleetSession,
    printer: &mut Printer,
    path: &str,
    body: &Value,
    confirmation: &str,
) -> anyhow::Result<Outcome> {
    let Done { changed } = session.post(path, body)?;
    printer.line(if changed { confirmation } else { "no change: this is already in effect" })?;
    Ok(Outcome::Fine)
}

fn send_for_node(
    session: &mut FleetSession,
    printer: &mut Printer,
    (node, endpoint): (&NodeId, &str),
    body: &Value,
    confirmation: &str,
) -> anyhow::Result<Outcome> {
    let path = format!("/api/v1/nodes/{node}/{endpoint}");
    send(session, printer, &path, body, &format!("{node} {confirmation}"))
}

/// Sends the request. If the target is one node, the request is sent at once, and the output is the
/// name of the node followed by `done`. Otherwise the nodes are shown, and the user has to confirm.
fn send_for_target(
    session: &mut FleetSession,
    printer: &mut Printer,
    target: &NodeTarget,
    request: &NodeRequest,
    done: &str,
) -> anyhow::Result<Outcome> {
    match target.one() {
        Some(node) => {
            send_for_node(session, printer, (node, request.endpoint), &request.body, done)
        }
        None => bulk::send(session, target, request, printer),
    }
}

pub(super) fn cordon(
    session: &mut FleetSession,
    args: &CordonArgs,
    printer: &mut Printer,
) -> anyhow::Result<Outcome> {
    let request = NodeRequest {
        verb: "cordon",
        endpoint: "hold",
        body: json!({ "reason": args.reason }),
        effect: RequestEffect::TakesOut,
        consequence: "They get no new work and running work drains, until `farrier fleet uncordon`. Holds use no disruption budget.".to_owned(),
    };
    send_for_target(session, printer, &args.target, &request, "is held out of service")
}

pub(super) fn uncordon(
    session: &mut FleetSession,
    args: &NodeArgs,
    printer: &mut Printer,
) -> anyhow::Result<Outcome> {
    let Some(node) = args.target.one() else {
        let request = NodeRequest {
            verb: "uncordon",
            endpoint: "release",
            body: json!({}),
            effect: RequestEffect::Any,
            consequence: "The holds of operators end. Each node is verified before it returns to service. Nodes that no operator holds stay as they are.".to_owned(),
        };
        return bulk::send(session, &args.target, &request, printer);
    };
    let path = format!("/api/v1/nodes/{node}/release");
    let Done { changed } = session.post(&path, &json!({}))?;
    printer.line(&if changed {
        format!("{node} is released; it is verified before it returns to service")
    } else {
        // The controller may have decided to keep the node out of service.
        format!(
            "no operator holds {node}; `farrier fleet explain {node}` shows its phase and the reason"
        )
    })?;
    Ok(Outcome::Fine)
}

pub(super) fn repaired(
    session: &mut FleetSession,
    args: &RepairedArgs,
    printer: &mut Printer,
) -> anyhow::Result<Outcome> {
    let request = NodeRequest {
        verb: "repaired",
        endpoint: "repaired",
        body: json!({ "repair": args.repair }),
        effect: RequestEffect::NeedsOutOfService,
        consequence: format!(
            "Each is recorded as repaired (\"{}\") and verified before it returns to service.",
            args.repair
        ),
    };
    let confirmation = "is recorded as repaired: its agent resets the counters behind findings that only a manual repair clears, and the node is verified before it returns to service";
    let outcome = send_for_target(session, printer, &args.target, &request, confirmation)?;
    if let Some(node) = args.target.one() {
        still_open(session, node, printer)?;
    }
    Ok(outcome)
}

/// Prints the findings that stay open after the repair.
fn still_open(
    session: &mut FleetSession,
    node: &NodeId,
    printer: &mut Printer,
) -> anyhow::Result<()> {
    let NodeDetail { findings, finding_subjects, .. } =
        session.get(&format!("/api/v1/nodes/{node}"))?;
    // Skip findings that a manual repair clears. The agent clears them at once or a short time
    // later.
    let stays_open = |finding: &Finding| {
        affects_service(finding) && finding.rule_action != Action::DrainAndReplace
    };
    let mut finding_subjects = finding_subjects.into_iter().flatten();
    for finding in &findings {
        let subject = finding_subjects.next().unwrap_or_else(|| finding.subject.to_string());
        if stays_open(finding) {
            let text = format!(
                "{} on {subject}; it clears {}",
                code_with_detail(finding),
                finding.clears_when
            );
            printer.paragraph("  still open", 13, &text)?;
        }
    }
    Ok(())
}

pub(super) fn approve(
    session: &mut FleetSession,
    args: &NodeArgs,
    printer: &mut Printer,
) -> anyhow::Result<Outcome> {
    let request = NodeRequest {
        verb: "approve",
        endpoint: "approve",
        body: json!({}),
        effect: RequestEffect::NeedsDeferredRepair,
        consequence: "Their deferred repairs may run now.".to_owned(),
    };
    send_for_target(session, printer, &args.target, &request, "may now run its deferred order")
}

pub(super) fn verify(
    session: &mut FleetSession,
    args: &VerifyArgs,
    printer: &mut Printer,
) -> anyhow::Result<Outcome> {
    let level = args.level;
    // These levels use the memory of the GPUs.
    let takes_gpus = matches!(level, VerificationLevel::V2 | VerificationLevel::V3);
    let request = NodeRequest {
        verb: "verify",
        endpoint: "verify",
        body: json!({ "level": level }),
        effect: if takes_gpus { RequestEffect::NeedsIdle } else { RequestEffect::Any },
        consequence: format!("Each is verified again: {level}."),
    };
    send_for_target(session, printer, &args.target, &request, "will be verified again")
}

pub(super) fn diag(
    session: &mut FleetSession,
    args: &DiagArgs,
    printer: &mut Printer,
) -> anyhow::Result<Outcome> {
    let request = NodeRequest {
        verb: "diag",
        endpoint: "diag",
        body: json!({ "level": args.level, "minutes": args.minutes }),
        effect: RequestEffect::NeedsIdle,
        consequence: format!(
            "The GPUs of each are tested once at diag level {}; `farrier fleet node NODE` shows the result.",
            args.level
        ),
    };
    let node = args.target.one().map_or("NODE", NodeId::as_str);
    let done = format!("will be tested; `farrier fleet node {node}` shows the result");
    send_for_target(session, printer, &args.target, &request, &done)
}

pub(super) fn tune(
    session: &mut FleetSession,
    args: &TuneArgs,
    printer: &mut Printer,
) -> anyhow::Result<Outcome> {
    let node = &args.node;
    let body = json!({ "profile": args.profile });
    let confirmation = format!("will be tuned; `farrier fleet node {node}` shows the result");
    send_for_node(session, printer, (node, "tune"), &body, &confirmation)
}

pub(super) fn retire(
    session: &mut FleetSession,
    args: &RetireArgs,
    printer: &mut Printer,
) -> anyhow::Result<Outcome> {
    let body = json!({ "reason": args.reason });
    send_for_node(session, printer, (&args.node, "retire"), &body, "is removed from the fleet")
}

pub(super) fn freeze(
    session: &mut FleetSession,
    args: &FreezeArgs,
    printer: &mut Printer,
) -> anyhow::Result<Outcome> {
    let body = json!({ "domain": args.domain, "duration_s": args.duration.as_secs(), "reason": args.reason });
    let confirmation = format!("repairs in {} are frozen for {:#}", args.domain, args.duration);
    send(session, printer, "/api/v1/freezes", &body, &confirmation)
}

pub(super) fn unfreeze(
    session: &mut FleetSession,
    args: &UnfreezeArgs,
    printer: &mut Printer,
) -> anyhow::Result<Outcome> {
    let body = json!({ "domain": args.domain });
    let confirmation = format!("{} is no longer frozen", args.domain);
    send(session, printer, "/api/v1/unfreezes", &body, &confirmation)
}
