//! `farrier server run`.

use std::net::SocketAddr;
use std::path::PathBuf;

use farrier_agent::monitor::Chain;
use farrier_fleet::fleet::Pool;
use farrier_server::access::{AccessError, AuthorityError};
use farrier_server::log::LogError;
use farrier_server::policy_key::PolicyKey;
use farrier_server::rest::Rate;
use farrier_server::run::{self, ReportQuota, ServerError, ServerOptions};
use jiff::SignedDuration;

use super::{DataDir, OUTDATED_ACCESS_HINT, accept_log, span};
use crate::commands::Outcome;
use crate::commands::receiver_folders::ReceiverFolderArgs;
use crate::failure::Hinted;
use crate::{fact_sets, log};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    data: DataDir,
    /// Address to listen on
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:9443")]
    listen: SocketAddr,
    /// DNS name or address for the server certificate, besides those of this host; repeatable
    #[arg(long = "name", value_name = "NAME")]
    names: Vec<String>,
    /// Run without TLS and certificates, on loopback only: any client may claim any node name, and
    /// joins this pool
    #[arg(long, value_name = "POOL")]
    plain: Option<Pool>,
    /// Heartbeat interval of agents, from 1 to 10 seconds
    #[arg(long, value_name = "S", default_value = "10", value_parser = clap::value_parser!(u32).range(1..=10))]
    heartbeat_interval: u32,
    /// Lifetime of node certificates, from 10s to 365d; nodes renew after two thirds of it
    #[arg(long, value_name = "TIME", default_value = "30d", value_parser = parse_lifetime)]
    certificate_life: SignedDuration,
    /// Replace the lost CA by the one in the data directory (ca.key, ca.pem), or by a new one;
    /// every node has to enrol again and every user has to log in again
    #[arg(long)]
    new_authority: bool,
    /// Report quota of a node: entries per second; bursts up to fifty times that
    #[arg(long, value_name = "PER_SECOND", default_value = "20", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    report_entries: u32,
    /// Report quota of a node: bytes per second; bursts up to fifty times that
    #[arg(long, value_name = "PER_SECOND", default_value = "65536", value_parser = clap::value_parser!(u32).range(1024..))]
    report_bytes: u32,
    /// Free disk space, in MiB, below which the server does not log reports that change no decision
    /// [default: 5% of the disk, at most 2048]
    #[arg(long, value_name = "MIB")]
    disk_reserve: Option<u32>,
    /// Rate limit of a user token, in requests per second
    #[arg(long, value_name = "PER_SECOND", default_value = "50", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    request_rate: u32,
    /// Accept only policies that this ed25519 key (PEM, public) signed; repeat to accept several
    /// keys
    #[arg(long, value_name = "FILE")]
    policy_key: Vec<PathBuf>,
    #[command(flatten)]
    receivers: ReceiverFolderArgs,
}

/// Parses a lifetime. The minimum gives a node enough time to renew its certificate. The maximum of
/// `span` ensures that certificates are rotated.
fn parse_lifetime(text: &str) -> Result<SignedDuration, String> {
    let lifetime = span(text)?;
    if lifetime < SignedDuration::from_secs(10) {
        return Err("expected 10s or more".to_owned());
    }
    Ok(lifetime)
}

pub(super) fn run(args: &Args) -> anyhow::Result<Outcome> {
    log::start();
    let keys = args.policy_key.iter().map(|file| PolicyKey::read(file));
    let policy_keys = keys.collect::<Result<Vec<_>, _>>().map_err(|err| {
        let hint =
            "`openssl pkey -in KEY -pubout -out FILE` writes the public key of a private one";
        Hinted::error(Chain(&err).to_string(), hint)
    })?;
    let options = ServerOptions {
        names: args.names.clone(),
        plain_pool: args.plain.clone(),
        heartbeat_interval_s: args.heartbeat_interval,
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
        policy_keys,
        receiver_folders: args.receivers.folders(),
        ..ServerOptions::new(args.data.dir.clone(), args.listen)
    };
    run::run(options).map_err(explained)?;
    Ok(Outcome::Fine)
}

fn explained(err: ServerError) -> anyhow::Error {
    let hint = match &err {
        ServerError::DataDir { .. } => "choose another directory with --dir",
        ServerError::InUse(_) => {
            "each server needs its own data directory; choose another with --dir"
        }
        ServerError::Access(AccessError::Behind { .. }) => OUTDATED_ACCESS_HINT,
        ServerError::Log(LogError::UnknownFormat { what, .. }) => accept_log::hint(*what),
        ServerError::Log(err) if err.is_loss() => {
            "restore the previous log, with its `-wal`; or move this one away and restore a backup with `farrier server restore`. To continue with this log: `farrier server accept-log --dir DIR`"
        }
        ServerError::Log(err) if err.is_damage() => {
            "the server does not write to it. Move `log` and the files `log-*` and `log.*` away, and restore the newest backup with `farrier server restore`"
        }
        ServerError::Log(_) => {
            "is the disk full? Every acknowledged entry is in the log; start the server again when there is space"
        }
        ServerError::Access(AccessError::OtherLog(_)) => {
            "the directory has files of two servers: restore files that belong together. To continue with this log: `farrier server accept-log --dir DIR`, then `farrier server rebuild-access --dir DIR`"
        }
        ServerError::Authority(AuthorityError::Replaced { .. }) => {
            "restore the previous `ca.key` and `ca.pem`; or, to continue with these, start once with `--new-authority`: nodes of the lost CA then have to enrol again, and all users have to log in again"
        }
        ServerError::Authority(AuthorityError::Missing(_)) => {
            "restore both from your copy; or, if they are lost, start with `--new-authority`: every node then has to enrol again, and all users have to log in again"
        }
        ServerError::Listen { .. } => "choose another address with --listen",
        ServerError::PlaintextAddress(_) => "use --listen 127.0.0.1:PORT, or omit --plain",
        _ => return err.into(),
    };
    Hinted::error(Chain(&err).to_string(), hint)
}
