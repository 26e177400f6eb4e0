//! `farrier fleet place`: sets a node's location, which only the people who cabled it know.

use farrier_fleet::fleet::identity::Unit;
use farrier_fleet::fleet::{Location, NodeId, Pool, Tenant};
use farrier_wire::rest::{Done, NodeDetail};

use super::session::Session;
use crate::commands::Outcome;
use crate::failure::Hinted;
use crate::printer::Printer;

/// Location flags without the pool. Omitted parts are unknown.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct PlaceFlags {
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
}

impl PlaceFlags {
    pub(crate) fn in_pool(&self, pool: Pool) -> Location {
        let Self { tenant, site, rack, leaf, nvlink } = self.clone();
        Location { pool, tenant, site, rack, leaf, nvlink }
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct PlaceArgs {
    /// Name of the node
    node: NodeId,
    /// Pool; its policy applies to the node from then on
    #[arg(long, value_name = "NAME")]
    pool: Option<Pool>,
    #[command(flatten)]
    flags: PlaceFlags,
    /// Parts of the location to clear, separated by commas
    #[arg(long, value_name = "WHAT", value_delimiter = ',')]
    forget: Vec<Part>,
}

/// A part of the location that `--forget` clears.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    Tenant,
    Site,
    Rack,
    Leaf,
    Nvlink,
}

fn without(mut place: Location, parts: &[Part]) -> Location {
    for part in parts {
        match part {
            Part::Tenant => place.tenant = None,
            Part::Site => place.site = None,
            Part::Rack => place.rack = None,
            Part::Leaf => place.leaf = None,
            Part::Nvlink => place.nvlink = None,
        }
    }
    place
}

/// Merges the flags into the current location; omitted parts stay as they are.
pub(super) fn run(
    session: &mut Session,
    args: &PlaceArgs,
    printer: &mut Printer,
) -> anyhow::Result<Outcome> {
    let node = &args.node;
    let NodeDetail { location: known, .. } = session.get(&format!("/api/v1/nodes/{node}"))?;
    let told = args.flags.in_pool(args.pool.clone().unwrap_or_else(|| known.pool.clone()));
    if args.pool.is_none() && !told.has_more_than_pool() && args.forget.is_empty() {
        return Err(Hinted::error(
            format!("nothing is said of where `{node}` stands"),
            "such as `--rack r1 --leaf l1`, or `--forget rack`",
        ));
    }
    let place = without(known, &args.forget).updated_with(&told);
    let Done { changed } = session.put(&format!("/api/v1/nodes/{node}/location"), &place)?;
    let stands = format!("{node} stands in {}", words(&place));
    printer.line(if changed { &stands } else { "it is so already" })?;
    Ok(Outcome::Fine)
}

/// Formats every known part of a location.
pub(crate) fn words(place: &Location) -> String {
    let domains: Vec<String> = place.domains().iter().skip(1).map(ToString::to_string).collect();
    domains.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_forgotten_is_not_known_and_the_rest_stays() {
        let place: Location = serde_json::from_value(serde_json::json!({
            "pool": "train", "tenant": "lab", "site": "north", "rack": "r1", "leaf": "l1", "nvlink": "n1",
        }))
        .unwrap();
        let left = without(place.clone(), &[Part::Rack, Part::Nvlink, Part::Tenant]);
        assert_eq!(words(&left), "pool train, site north, leaf switch l1");
        assert_eq!(
            words(&without(place, &[Part::Site, Part::Leaf])),
            "pool train, tenant lab, rack r1, NVLink domain n1"
        );
    }
}
