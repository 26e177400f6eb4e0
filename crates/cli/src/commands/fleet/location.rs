//! `farrier fleet set-location`: sets the location of a node. Only the people who cabled the node
//! know its location.

use farrier_fleet::fleet::identity::Unit;
use farrier_fleet::fleet::{Location, NodeId, Pool, Tenant};
use farrier_wire::rest::{Done, NodeDetail};

use super::session::FleetSession;
use crate::commands::Outcome;
use crate::failure::Hinted;
use crate::printer::Printer;

/// Location flags without the pool. Omitted parts are unknown.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct LocationFlags {
    /// Tenant that owns the node
    #[arg(long, value_name = "NAME")]
    tenant: Option<Tenant>,
    /// Site, such as a building
    #[arg(long, value_name = "NAME")]
    site: Option<Unit>,
    /// Rack
    #[arg(long, value_name = "NAME")]
    rack: Option<Unit>,
    /// Leaf switch that the node is cabled to
    #[arg(long, value_name = "NAME")]
    leaf: Option<Unit>,
    /// NVLink domain, if it spans several nodes
    #[arg(long, value_name = "NAME")]
    nvlink: Option<Unit>,
    /// Spine switch, or group of spine switches
    #[arg(long, value_name = "NAME")]
    spine: Option<Unit>,
    /// Row of racks with shared cooling
    #[arg(long, value_name = "NAME")]
    row: Option<Unit>,
    /// Power distribution unit
    #[arg(long, value_name = "NAME")]
    pdu: Option<Unit>,
}

impl LocationFlags {
    pub(crate) fn in_pool(&self, pool: Pool) -> Location {
        let Self { tenant, site, rack, leaf, nvlink, spine, row, pdu } = self.clone();
        Location { pool, tenant, site, rack, leaf, nvlink, spine, row, pdu }
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct SetLocationArgs {
    /// Name of the node
    node: NodeId,
    /// Pool; its policy applies to the node from then on
    #[arg(long, value_name = "NAME")]
    pool: Option<Pool>,
    #[command(flatten)]
    flags: LocationFlags,
    /// Parts of the location to clear, separated by commas
    #[arg(long, value_name = "PART", value_delimiter = ',')]
    clear: Vec<LocationPart>,
}

/// A part of the location, as a value of `--clear`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum LocationPart {
    Tenant,
    Site,
    Rack,
    Leaf,
    Nvlink,
    Spine,
    Row,
    Pdu,
}

fn without(mut location: Location, parts: &[LocationPart]) -> Location {
    for part in parts {
        match part {
            LocationPart::Tenant => location.tenant = None,
            LocationPart::Site => location.site = None,
            LocationPart::Rack => location.rack = None,
            LocationPart::Leaf => location.leaf = None,
            LocationPart::Nvlink => location.nvlink = None,
            LocationPart::Spine => location.spine = None,
            LocationPart::Row => location.row = None,
            LocationPart::Pdu => location.pdu = None,
        }
    }
    location
}

/// Merges the flags into the current location. Parts without a flag do not change.
pub(super) fn run(
    session: &mut FleetSession,
    args: &SetLocationArgs,
    printer: &mut Printer,
) -> anyhow::Result<Outcome> {
    let node = &args.node;
    let NodeDetail { location: current, .. } = session.get(&format!("/api/v1/nodes/{node}"))?;
    let update = args.flags.in_pool(args.pool.clone().unwrap_or_else(|| current.pool.clone()));
    if args.pool.is_none() && !update.has_more_than_pool() && args.clear.is_empty() {
        return Err(Hinted::error(
            format!("no location for `{node}`"),
            "name at least one part, such as `--rack r1 --leaf l1`, or `--clear rack`",
        ));
    }
    let location = without(current, &args.clear).updated_with(&update);
    let Done { changed } = session.put(&format!("/api/v1/nodes/{node}/location"), &location)?;
    let text = describe(&location);
    printer.line(&if changed {
        format!("{node} is now in {text}")
    } else {
        format!("no change: {node} is already in {text}")
    })?;
    Ok(Outcome::Fine)
}

/// Formats every known part of a location.
pub(crate) fn describe(location: &Location) -> String {
    let domains: Vec<String> = location.domains().iter().skip(1).map(ToString::to_string).collect();
    domains.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clearing_parts_keeps_the_other_parts() {
        let location: Location = serde_json::from_value(serde_json::json!({
            "pool": "train", "tenant": "lab", "site": "north", "rack": "r1", "leaf": "l1", "nvlink": "n1",
        }))
        .unwrap();
        let cleared = without(
            location.clone(),
            &[LocationPart::Rack, LocationPart::Nvlink, LocationPart::Tenant],
        );
        assert_eq!(describe(&cleared), "pool train, site north, leaf switch l1");
        assert_eq!(
            describe(&without(location, &[LocationPart::Site, LocationPart::Leaf])),
            "pool train, tenant lab, rack r1, NVLink domain n1"
        );
    }
}
