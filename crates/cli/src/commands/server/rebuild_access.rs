//! `farrier server rebuild-access`: rebuilds the access store from the log.

use std::path::{Path, PathBuf};

use farrier_fleet::fleet::identity::{Tenant, Unit};
use farrier_fleet::fleet::{Domain, Location, NodeId};
use farrier_server::access::{
    AccessError, AccessStore, LostToken, RebuildSummary, changes_in, is_local,
};
use farrier_server::log::sqlite::SqliteLog;
use farrier_server::log::{Log, check_joined, verify};
use farrier_server::run::{lock_folder, log_path, prepare_folder};
use jiff::Timestamp;

use super::DataDir;
use super::verify_log::open;
use crate::commands::Outcome;
use crate::commands::agent::absolute;
use crate::failure::Hinted;
use crate::printer::Printer;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    data: DataDir,
    /// Archive made by `farrier server archive`; repeat for each file
    #[arg(long, value_name = "FILE", value_parser = absolute)]
    archive: Vec<PathBuf>,
}

/// Opens the archives and the log in the order of their entries. Verifies each file, and checks
/// that each file continues the previous file.
fn logs(args: &Args) -> anyhow::Result<Vec<SqliteLog>> {
    let mut logs = args.archive.iter().map(|path| open(path)).collect::<Result<Vec<_>, _>>()?;
    logs.push(open(&log_path(&args.data.dir))?);
    let mut by_start = Vec::with_capacity(logs.len());
    for log in logs {
        by_start.push((log.anchor()?.seq, log));
    }
    by_start.sort_by_key(|(seq, _)| *seq);
    let logs: Vec<SqliteLog> = by_start.into_iter().map(|(_, log)| log).collect();
    let readers: Vec<&dyn Log> = logs.iter().map(|log| log as &dyn Log).collect();
    let mut flaw = None;
    for log in &readers {
        flaw = flaw.or(verify(*log)?.err());
    }
    if let Some(flaw) = flaw.or(check_joined(&readers)?.err()) {
        let message = format!("verification of the log failed: {flaw}");
        return Err(Hinted::error(message, "`farrier server verify-log` shows more"));
    }
    Ok(logs)
}

pub(super) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let dir = &args.data.dir;
    if !log_path(dir).exists() {
        let message = format!("`{}` does not exist", log_path(dir).display());
        return Err(Hinted::error(
            message,
            "--dir must be the data directory of a server that has run",
        ));
    }
    prepare_folder(dir)?;
    let _lock = lock_folder(dir)?;
    let logs = logs(args)?;
    let store = AccessStore::open(dir)?;
    if let Some(first) = logs.first() {
        let (base, last) = (first.base_state()?, store.last_change()?);
        // Without the CA key, the issued certificates are no longer valid, so a missing revocation
        // does no harm.
        let has_authority = ["ca.key", "ca.pem"].iter().any(|name| dir.join(name).exists());
        if base.access > last && has_authority {
            return Err(Hinted::error(
                format!(
                    "log entries 1 to {} are in an archive, with the access changes {} to {}",
                    base.seq,
                    last + 1,
                    base.access
                ),
                "pass each archive with --archive FILE; if one is lost, move `ca.key` and `ca.pem` away and run this again: every node then has to enrol again",
            ));
        }
    }
    let logs: Vec<&dyn Log> = logs.iter().map(|log| log as &dyn Log).collect();
    let changes = changes_in(&logs)?;
    let rebuilt = store.rebuild(&changes, Timestamp::now()).map_err(|err| match err {
        AccessError::Diverged(_) => Hinted::error(
            err.to_string(),
            "move `access`, `access-wal` and `access-shm` away, and run this again",
        ),
        other => other.into(),
    })?;
    print(&rebuilt, dir, printer)?;
    Ok(Outcome::Fine)
}

