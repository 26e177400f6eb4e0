//! `farrier policy diff`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use farrier_facts::FactSet;
use farrier_fleet::fleet::policy::{
    NodePolicyDifference, NodeValueDifference, PolicyDifference, PolicyNode, differences,
    node_differences,
};
use farrier_fleet::fleet::{NodeId, Policy};
use jiff::civil::Date;
use serde_json::{Value, json};

use super::nodes::NodeSource;
use super::{EvaluationDay, document};
use crate::cli::Output;
use crate::commands::Outcome;
use crate::commands::fleet::node_names;
use crate::commands::fleet::session::FleetSession;
use crate::fact_sets;
use crate::printer::Printer;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Policy file, or `server` for the policy in force
    before: PathBuf,
    /// Policy file, or `server` for the policy in force
    after: PathBuf,
    #[command(flatten)]
    source: NodeSource,
    #[command(flatten)]
    on: EvaluationDay,
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Output,
}

pub(super) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let facts = fact_sets::active();
    let (before, after) = (read(&args.before)?, read(&args.after)?);
    let nodes = args.source.read(&facts)?;
    let comparison = PolicyComparison::new(&before, &after, &facts, &nodes, args.on.date());
    if args.output == Output::Json {
        printer.json(&json!({
            "version": 1,
            "differences": comparison.values,
            "nodes": comparison.nodes,
            "known_nodes": nodes.len(),
        }))?;
    } else {
        comparison.print(nodes.len(), printer)?;
    }
    Ok(Outcome::finding_if(!comparison.values.is_empty()))
}

fn read(file: &Path) -> anyhow::Result<Policy> {
    if file.as_os_str() == "server" {
        return document::from_server(&mut FleetSession::from_saved_login()?);
    }
    document::read(file)
}

/// What differs between two policies, and for which nodes.
pub(super) struct PolicyComparison {
    pub(super) values: Vec<PolicyDifference>,
    nodes: Vec<NodePolicyDifference>,
}

impl PolicyComparison {
    pub(super) fn new(
        before: &Policy,
        after: &Policy,
        facts: &FactSet,
        nodes: &[PolicyNode],
        on: Date,
    ) -> Self {
        Self {
            values: differences(before, after),
            nodes: node_differences(before, after, facts, nodes, on),
        }
    }

    pub(super) fn print(&self, known_nodes: usize, printer: &mut Printer) -> anyhow::Result<()> {
        if self.values.is_empty() {
            printer.line("no differences")?;
            return Ok(());
        }
        let text = |value: &Option<Value>| match value {
            None => "-".to_owned(),
            Some(Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
        };
        let row =
            |one: &PolicyDifference| vec![one.at.clone(), text(&one.before), text(&one.after)];
        let rows: Vec<Vec<String>> = self.values.iter().map(row).collect();
        printer.table(&["Key", "Before", "After"], &rows)?;
        printer.line("")?;
        if known_nodes == 0 {
            printer.line("nodes: unknown; --server or --nodes says which nodes change")?;
            return Ok(());
        }
        printer.line(&format!(
            "{} of {known_nodes} nodes have another effective policy",
            self.nodes.len()
        ))?;
        let mut by_changes: BTreeMap<Vec<String>, Vec<&NodeId>> = BTreeMap::new();
        for one in &self.nodes {
            let changes = one.values.iter().map(change_text).collect();
            by_changes.entry(changes).or_default().push(&one.node);
        }
        for (changes, nodes) in by_changes {
            printer.line("")?;
            let names = node_names::folded(nodes.iter().map(|node| node.as_str()));
            printer.paragraph("nodes", 8, &names)?;
            for change in changes {
                printer.paragraph("", 8, &change)?;
            }
        }
        Ok(())
    }
}

fn change_text(value: &NodeValueDifference) -> String {
    let text = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
    match value.field.as_str() {
        // The values are in the table.
        "pools" => "the quarantine policy of the pool".to_owned(),
        field => format!("{field}: {} -> {}", text(&value.before), text(&value.after)),
    }
}
