//! `farrier server token`: join tokens of nodes.

use farrier_fleet::fleet::{NodeId, Pool};
use farrier_server::access::NewJoinToken;
use farrier_server::advertised_url::url;
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use super::{DataDir, authority};
use crate::cli::Output;
use crate::commands::Outcome;
use crate::commands::fleet::location::{LocationFlags, describe};
use crate::printer::Printer;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum TokenCommand {
    /// Create a join token; it is shown only once
    Create(CreateArgs),
    /// List join tokens, without their secrets
    List(ListArgs),
    /// Revoke a join token
    Revoke(RevokeArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct CreateArgs {
    /// Pool of the nodes that join with the token
    #[arg(long)]
    pool: Pool,
    #[command(flatten)]
    location: LocationFlags,
    /// Lifetime of the token, such as 90m, 1h or 7d
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = span)]
    expires: SignedDuration,
    /// Number of nodes that may use the token
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    uses: u32,
    /// Only for this node, even if it is already enrolled
    #[arg(long, value_name = "NAME")]
    node: Option<NodeId>,
    #[command(flatten)]
    data: DataDir,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    data: DataDir,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RevokeArgs {
    /// Number of the token, as listed
    id: i64,
    #[command(flatten)]
    data: DataDir,
}

/// Parses a duration such as `90m`, of at most 365 days.
pub(crate) fn span(text: &str) -> Result<SignedDuration, String> {
    const DAYS_MAX: i64 = 365;
    let wrong = || format!("expected a time such as 90m, 1h or 7d, up to {DAYS_MAX}d");
    let unit = text.chars().last().ok_or_else(wrong)?;
    let number: i64 =
        text.strip_suffix(unit).and_then(|number| number.parse().ok()).ok_or_else(wrong)?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        _ => return Err(wrong()),
    };
    let seconds = number.checked_mul(seconds).ok_or_else(wrong)?;
    if !(1..=DAYS_MAX * 86_400).contains(&seconds) {
        return Err(wrong());
    }
    Ok(SignedDuration::from_secs(seconds))
}

pub(super) fn run(command: &TokenCommand, printer: &mut Printer) -> anyhow::Result<Outcome> {
    match command {
        TokenCommand::Create(args) => create(args, printer)?,
        TokenCommand::List(args) => list(args, printer)?,
        TokenCommand::Revoke(args) => {
            args.data.store()?.revoke_token(args.id, Timestamp::now())?;
            printer.line(&format!("token {} is revoked", args.id))?;
        }
    }
    Ok(Outcome::Fine)
}

fn create(args: &CreateArgs, printer: &mut Printer) -> anyhow::Result<()> {
    let now = Timestamp::now();
    let store = args.data.store()?;
    let fingerprint = authority(&args.data.dir)?.fingerprint();
    let expires = now.checked_add(args.expires)?;
    let location = args.location.in_pool(args.pool.clone());
    let new_token = NewJoinToken {
        location: location.clone(),
        node: args.node.clone(),
        uses: args.uses,
        ..NewJoinToken::new(args.pool.clone(), expires)
    };
    let token = store.create(&new_token, now)?;
    if args.output == Output::Json {
        let value = json!({
            "token": token.reveal(), "pool": args.pool.as_str(), "location": location, "expires": expires.to_string(),
            "uses": args.uses, "ca_fingerprint": fingerprint,
        });
        return Ok(printer.line(&value.to_string())?);
    }
    printer.line(token.reveal())?;
    printer.line("")?;
    printer.line(&format!(
        "The token is shown only once. It is valid until {expires:.0}, for {} in {}. On the node:",
        nodes(args),
        describe(&location)
    ))?;
    let node = args.node.as_ref().map(|node| format!(" --node {node}")).unwrap_or_default();
    printer.line(&format!(
        "farrier agent enrol --server {} --ca-fingerprint {fingerprint}{node} --token {}",
        url(&args.data.dir),
        token.reveal()
    ))?;
    Ok(())
}

fn nodes(args: &CreateArgs) -> String {
    match (&args.node, args.uses) {
        (Some(node), _) => node.to_string(),
        (None, 1) => "one node".to_owned(),
        (None, uses) => format!("{uses} nodes"),
    }
}

fn list(args: &ListArgs, printer: &mut Printer) -> anyhow::Result<()> {
    let now = Timestamp::now();
    let mut rows = Vec::new();
    for token in args.data.store()?.list()? {
        let state = token.state(now);
        let pool = token.pool.unwrap_or_default();
        if args.output == Output::Json {
            let value = json!({
                "id": token.id, "pool": pool, "location": token.location, "node": token.node, "expires": token.expires.to_string(),
                "uses_left": token.uses_left, "state": state,
            });
            printer.line(&value.to_string())?;
        } else {
            rows.push(vec![
                token.id.to_string(),
                state.to_string(),
                token.location.as_ref().map_or_else(|| format!("pool {pool}"), describe),
                token.node.unwrap_or_else(|| "any".to_owned()),
                token.uses_left.to_string(),
                format!("{:.0}", token.expires),
            ]);
        }
    }
    let headings = ["Token", "State", "Location", "Node", "Uses left", "Expires"];
    match (args.output, rows.is_empty()) {
        (Output::Json, _) => {}
        (Output::Table, true) => {
            printer
                .line("no join tokens; `farrier server token create --pool POOL` creates one")?;
        }
        (Output::Table, false) => printer.table(&headings, &rows)?,
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_needs_a_unit_and_is_bounded() {
        assert_eq!(span("90m"), Ok(SignedDuration::from_mins(90)));
        assert_eq!(span("7d"), Ok(SignedDuration::from_hours(168)));
        for wrong in ["", "1", "h", "-1h", "0s", "366d", "9223372036854775807d", "1é"] {
            assert!(span(wrong).is_err(), "{wrong}");
        }
    }
}