fn print(rebuilt: &RebuildSummary, dir: &Path, printer: &mut Printer) -> anyhow::Result<()> {
    match rebuilt.changes {
        0 => printer.line("the access store has every change of the log")?,
        1 => printer.line("restored 1 change from the log")?,
        count => printer.line(&format!("restored {count} changes from the log"))?,
    }
    if !rebuilt.revoked.is_empty() {
        let names: Vec<&str> = rebuilt.revoked.iter().map(NodeId::as_str).collect();
        printer.paragraph("Revoked:", 9, &names.join(", "))?;
    }
    if !rebuilt.lost.is_empty() {
        printer.line(
            "These tokens no longer work: only the lost store had their hashes. To create them again:",
        )?;
    }
    for (id, lost) in &rebuilt.lost {
        printer.paragraph(&format!("  {id}"), 6, &replacement(lost, dir))?;
    }
    Ok(())
}

/// Names the owner of a lost token, and the command that creates a token with the same rights.
/// Gives no command if the new token would have more rights.
fn replacement(lost: &LostToken, dir: &Path) -> String {
    let dir = dir.display();
    match lost {
        LostToken::User { name, role, scope } => {
            let scope_flag = match scope {
                Domain::Fleet => String::new(),
                Domain::Pool(pool) => format!(" --pool {pool}"),
                Domain::Tenant(tenant) => format!(" --tenant {tenant}"),
                // A user with such a domain as scope cannot be created with a flag, so the operator
                // has to choose a pool.
                _ => " --pool POOL".to_owned(),
            };
            format!(
                "{name}, {role} of {scope}: `farrier server user add {name} --role {role}{scope_flag} --dir {dir}`"
            )
        }
        // The scope of a token from the command line is the whole fleet. Such a token for a single
        // node could therefore move the node out of another pool.
        LostToken::Join { location, node: Some(node), by, .. } if !is_local(by) => {
            let pool = &location.pool;
            format!(
                "node {node} of pool {pool}, created by {by}, whose scope is not in the log: a token that is created here could also take the node from another pool, so an admin of pool {pool} has to create it with `POST /api/v1/tokens`"
            )
        }
        LostToken::Join { location, node, uses, by: _ } => {
            let Location { pool, tenant, site, rack, leaf, nvlink, spine, row, pdu } = location;
            let mut flags = String::new();
            let mut add = |flag: &str, value: Option<&str>| {
                flags.extend(value.map(|value| format!(" --{flag} {value}")));
            };
            add("tenant", tenant.as_ref().map(Tenant::as_str));
            for (flag, unit) in [
                ("site", site),
                ("rack", rack),
                ("leaf", leaf),
                ("nvlink", nvlink),
                ("spine", spine),
                ("row", row),
                ("pdu", pdu),
            ] {
                add(flag, unit.as_ref().map(Unit::as_str));
            }
            add("node", node.as_ref().map(NodeId::as_str));
            let uses = if *uses > 1 { format!(" --uses {uses}") } else { String::new() };
            format!(
                "nodes of pool {pool}: `farrier server token create --pool {pool}{flags}{uses} --dir {dir}`"
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use farrier_fleet::fleet::identity::Actor;

    use super::*;

    fn join(node: Option<&str>, by: &str) -> String {
        let location = Location::in_pool("train".parse().unwrap());
        let node = node.map(|name| name.parse().unwrap());
        let by = Actor::User(by.to_owned());
        replacement(&LostToken::Join { location, node, uses: 1, by }, Path::new("/srv"))
    }

    #[test]
    fn no_command_grants_more_than_the_lost_token_did() {
        let command = "`farrier server token create --pool train --node a --dir /srv`";
        assert!(join(Some("a"), "local:root").ends_with(command));
        // ann's scope is one pool, but a token from the command line has the scope of the fleet.
        let by_ann = join(Some("a"), "ann");
        assert!(!by_ann.contains("token create"), "{by_ann}");
        assert!(by_ann.contains("ann") && by_ann.contains("scope"), "{by_ann}");
        // A token for any node cannot move a node out of another pool.
        assert!(join(None, "ann").ends_with("token create --pool train --dir /srv`"));
    }
}
