//! Requests for one or more nodes. A request for one named node is sent at once. A request for
//! several nodes is shown first and has to be confirmed. After that, it is sent to exactly the
//! nodes that were shown, one after the other.
//!
//! ```text
//! NodeTarget ─> rows ─> Preview ─ confirm ─> Confirmed ─> current rows ─> PreviewDrift ─> requests
//! ```

use std::collections::BTreeMap;

use farrier_fleet::fleet::NodeId;
use farrier_wire::client::RestError;
use farrier_wire::rest::{DomainList, Done, NodeRow};
use serde_json::Value;

use super::node_filter::{NodeFilterArgs, read_named, read_nodes};
use super::node_names::folded;
use super::nodes::counted;
use super::preview::{Preview, PreviewDrift, RequestEffect};
use super::session::{FleetSession, Path, is_for_every_node};
use crate::commands::Outcome;
use crate::confirmation::{Confirmed, confirm};
use crate::failure::Hinted;
use crate::printer::Printer;

/// The nodes that a request is for, by name or by filters.
#[derive(Debug, clap::Args)]
pub(crate) struct NodeTarget {
    /// Names of the nodes. Several nodes, or a selection with the options below, are shown first
    /// and have to be confirmed
    #[arg(value_name = "NODE")]
    nodes: Vec<NodeId>,
    #[command(flatten)]
    filter: NodeFilterArgs,
    /// Change several nodes without asking; required without a terminal
    #[arg(long, short)]
    yes: bool,
}

/// A request for nodes.
pub(super) struct NodeRequest {
    /// The subcommand, such as `cordon`.
    pub(super) verb: &'static str,
    /// Last segment of the REST path.
    pub(super) endpoint: &'static str,
    pub(super) body: Value,
    pub(super) effect: RequestEffect,
    /// What will happen to the nodes, for the preview.
    pub(super) consequence: String,
}

