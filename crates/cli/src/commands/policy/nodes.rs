//! The nodes that a policy applies to: from the server, from an export, or a class of nodes.

use std::path::{Path as FilePath, PathBuf};

use anyhow::Context;
use farrier_facts::FactSet;
use farrier_facts::version::DriverVersion;
use farrier_fleet::fleet::identity::Unit;
use farrier_fleet::fleet::policy::{PolicyNode, name_skus, skus};
use farrier_fleet::fleet::{Location, Pool, Tenant};
use farrier_wire::rest::NodeRow;

use super::document::read_text;
use crate::commands::fleet::export::read_lines;
use crate::commands::fleet::session::{FleetSession, Path};
use crate::failure::Hinted;

/// Limit of an export: 100,000 nodes have about 100 MB.
const EXPORT_BYTES_MAX: u64 = 1 << 30;

/// Which nodes a policy is checked against.
#[derive(Debug, clap::Args)]
pub(super) struct NodeSource {
    /// Nodes in a file that `farrier fleet export` wrote
    #[arg(long, value_name = "FILE")]
    pub(super) nodes: Option<PathBuf>,
    /// Nodes of the server that `farrier login` saved
    #[arg(long, conflicts_with = "nodes")]
    pub(super) server: bool,
}

impl NodeSource {
    /// No nodes if neither a file nor the server is given.
    pub(super) fn read(&self, facts: &FactSet) -> anyhow::Result<Vec<PolicyNode>> {
        match &self.nodes {
            Some(file) => from_file(file, facts),
            None if self.server => from_server(&mut FleetSession::from_saved_login()?, facts),
            None => Ok(Vec::new()),
        }
    }
}

pub(super) fn from_file(file: &FilePath, facts: &FactSet) -> anyhow::Result<Vec<PolicyNode>> {
    let text = read_text(file, EXPORT_BYTES_MAX)?;
    let lines = text.lines().filter(|line| !line.trim().is_empty()).enumerate();
    let node = |(at, line): (usize, &str)| {
        let row: NodeRow = serde_json::from_str(line).map_err(|err| {
            Hinted::error(
                format!("line {} of `{}` is not a node: {err}", at + 1, file.display()),
                "`farrier fleet export > FILE` writes such a file",
            )
        })?;
        Ok(from_row(row))
    };
    let mut nodes = lines.map(node).collect::<anyhow::Result<Vec<PolicyNode>>>()?;
    name_skus(&mut nodes, facts);
    Ok(nodes)
}

pub(super) fn from_server(
    session: &mut FleetSession,
    facts: &FactSet,
) -> anyhow::Result<Vec<PolicyNode>> {
    let path = Path::new("/api/v1/export").with("data", Some("state"));
    let mut nodes = Vec::new();
    read_lines(session, &path, |line| {
        let row: NodeRow = serde_json::from_value(line).context("the server sent no node")?;
        nodes.push(from_row(row));
        Ok(())
    })?;
    name_skus(&mut nodes, facts);
    Ok(nodes)
}

/// Its GPUs have NVML names.
fn from_row(row: NodeRow) -> PolicyNode {
    let gpus = match (row.gpu, row.gpus) {
        (Some(name), _) => Some(vec![name]),
        (None, Some(0)) => Some(Vec::new()),
        // A list of nodes has no names if the GPUs of a node differ.
        (None, _) => None,
    };
    PolicyNode {
        node: Some(row.node),
        location: row.location,
        gpus,
        driver: row.driver.and_then(|driver| driver.parse().ok()),
    }
}

/// A class of nodes.
#[derive(Debug, clap::Args)]
pub(super) struct PolicyNodeClass {
    /// Instead of a node: a GPU, such as H200-SXM5-141GB; repeat for several
    #[arg(long, conflicts_with = "node")]
    gpu: Vec<String>,
    /// Its pool
    #[arg(long, conflicts_with = "node", required_unless_present = "node")]
    pool: Option<Pool>,
    /// Its site
    #[arg(long, conflicts_with = "node")]
    site: Option<Unit>,
    /// Its tenant
    #[arg(long, conflicts_with = "node")]
    tenant: Option<Tenant>,
    /// The driver that it runs now
    #[arg(long, conflicts_with = "node", value_name = "VERSION")]
    driver: Option<DriverVersion>,
}

impl PolicyNodeClass {
    /// `None` if no class is given.
    pub(super) fn node(&self, facts: &FactSet) -> anyhow::Result<Option<PolicyNode>> {
        let Some(pool) = &self.pool else { return Ok(None) };
        let mut location = Location::in_pool(pool.clone());
        (location.site, location.tenant) = (self.site.clone(), self.tenant.clone());
        for name in &self.gpu {
            if facts.gpus.by_name(name).is_none() {
                let near = farrier_facts::names::nearest(name, facts.gpus.names());
                return Err(Hinted::error(
                    format!("`{name}` is not a GPU that the facts list"),
                    match near.first() {
                        Some(near) => format!("did you mean `{near}`?"),
                        None => "`farrier facts gpu` lists them".to_owned(),
                    },
                ));
            }
        }
        Ok(Some(PolicyNode {
            node: None,
            location,
            gpus: (!self.gpu.is_empty()).then(|| skus(&self.gpu, facts)),
            driver: self.driver.clone(),
        }))
    }
}
