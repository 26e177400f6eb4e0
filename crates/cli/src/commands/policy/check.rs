//! `farrier policy check`.

use std::path::PathBuf;

use farrier_fleet::fleet::Policy;
use farrier_fleet::fleet::policy::{PolicyContext, PolicyNode};
use farrier_server::policy_key::{PolicyKey, verify};
use serde::Serialize;

use super::nodes::NodeSource;
use super::{EvaluationDay, document};
use crate::cli::Output;
use crate::commands::Outcome;
use crate::commands::fleet::nodes::counted;
use crate::fact_sets;
use crate::printer::{Printer, Tone};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Policy file in TOML or JSON, or `-` for stdin
    file: PathBuf,
    #[command(flatten)]
    source: NodeSource,
    /// Also check that this public key (PEM) signed the policy; repeat to accept several keys
    #[arg(long, value_name = "FILE")]
    key: Vec<PathBuf>,
    #[command(flatten)]
    on: EvaluationDay,
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Output,
}

#[derive(Debug, Serialize)]
pub(super) struct PolicyProblem {
    code: &'static str,
    pub(super) text: String,
}

pub(super) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let (policy, facts) = (document::read(&args.file)?, fact_sets::active());
    let nodes = args.source.read(&facts)?;
    let context = PolicyContext { facts: &facts, on: args.on.date(), nodes: &nodes };
    let mut problems = problems(&policy, &context);
    if !args.key.is_empty() {
        let keys = args.key.iter().map(|file| PolicyKey::read(file));
        let keys = keys.collect::<Result<Vec<_>, _>>()?;
        if let Err(err) = verify(&policy, &keys) {
            problems.push(PolicyProblem { code: "signature", text: err.to_string() });
        }
    }
    let outcome = Outcome::finding_if(!problems.is_empty());
    if args.output == Output::Json {
        printer.json(&serde_json::json!({ "problems": problems, "nodes": nodes.len() }))?;
        return Ok(outcome);
    }
    for problem in &problems {
        let word = printer.toned(Tone::Bad, "error");
        printer.line(&format!("{word} {}: {}", problem.code, problem.text))?;
    }
    if problems.is_empty() {
        printer.line(&summary(&policy, &nodes))?;
    }
    Ok(outcome)
}

/// A wrong value hides conflicts, so conflicts are only searched for if every value is right.
pub(super) fn problems(policy: &Policy, context: &PolicyContext<'_>) -> Vec<PolicyProblem> {
    match policy.check() {
        Err(err) => vec![PolicyProblem { code: "value", text: err.to_string() }],
        Ok(()) => policy
            .conflicts(context)
            .iter()
            .map(|conflict| PolicyProblem { code: conflict.code(), text: conflict.to_string() })
            .collect(),
    }
}

fn summary(policy: &Policy, nodes: &[PolicyNode]) -> String {
    let changes = &policy.changes;
    let nodes = match nodes.len() {
        0 => "without nodes; --server or --nodes also checks conflicts between them".to_owned(),
        count => format!("for {}", counted(count)),
    };
    format!(
        "no problems in version {} (rules: {}, exceptions: {}, freezes: {}, overlays: {}), checked {nodes}",
        policy.version,
        changes.rules.len(),
        changes.exceptions.len(),
        changes.freezes.len(),
        changes.overlays.len(),
    )
}