/// A checked target: one node, several named nodes, or the nodes that match filters.
enum Selection<'t> {
    One(&'t NodeId),
    Named(&'t [NodeId]),
    Filter(&'t NodeFilterArgs),
}

impl NodeTarget {
    /// The node, if the target is one name.
    pub(super) fn one(&self) -> Option<&NodeId> {
        match self.nodes.as_slice() {
            [node] if self.filter.is_empty() => Some(node),
            _ => None,
        }
    }

    fn selection(&self, verb: &str) -> anyhow::Result<Selection<'_>> {
        match (self.nodes.as_slice(), self.filter.is_empty()) {
            ([], true) => Err(Hinted::error(
                format!("`{verb}` needs at least one node"),
                "name nodes, or select them, such as `--rack r1 --phase quarantined`",
            )),
            ([node], true) => Ok(Selection::One(node)),
            (nodes, true) => Ok(Selection::Named(nodes)),
            ([], false) => Ok(Selection::Filter(&self.filter)),
            (_, false) => Err(Hinted::error(
                format!("names of nodes cannot be combined with `{}`", self.filter.describe()),
                "either name nodes or select them",
            )),
        }
    }
}

/// Sends a request for several nodes after a confirmation. If the target is one node, callers send
/// the request themselves, without a confirmation.
pub(super) fn send(
    session: &mut FleetSession,
    target: &NodeTarget,
    request: &NodeRequest,
    printer: &mut Printer,
) -> anyhow::Result<Outcome> {
    let selection = target.selection(request.verb)?;
    let preview = read_preview(session, &selection, request)?;
    if preview.nodes.is_empty() {
        return Err(nothing_to_do(&preview, request));
    }
    print_preview(&preview, request, printer)?;
    printer.finish()?;
    let question = format!("{} {}?", request.verb, counted(preview.nodes.len()));
    let Some(confirmed) = confirm(target.yes, &question)? else {
        printer.line("Nothing was changed.")?;
        return Ok(Outcome::Finding);
    };
    let mut nodes = preview.nodes.clone();
    if confirmed.is_asked() {
        // While a person decides, the server may close the idle connection, and the fleet may
        // change.
        session.reconnect();
        let current = read_preview(session, &selection, request)?;
        let drift = preview.drift(&current);
        print_drift(&drift, printer)?;
        if !drift.newly_below_floor.is_empty() {
            let domains: Vec<String> =
                drift.newly_below_floor.iter().map(ToString::to_string).collect();
            return Err(Hinted::error(
                format!(
                    "nothing was changed: meanwhile other nodes left service, and this would take {} below its capacity floor",
                    domains.join(", ")
                ),
                "run the command again for a current preview",
            ));
        }
        nodes.retain(|node| !drift.gone.contains(node));
    }
    execute(session, &nodes, request, &confirmed, printer)
}

fn read_preview(
    session: &mut FleetSession,
    selection: &Selection<'_>,
    request: &NodeRequest,
) -> anyhow::Result<Preview> {
    let rows = match selection {
        Selection::One(node) => named(session, std::slice::from_ref(*node))?,
        Selection::Named(nodes) => named(session, nodes)?,
        Selection::Filter(filter) => {
            let rows = read_nodes(session, &filter.add_to(Path::new("/api/v1/nodes")))?;
            let unknown = filter.unknown_names(session, &rows)?;
            if !unknown.is_empty() {
                let hint = "`farrier fleet domains` lists pools, sites, racks and switches";
                return Err(Hinted::error(unknown.join("; "), hint));
            }
            if rows.is_empty() {
                let message = format!("no node in your scope matches `{}`", filter.describe());
                return Err(Hinted::error(message, "`farrier fleet nodes` takes the same options"));
            }
            rows
        }
    };
    let domains = match request.effect {
        RequestEffect::TakesOut => session.get::<DomainList>("/api/v1/domains")?.domains,
        _ => Vec::new(),
    };
    Ok(Preview::new(request.effect, rows, &domains))
}

/// The nodes with these names. If one name is misspelt, the whole request is refused, because the
/// typo could be overlooked among many names.
fn named(session: &mut FleetSession, nodes: &[NodeId]) -> anyhow::Result<Vec<NodeRow>> {
    let rows = read_named(session, nodes)?;
    let missing = nodes.iter().filter(|node| !rows.iter().any(|row| row.node == **node));
    let missing = folded(missing.map(NodeId::as_str));
    if missing.is_empty() {
        return Ok(rows);
    }
    Err(Hinted::error(
        format!("not in the fleet, or not in your scope: {missing}"),
        "`farrier fleet nodes` lists the nodes in your scope",
    ))
}

fn nothing_to_do(preview: &Preview, request: &NodeRequest) -> anyhow::Error {
    let reasons: Vec<String> = preview
        .skipped
        .iter()
        .map(|(reason, nodes)| {
            let names = folded(nodes.iter().map(NodeId::as_str));
            format!("{names}: {reason}")
        })
        .collect();
    let message = format!("`{}` fits no selected node: {}", request.verb, reasons.join("; "));
    Hinted::error(message, "`farrier fleet nodes` shows the phase of each node")
}

/// Column where the texts of a preview start.
const INDENT: usize = 12;

fn print_preview(
    preview: &Preview,
    request: &NodeRequest,
    printer: &mut Printer,
) -> anyhow::Result<()> {
    printer.line(&format!("{} {}", request.verb, counted(preview.nodes.len())))?;
    for (name, text) in preview.lines() {
        printer.paragraph(&format!("  {name}"), INDENT, &text)?;
    }
    Ok(printer.paragraph("  effect", INDENT, &request.consequence)?)
}

fn print_drift(drift: &PreviewDrift, printer: &mut Printer) -> anyhow::Result<()> {
    for (nodes, what) in [
        (&drift.gone, "no longer match and are left as they are"),
        (&drift.added, "match by now, but were not shown and are left as they are"),
    ] {
        if !nodes.is_empty() {
            let names = folded(nodes.iter().map(NodeId::as_str));
            printer.paragraph("", 0, &format!("{}, {names}: {what}", counted(nodes.len())))?;
        }
    }
    Ok(())
}

/// Result of a request for one node.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum NodeResult {
    Changed,
    Unchanged,
    Failed(String),
    NotSent,
}

