//! The filters of `farrier fleet nodes` and of requests for many nodes. The server applies them, so
//! that a list of a few nodes of a large fleet reads only these.

use clap::builder::PossibleValuesParser;
use farrier_facts::names::nearest;
use farrier_fleet::fleet::{Domain, NodeId, NodePhase};
use farrier_fleet::health::Rules;
use farrier_fleet::runbook::{FirstCommands, RunbookSources};
use farrier_wire::rest::{DomainList, NodePage, NodeRow};

use super::session::{FleetSession, Path};
use crate::commands::runbook;
use crate::fact_sets;

/// Nodes per page, which is the maximum that the server accepts.
const PAGE: usize = 500;

/// Maximum number of names per request. The server limits the length of a path to 4 KiB, and a name
/// has at most 63 characters.
const NAMES_PER_REQUEST: usize = 50;

/// Several values of one filter, separated by commas, select nodes with any of them.
#[derive(Debug, Clone, Default, PartialEq, clap::Args)]
pub(crate) struct NodeFilterArgs {
    /// Only nodes of these pools
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pool: Vec<String>,
    /// Only nodes at these sites
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    site: Vec<String>,
    /// Only nodes in these racks
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    rack: Vec<String>,
    /// Only nodes behind these leaf switches
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    leaf: Vec<String>,
    /// Only nodes in these phases
    #[arg(long, value_name = "PHASE,...", value_delimiter = ',',
        value_parser = PossibleValuesParser::new(NodePhase::ALL.map(NodePhase::code)))]
    phase: Vec<String>,
    /// Only nodes with these GPUs, such as H100, or `unknown`
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    gpu: Vec<String>,
    /// Only nodes with these driver versions or branches, such as 580, or `unknown`
    #[arg(long, value_name = "VERSION,...", value_delimiter = ',')]
    driver: Vec<String>,
    /// Only nodes with an open finding whose code begins with one of these, such as gpu.ecc or
    /// xid.79
    #[arg(long, value_name = "CODE,...", value_delimiter = ',')]
    finding: Vec<FindingCode>,
}

/// The beginning of a finding's code, or an Xid in any form that `farrier runbook` accepts:
/// `xid.79`, `Xid 79` or `79`.
#[derive(Debug, Clone, PartialEq)]
struct FindingCode(String);

impl From<&str> for FindingCode {
    fn from(text: &str) -> Self {
        Self(runbook::code_of(text))
    }
}

impl NodeFilterArgs {
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The query parameters, by name.
    fn parameters(&self) -> [(&'static str, String); 8] {
        let codes: Vec<&str> = self.finding.iter().map(|FindingCode(code)| code.as_str()).collect();
        [
            ("pool", self.pool.join(",")),
            ("site", self.site.join(",")),
            ("rack", self.rack.join(",")),
            ("leaf", self.leaf.join(",")),
            ("phase", self.phase.join(",")),
            ("gpu", self.gpu.join(",")),
            ("driver", self.driver.join(",")),
            ("finding", codes.join(",")),
        ]
    }

    /// Adds the filters to a path.
    pub(super) fn add_to(&self, path: Path) -> Path {
        self.parameters().into_iter().fold(path, |path, (name, values)| {
            path.with(name, Some(values).filter(|values| !values.is_empty()))
        })
    }

    /// The filters as options, for messages: `--rack r1,r2 --phase held`.
    pub(super) fn describe(&self) -> String {
        let given = self.parameters().into_iter().filter(|(_, values)| !values.is_empty());
        given.map(|(name, values)| format!("--{name} {values}")).collect::<Vec<_>>().join(" ")
    }

    /// What is wrong with the filters: names that nothing in the caller's scope has, with similar
    /// names. `rows` are the nodes that they select; a name that one of these has is known.
    pub(super) fn unknown_names(
        &self,
        session: &mut FleetSession,
        rows: &[NodeRow],
    ) -> anyhow::Result<Vec<String>> {
        let domains: Vec<Domain> = [
            ("pool", &self.pool),
            ("site", &self.site),
            ("rack", &self.rack),
            ("leaf", &self.leaf),
        ]
        .into_iter()
        .flat_map(|(kind, names)| names.iter().map(move |name| format!("{kind}:{name}")))
        .filter_map(|domain| domain.parse().ok())
        .filter(|domain| !rows.iter().any(|row| row.location.domains().contains(domain)))
        .collect();
        let mut unknown = unknown_domains(session, &domains)?;
        if rows.is_empty() {
            let codes = self.finding.iter().map(|FindingCode(code)| code.as_str());
            unknown.extend(unknown_codes(codes)?);
        }
        Ok(unknown)
    }
}

/// What is wrong with the domains: those that no node in the caller's scope is in.
pub(super) fn unknown_domains(
    session: &mut FleetSession,
    domains: &[Domain],
) -> anyhow::Result<Vec<String>> {
    if domains.is_empty() {
        return Ok(Vec::new());
    }
    let known: DomainList = session.get("/api/v1/domains")?;
    let known: Vec<Domain> = known.domains.into_iter().map(|row| row.domain).collect();
    let missing = domains.iter().filter(|domain| !known.contains(domain));
    Ok(missing.map(|domain| unknown_domain(domain, &known)).collect())
}

/// What is wrong with the codes: those that no rule's code begins with.
pub(super) fn unknown_codes<'c>(
    wanted: impl Iterator<Item = &'c str>,
) -> anyhow::Result<Vec<String>> {
    let (rules, commands, set) =
        (Rules::embedded()?, FirstCommands::embedded()?, fact_sets::active());
    let codes = RunbookSources { rules: &rules, facts: &set, commands: &commands }.codes();
    let is_known = |wanted: &str| codes.iter().any(|code| code.starts_with(wanted));
    let unknown = wanted.filter(|wanted| !is_known(wanted));
    Ok(unknown
        .map(|wanted| {
            let near = nearest(wanted, codes.iter().map(String::as_str));
            format!("no rule has a code like `{wanted}`{}", suggestion(&near))
        })
        .collect())
}

