//! `farrier policy explain`.

use std::path::PathBuf;

use farrier_facts::FactSet;
use farrier_fleet::fleet::policy::{
    BranchChoice, EffectivePolicy, PolicyNode, RuleField, VersionRefusal, resolve,
};
use farrier_fleet::fleet::{NodeId, Policy};
use jiff::civil::Date;
use serde_json::{Value, json};

use super::nodes::{PolicyNodeClass, from_file, from_server};
use super::{EvaluationDay, document};
use crate::cli::Output;
use crate::commands::Outcome;
use crate::commands::fleet::session::FleetSession;
use crate::fact_sets;
use crate::failure::Hinted;
use crate::printer::{Printer, Tone};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A node of the fleet
    node: Option<NodeId>,
    #[command(flatten)]
    class: PolicyNodeClass,
    /// Policy file [default: the policy in force on the server]
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// Nodes in a file that `farrier fleet export` wrote [default: the nodes of the server]
    #[arg(long, value_name = "FILE", requires = "node")]
    nodes: Option<PathBuf>,
    #[command(flatten)]
    on: EvaluationDay,
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Output,
}

/// Most refused drivers to print.
const REFUSED_MAX: usize = 5;

pub(super) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let (facts, on) = (fact_sets::active(), args.on.date());
    let policy = match &args.policy {
        Some(file) => document::read(file)?,
        None => document::from_server(&mut FleetSession::from_saved_login()?)?,
    };
    let node = match args.class.node(&facts)? {
        Some(class) => class,
        None => named(args, &facts)?,
    };
    let effective = resolve(&policy, &facts, &node, on).map_err(|tie| {
        Hinted::error(tie.to_string(), "`farrier policy check` lists every conflict")
    })?;
    let explanation =
        PolicyExplanation { policy: &policy, node: &node, effective, facts: &facts, on };
    if args.output == Output::Json {
        printer.json(&explanation.json())?;
    } else {
        explanation.print(printer)?;
    }
    Ok(Outcome::Fine)
}

fn named(args: &Args, facts: &FactSet) -> anyhow::Result<PolicyNode> {
    let nodes = match &args.nodes {
        Some(file) => from_file(file, facts)?,
        None => from_server(&mut FleetSession::from_saved_login()?, facts)?,
    };
    let name = args.node.as_ref();
    nodes.into_iter().find(|node| node.node.as_ref() == name).ok_or_else(|| {
        let name = name.map(ToString::to_string).unwrap_or_default();
        Hinted::error(
            format!("there is no node `{name}`"),
            "`farrier fleet nodes` lists the nodes in your scope",
        )
    })
}

struct PolicyExplanation<'a> {
    policy: &'a Policy,
    node: &'a PolicyNode,
    effective: EffectivePolicy,
    facts: &'a FactSet,
    on: Date,
}

