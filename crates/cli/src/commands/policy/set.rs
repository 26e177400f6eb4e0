//! `farrier policy set`.

use std::path::PathBuf;

use farrier_fleet::fleet::policy::PolicyContext;
use farrier_wire::rest::Done;
use serde_json::Value;

use super::diff::PolicyComparison;
use super::{check, document, nodes};
use crate::commands::Outcome;
use crate::commands::fleet::session::FleetSession;
use crate::confirmation::confirm;
use crate::fact_sets;
use crate::failure::Hinted;
use crate::printer::Printer;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Policy file in TOML or JSON, or `-` for stdin
    file: PathBuf,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
}

pub(super) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let value = document::read_value(&args.file)?;
    let policy = document::typed(value.clone())?;
    let (session, facts) = (&mut FleetSession::from_saved_login()?, fact_sets::active());
    let current = document::from_server(session)?;
    let nodes = nodes::from_server(session, &facts)?;
    let comparison = PolicyComparison::new(&current, &policy, &facts, &nodes, fact_sets::today());
    if comparison.values.is_empty() {
        // The server decides: it also checks the role, and whether the policy is the same.
        return put(session, &value, printer);
    }
    let context = PolicyContext { facts: &facts, on: fact_sets::today(), nodes: &nodes };
    let problems = check::problems(&policy, &context);
    if !problems.is_empty() {
        let texts: Vec<String> = problems.into_iter().map(|problem| problem.text).collect();
        return Err(Hinted::error(
            format!("the policy is invalid: {}", texts.join("; ")),
            "`farrier policy check FILE --server` lists every problem",
        ));
    }
    comparison.print(nodes.len(), printer)?;
    printer.line("")?;
    printer.finish()?;
    let Some(confirmed) = confirm(args.yes, "set this policy?")? else {
        printer.line("nothing was changed")?;
        return Ok(Outcome::Finding);
    };
    if confirmed.is_asked() {
        // While a person decides, the server may close the idle connection.
        session.reconnect();
    }
    put(session, &value, printer)
}

fn put(
    session: &mut FleetSession,
    policy: &Value,
    printer: &mut Printer,
) -> anyhow::Result<Outcome> {
    let Done { changed } = session.put("/api/v1/policy", policy)?;
    printer.line(if changed {
        "the policy is in force"
    } else {
        "no change: this policy is already in force"
    })?;
    Ok(Outcome::Fine)
}
