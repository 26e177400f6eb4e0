//! `farrier notify mute`, `unmute` and `mutes`.

use farrier_fleet::fleet::identity::Unit;
use farrier_fleet::fleet::{Domain, NodeId, Pool, Tenant};
use farrier_wire::rest::{MuteList, MuteRow};
use jiff::SignedDuration;
use serde_json::json;

use super::send;
use crate::cli::Output;
use crate::commands::Outcome;
use crate::commands::fleet::session::FleetSession;
use crate::commands::server::span;
use crate::printer::Printer;

#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("alerts").required(true).multiple(true)
    .args(["node", "pool", "site", "tenant", "domain", "code"]))]
pub(crate) struct MuteArgs {
    /// Only alerts of this node
    #[arg(long)]
    node: Option<NodeId>,
    /// Only alerts of nodes in this pool
    #[arg(long, conflicts_with_all = ["site", "tenant", "domain"])]
    pool: Option<Pool>,
    /// Only alerts of nodes at this site
    #[arg(long, conflicts_with_all = ["tenant", "domain"])]
    site: Option<Unit>,
    /// Only alerts of nodes of this tenant
    #[arg(long, conflicts_with = "domain")]
    tenant: Option<Tenant>,
    /// Only alerts of nodes in this domain, such as `rack:r1`; `fleet` for all
    #[arg(long)]
    domain: Option<Domain>,
    /// Only alerts with this code, such as `gpu.xid` or `nic.*`
    #[arg(long)]
    code: Option<String>,
    /// Duration, such as 90m, 2h or 7d
    #[arg(long = "for", value_name = "TIME", value_parser = span)]
    duration: SignedDuration,
    /// Reason, shown to other operators
    #[arg(long)]
    reason: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct UnmuteArgs {
    /// Number of the mute, as `farrier notify mutes` shows it
    mute: u64,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Output,
}

impl MuteArgs {
    fn domain(&self) -> Option<Domain> {
        let pool = self.pool.clone().map(Domain::Pool);
        let site = self.site.clone().map(Domain::Site);
        let tenant = self.tenant.clone().map(Domain::Tenant);
        pool.or(site).or(tenant).or_else(|| self.domain.clone())
    }
}

pub(super) fn mute(
    session: &mut FleetSession,
    args: &MuteArgs,
    printer: &mut Printer,
) -> anyhow::Result<Outcome> {
    let body = json!({
        "node": args.node, "domain": args.domain(), "code": args.code,
        "duration_s": args.duration.as_secs(), "reason": args.reason,
    });
    let confirmation = format!("these alerts are muted for {:#}", args.duration);
    send(session, printer, "/api/v1/mutes", &body, &confirmation)
}

pub(super) fn unmute(
    session: &mut FleetSession,
    args: &UnmuteArgs,
    printer: &mut Printer,
) -> anyhow::Result<Outcome> {
    let body = json!({ "mute": args.mute });
    let confirmation =
        format!("mute {} has ended; alerts that were not told yet are sent now", args.mute);
    send(session, printer, "/api/v1/unmutes", &body, &confirmation)
}

pub(super) fn list(
    session: &mut FleetSession,
    args: &ListArgs,
    printer: &mut Printer,
) -> anyhow::Result<Outcome> {
    let list: MuteList = session.get("/api/v1/mutes")?;
    if args.output == Output::Json {
        printer.json(&list)?;
        return Ok(Outcome::Fine);
    }
    if list.mutes.is_empty() {
        printer.line("no mutes")?;
        return Ok(Outcome::Fine);
    }
    let rows: Vec<Vec<String>> = list.mutes.iter().map(row).collect();
    printer.table(&["Mute", "Alerts", "Until", "By", "Reason"], &rows)?;
    Ok(Outcome::Fine)
}

fn row(mute: &MuteRow) -> Vec<String> {
    let node = mute.node.as_ref().map(|node| format!("node {node}"));
    let domain = mute.domain.as_ref().map(ToString::to_string);
    let has_scope = mute.scope != Domain::Fleet && mute.domain.as_ref() != Some(&mute.scope);
    let scope = has_scope.then(|| format!("only in {}", mute.scope));
    let parts = [node, domain, mute.code.clone(), scope];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    let alerts = if parts.is_empty() { "all".to_owned() } else { parts.join(", ") };
    let until = format!("{:.0}", mute.until);
    vec![mute.mute.to_string(), alerts, until, mute.by.clone(), mute.reason.clone()]
}