fn unknown_domain(domain: &Domain, known: &[Domain]) -> String {
    let names = known.iter().filter(|known| known.kind() == domain.kind()).map(name);
    let names: Vec<String> = names.collect();
    let near = nearest(&name(domain), names.iter().map(String::as_str));
    format!("no node in your scope is in {domain}{}", suggestion(&near))
}

/// The name of a domain without its kind.
fn name(domain: &Domain) -> String {
    let text = String::from(domain.clone());
    text.split_once(':').map_or_else(|| text.clone(), |(_, name)| name.to_owned())
}

fn suggestion(near: &[&str]) -> String {
    if near.is_empty() { String::new() } else { format!("; did you mean `{}`?", near.join("`, `")) }
}

/// Reads all pages of a list of nodes.
pub(super) fn read_nodes(session: &mut FleetSession, path: &Path) -> anyhow::Result<Vec<NodeRow>> {
    let mut cursor: Option<String> = None;
    let mut nodes = Vec::new();
    loop {
        let page = path.clone().with("cursor", cursor.as_ref()).with("limit", Some(PAGE));
        let page: NodePage = session.get(page.as_str())?;
        nodes.extend(page.nodes);
        cursor = page.next;
        if cursor.is_none() {
            return Ok(nodes);
        }
    }
}

/// Reads the nodes with these names. If the caller may not see a node, its name is left out.
pub(super) fn read_named(
    session: &mut FleetSession,
    names: &[NodeId],
) -> anyhow::Result<Vec<NodeRow>> {
    let mut nodes = Vec::new();
    for names in names.chunks(NAMES_PER_REQUEST) {
        let names: Vec<&str> = names.iter().map(NodeId::as_str).collect();
        let path = Path::new("/api/v1/nodes").with("node", Some(names.join(",")));
        nodes.extend(read_nodes(session, &path)?);
    }
    Ok(nodes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_values_of_a_filter_are_one_parameter() {
        let filter = NodeFilterArgs {
            rack: vec!["r1".to_owned(), "r2".to_owned()],
            gpu: vec!["H100 80GB".to_owned()],
            ..NodeFilterArgs::default()
        };
        let path = filter.add_to(Path::new("/api/v1/nodes"));
        assert_eq!(path.as_str(), "/api/v1/nodes?rack=r1%2Cr2&gpu=H100%2080GB");
        assert_eq!(filter.describe(), "--rack r1,r2 --gpu H100 80GB");
        assert!(!filter.is_empty() && NodeFilterArgs::default().is_empty());
    }

    #[test]
    fn an_unknown_domain_suggests_names_of_its_kind() {
        let known: Vec<Domain> =
            ["rack:r1", "rack:r12", "pool:r11"].map(|domain| domain.parse().unwrap()).into();
        let unknown = unknown_domain(&"rack:r11".parse().unwrap(), &known);
        assert_eq!(unknown, "no node in your scope is in rack r11; did you mean `r1`, `r12`?");
        let unknown = unknown_domain(&"site:moon".parse().unwrap(), &known);
        assert_eq!(unknown, "no node in your scope is in site moon");
    }
}
