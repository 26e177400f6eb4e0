//! `farrier server run`.

use std::net::SocketAddr;

use farrier_agent::brain::Chain;
use farrier_fleet::fleet::Pool;
use farrier_server::access::{AccessError, AuthorityError};
use farrier_server::log::LogError;
use farrier_server::rest::Rate;
use farrier_server::run::{self, Options, ReportQuota, ServerError};
use jiff::SignedDuration;

use super::{BEHIND, Folder, accept_log, span};
use crate::commands::Outcome;
use crate::failure::Hinted;
use crate::{fact_sets, log};

/// Runs the server.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    folder: Folder,
    /// Where agents find it
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:9443")]
    listen: SocketAddr,
    /// A name or address under which agents know it, beside this host's; may be given several times
    #[arg(long = "name", value_name = "NAME")]
    names: Vec<String>,
    /// Without TLS and certificates, on loopback only: whoever says a name is believed and joins this pool
    #[arg(long, value_name = "POOL")]
    plain: Option<Pool>,
    /// Heartbeat interval of agents, in seconds; three fit into the shortest time after which a node is suspect
    #[arg(long, value_name = "S", default_value = "10", value_parser = clap::value_parser!(u32).range(1..=10))]
    report_interval: u32,
    /// How long a node's certificate counts, from 10s to 365d; the node renews it when two thirds are over
    #[arg(long, value_name = "TIME", default_value = "30d", value_parser = life)]
    certificate_life: SignedDuration,
    /// Use another authority where the fleet's own, ca.key and ca.pem, is lost: what is there, or a new one. Every node enrols anew, and everybody logs in anew
    #[arg(long)]
    new_authority: bool,
    /// What one node may report: entries a second; up to fifty times that at once
    #[arg(long, value_name = "PER_SECOND", default_value = "20", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    report_entries: u32,
    /// What one node may report: bytes a second; up to fifty times that at once
    #[arg(long, value_name = "PER_SECOND", default_value = "65536", value_parser = clap::value_parser!(u32).range(1024..))]
    report_bytes: u32,
    /// Free disk space, in MiB, below which reports that change no decision are not logged [default: a twentieth of the disk, 2048 at most]
    #[arg(long, value_name = "MIB")]
    disk_reserve: Option<u32>,
    /// How often one token of a person may ask
    #[arg(long, value_name = "PER_SECOND", default_value = "50", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    request_rate: u32,
}

/// A node needs time to renew, and a certificate that lasts for ever is not rotated.
fn life(text: &str) -> Result<SignedDuration, String> {
    let life = span(text)?;
    if life < SignedDuration::from_secs(10) {
        return Err("expected 10s or more".to_owned());
    }
    Ok(life)
}

pub(super) fn run(args: &Args) -> anyhow::Result<Outcome> {
    log::start();
    let options = Options {
        names: args.names.clone(),
        plain_pool: args.plain.clone(),
        report_interval_s: args.report_interval,
        report_quota: ReportQuota {
            bytes_per_s: f64::from(args.report_bytes),
            entries_per_s: f64::from(args.report_entries),
            ..ReportQuota::default()
        },
        disk_reserve_bytes: args.disk_reserve.map(|mib| u64::from(mib) << 20),
        rate: Rate {
            per_s: f64::from(args.request_rate),
            burst: f64::from(args.request_rate) * 4.0,
        },
        certificate_life: args.certificate_life,
        new_authority: args.new_authority,
        facts: fact_sets::active(),
        ..Options::new(args.folder.dir.clone(), args.listen)
    };
    run::run(options).map_err(explained)?;
    Ok(Outcome::Fine)
}

fn explained(err: ServerError) -> anyhow::Error {
    let hint = match &err {
        ServerError::Folder { .. } => "--dir names another folder",
        ServerError::InUse(_) => "one server a folder; --dir names another",
        ServerError::Access(AccessError::Behind { .. }) => BEHIND,
        ServerError::Log(LogError::Foreign { what, .. }) => accept_log::hint(*what),
        ServerError::Log(err) if err.is_loss() => {
            "put back the log that was here, with its `-wal`; or move what is here away and `farrier server restore` a backup. To go on with this one, as it is: `farrier server accept-log --dir DIR`"
        }
        ServerError::Log(err) if err.is_damage() => {
            "nothing more is written to it. Move `log` and what belongs to it away, and `farrier server restore` the newest backup"
        }
        ServerError::Log(_) => {
            "what was acknowledged is in the log; is the disk full? The server can be started again when it is not"
        }
        ServerError::Access(AccessError::OtherLog(_)) => {
            "the folder has files of two servers: put back what belongs together. To go on with this log, as it is: `farrier server accept-log --dir DIR`, then `farrier server rebuild-access --dir DIR`"
        }
        ServerError::Authority(AuthorityError::Replaced { .. }) => {
            "put back the `ca.key` and `ca.pem` that were here; or, to go on with these, `--new-authority` once: then every node of the lost one enrols anew and everybody logs in anew"
        }
        ServerError::Authority(AuthorityError::Gone(_)) => {
            "put back both from where they were kept; or, if they are lost, `--new-authority`: then every node enrols anew and everybody logs in anew"
        }
        ServerError::Listen { .. } => "--listen names another address",
        ServerError::Plain(_) => "--listen 127.0.0.1:PORT, or leave --plain out",
        _ => return err.into(),
    };
    Hinted::error(Chain(&err).to_string(), hint)
}