/// Sends the requests. If the request for one node fails for a reason that concerns only this node,
/// the other requests are still sent. If the reason concerns every node, such as a server that does
/// not answer or that refuses the caller, the remaining requests are not sent.
fn execute(
    session: &mut FleetSession,
    nodes: &[NodeId],
    request: &NodeRequest,
    _: &Confirmed,
    printer: &mut Printer,
) -> anyhow::Result<Outcome> {
    let mut results: BTreeMap<NodeResult, Vec<&NodeId>> = BTreeMap::new();
    let mut is_stopped = false;
    for (sent, node) in nodes.iter().enumerate() {
        let result = if is_stopped {
            NodeResult::NotSent
        } else {
            if printer.is_terminal() {
                printer.clear_transient()?;
                printer.transient(&format!("{sent} of {}", counted(nodes.len())))?;
            }
            let path = format!("/api/v1/nodes/{node}/{}", request.endpoint);
            match session.post_patiently(&path, &request.body) {
                Ok(Done { changed: true }) => NodeResult::Changed,
                Ok(Done { changed: false }) => NodeResult::Unchanged,
                Err(err) => {
                    is_stopped = is_for_every_node(&err);
                    NodeResult::Failed(failure_text(&err))
                }
            }
        };
        results.entry(result).or_default().push(node);
    }
    if printer.is_terminal() {
        printer.clear_transient()?;
    }
    print_results(&results, printer)?;
    let failed = results
        .iter()
        .filter(|(result, _)| matches!(result, NodeResult::Failed(_) | NodeResult::NotSent));
    let failed: usize = failed.map(|(_, nodes)| nodes.len()).sum();
    if failed > 0 {
        printer.finish()?;
        return Err(Hinted::error(
            format!("`{}` failed for {failed} of {}", request.verb, counted(nodes.len())),
            "run the command again once the cause is fixed: nodes that are done stay as they are",
        ));
    }
    Ok(Outcome::Fine)
}

/// The error with its causes.
fn failure_text(err: &RestError) -> String {
    farrier_agent::monitor::Chain(err).to_string()
}

fn print_results(
    results: &BTreeMap<NodeResult, Vec<&NodeId>>,
    printer: &mut Printer,
) -> anyhow::Result<()> {
    for (result, nodes) in results {
        let what = match result {
            NodeResult::Changed => "done",
            NodeResult::Unchanged => "already in effect",
            NodeResult::Failed(reason) => reason.as_str(),
            NodeResult::NotSent => "not sent, because of the failure above",
        };
        let names = folded(nodes.iter().map(|node| node.as_str()));
        printer.paragraph("", 0, &format!("{}, {names}: {what}", counted(nodes.len())))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(nodes: &[&str], filter: &str) -> NodeTarget {
        #[derive(clap::Parser)]
        struct Command {
            #[command(flatten)]
            target: NodeTarget,
        }
        let args = ["cordon"].into_iter().chain(nodes.iter().copied());
        let args = args.chain(filter.split_whitespace());
        <Command as clap::Parser>::parse_from(args).target
    }

    #[test]
    fn a_target_is_one_node_several_nodes_or_a_selection() {
        let selection = |nodes: &[&str], filter: &str| {
            let target = target(nodes, filter);
            let selection = target.selection("cordon");
            selection.map(|selection| match selection {
                Selection::One(node) => format!("one: {node}"),
                Selection::Named(nodes) => format!("named: {}", nodes.len()),
                Selection::Filter(filter) => format!("filter: {}", filter.describe()),
            })
        };
        assert_eq!(selection(&["a"], "").unwrap(), "one: a");
        assert_eq!(selection(&["a", "b"], "--yes").unwrap(), "named: 2");
        let filter = selection(&[], "--rack r1,r2 --finding 79").unwrap();
        assert_eq!(filter, "filter: --rack r1,r2 --finding xid.79");
        assert!(selection(&[], "").is_err(), "a request never means the whole fleet by omission");
        assert!(selection(&["a"], "--rack r1").is_err());
        assert_eq!(target(&["a"], "").one().map(NodeId::as_str), Some("a"));
        assert_eq!(target(&[], "--rack r1").one(), None);
    }
}