impl PolicyExplanation<'_> {
    fn json(&self) -> Value {
        let (newest, refused) = self.effective.newest_allowed(self.node, self.facts, self.on);
        let refused: Vec<Value> = refused
            .iter()
            .map(|(driver, refusals)| {
                let texts: Vec<String> = refusals.iter().map(ToString::to_string).collect();
                json!({ "driver": driver, "refusals": refusals, "texts": texts })
            })
            .collect();
        json!({
            "version": 1,
            "node": self.node.node,
            "location": self.node.location,
            "gpus": self.node.gpus,
            "driver": self.node.driver,
            "on": self.on,
            "facts": self.facts.set.name,
            "effective": self.effective,
            "branch": self.effective.branch(self.node, self.facts, self.on),
            "newest_allowed": newest,
            "refused": refused,
            "quarantine": self.policy.for_pool(&self.node.location.pool),
        })
    }

    fn print(&self, printer: &mut Printer) -> anyhow::Result<()> {
        printer.line(&format!("{}, on {}", self.node.label(), self.on))?;
        let gpus =
            self.node.gpus.as_ref().map_or_else(|| "unknown".to_owned(), |gpus| gpus.join(", "));
        printer.paragraph("  GPUs", WIDTH, &gpus)?;
        let driver = self.node.driver.as_ref();
        let driver = driver.map_or_else(|| "unknown".to_owned(), ToString::to_string);
        printer.paragraph("  driver", WIDTH, &driver)?;
        printer.line("")?;
        self.print_values(printer)?;
        self.print_freezes(printer)?;
        for rule in &self.effective.undetermined {
            let keys: Vec<&str> = rule.unknown.iter().map(|key| key.name()).collect();
            let word = printer.toned(Tone::Caution, "undetermined");
            let text = format!("{} may apply: unknown {}", rule.source, keys.join(", "));
            printer.line(&format!("{word} {text}"))?;
        }
        self.print_choice(printer)?;
        fact_sets::print(&self.facts.set, printer)?;
        Ok(())
    }

    fn print_values(&self, printer: &mut Printer) -> anyhow::Result<()> {
        let mut rows: Vec<Vec<String>> = Vec::new();
        for field in RuleField::ALL {
            let row = match self.effective.values.get(&field) {
                Some(found) => {
                    [field.name().to_owned(), found.value.to_string(), found.source.to_string()]
                }
                None => [field.name().to_owned(), "-".to_owned(), "no rule sets it".to_owned()],
            };
            rows.push(row.to_vec());
        }
        for version in &self.effective.forbidden {
            let row =
                ["forbidden".to_owned(), version.value.to_string(), version.source.to_string()];
            rows.push(row.to_vec());
        }
        for waived in &self.effective.waived {
            let row =
                ["waived".to_owned(), waived.value.name().to_owned(), waived.source.to_string()];
            rows.push(row.to_vec());
        }
        printer.table(&["Changes", "Value", "From"], &rows)?;
        let pool = &self.node.location.pool;
        let quarantine = self.policy.for_pool(pool);
        let from = match self.policy.pools.get(pool) {
            Some(_) => format!("pools.{pool}"),
            None => "pools_default".to_owned(),
        };
        printer.line("")?;
        let autonomy = serde_json::to_value(quarantine.autonomy)?;
        let autonomy = autonomy.as_str().unwrap_or_default();
        printer.paragraph("quarantine", WIDTH, &format!("autonomy {autonomy} ({from})"))?;
        Ok(())
    }

    fn print_freezes(&self, printer: &mut Printer) -> anyhow::Result<()> {
        for found in &self.effective.freezes {
            let freeze = &found.freeze;
            let allow = serde_json::to_value(freeze.allow)?;
            let text = format!(
                "{}: {:.0} to {:.0}, allows {}; {} ({})",
                found.name,
                freeze.from,
                freeze.to,
                allow.as_str().unwrap_or_default(),
                freeze.reason,
                freeze.owner
            );
            printer.paragraph("freeze", WIDTH, &text)?;
        }
        Ok(())
    }

    fn print_choice(&self, printer: &mut Printer) -> anyhow::Result<()> {
        let branch = match self.effective.branch(self.node, self.facts, self.on) {
            BranchChoice::Unset => {
                return Ok(printer.paragraph(
                    "driver",
                    WIDTH,
                    "the policy does not say which branch the node follows",
                )?);
            }
            BranchChoice::Branch(branch) => branch.to_string(),
            BranchChoice::UnknownGpus => "unknown: the GPUs are unknown".to_owned(),
            BranchChoice::NoBranch { gpus_end_at: Some(last) } => {
                format!("none: the GPUs end at {last}, which is no supported branch of the track")
            }
            BranchChoice::NoBranch { gpus_end_at: None } => {
                "none: no branch of the track is supported".to_owned()
            }
        };
        printer.paragraph("branch", WIDTH, &branch)?;
        let (newest, refused) = self.effective.newest_allowed(self.node, self.facts, self.on);
        let newest = newest.map_or_else(|| "none".to_owned(), |driver| driver.to_string());
        printer.paragraph(
            "allowed",
            WIDTH,
            &format!("{newest} is the newest known driver that may be installed"),
        )?;
        // Drivers of other branches are refused for that alone; the reasons for others say more.
        let of_branch = refused.iter().filter(|(_, refusals)| {
            !refusals.iter().any(|refusal| matches!(refusal, VersionRefusal::OtherBranch { .. }))
        });
        for (driver, refusals) in of_branch.take(REFUSED_MAX) {
            let texts: Vec<String> = refusals.iter().map(ToString::to_string).collect();
            printer.paragraph("refused", WIDTH, &format!("{driver}: {}", texts.join("; ")))?;
        }
        Ok(())
    }
}

const WIDTH: usize = 12;
