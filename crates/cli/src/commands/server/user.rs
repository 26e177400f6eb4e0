//! `farrier server user`: users and their tokens.

use farrier_fleet::fleet::access::is_within;
use farrier_fleet::fleet::{Domain, Pool, Role, Tenant};
use farrier_server::access::{AccessStore, AccessTokenKind, NewUser, local};
use farrier_server::advertised_url::url;
use farrier_server::run::log_path;
use farrier_server::state_machine::state_at;
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use super::token::span;
use super::{DataDir, authority};
use crate::cli::Output;
use crate::commands::Outcome;
use crate::failure::warn;
use crate::printer::Printer;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum UserCommand {
    /// Create a token for a user; it is shown only once
    Add(AddArgs),
    /// List users with a token, also expired and revoked ones, without secrets
    List(ListArgs),
    /// Revoke a user's token; its open streams end within seconds
    Revoke(RevokeArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct AddArgs {
    /// User name, recorded in the log with each request
    name: String,
    /// Role: viewer, operator, approver or admin
    #[arg(long)]
    role: Role,
    /// Limit the scope to this pool
    #[arg(long, conflicts_with = "tenant")]
    pool: Option<Pool>,
    /// Limit the scope to this tenant
    #[arg(long)]
    tenant: Option<Tenant>,
    /// Lifetime of the token, such as 12h or 90d
    #[arg(long, value_name = "TIME", default_value = "90d", value_parser = span)]
    expires: SignedDuration,
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

pub(super) fn run(command: &UserCommand, printer: &mut Printer) -> anyhow::Result<Outcome> {
    match command {
        UserCommand::Add(args) => add(args, printer)?,
        UserCommand::List(args) => list(args, printer)?,
        UserCommand::Revoke(args) => {
            let store = args.data.store()?;
            store.revoke_token_by(&local(), AccessTokenKind::User, args.id, Timestamp::now())?;
            printer.line(&format!("token {} is revoked", args.id))?;
        }
    }
    Ok(Outcome::Fine)
}

fn add(args: &AddArgs, printer: &mut Printer) -> anyhow::Result<()> {
    let now = Timestamp::now();
    let scope = match (&args.pool, &args.tenant) {
        (Some(pool), _) => Domain::Pool(pool.clone()),
        (None, Some(tenant)) => Domain::Tenant(tenant.clone()),
        (None, None) => Domain::Fleet,
    };
    let expires = now.checked_add(args.expires)?;
    let user = NewUser::new(&args.name, args.role, scope.clone(), expires)?;
    let store = args.data.store()?;
    let fingerprint = authority(&args.data.dir)?.fingerprint();
    if !has_nodes(&args.data.dir, &store, &scope)? {
        warn(&anyhow::anyhow!(
            "{scope} has no nodes and no join token: {} sees nothing until a node joins it",
            args.name
        ));
    }
    let (id, token) = store.add_user(&local(), &user, now)?;
    if args.output == Output::Json {
        let value = json!({
            "id": id, "token": token.reveal(), "name": args.name, "role": args.role.as_str(),
            "scope": String::from(scope), "expires": expires.to_string(), "ca_fingerprint": fingerprint,
        });
        return Ok(printer.line(&value.to_string())?);
    }
    printer.line(token.reveal())?;
    printer.line("")?;
    printer.line(&format!(
        "The token is shown only once. It makes {} {} of {scope} until {expires:.0}. To log in, with the token on stdin:",
        args.name, args.role
    ))?;
    printer.line(&format!(
        "farrier login --server {} --ca-fingerprint {fingerprint} --token -",
        url(&args.data.dir)
    ))?;
    Ok(())
}

/// Whether the scope has nodes. A join token for the scope counts too, even if it is used up.
fn has_nodes(dir: &std::path::Path, store: &AccessStore, scope: &Domain) -> anyhow::Result<bool> {
    if *scope == Domain::Fleet {
        return Ok(true);
    }
    let is_in_scope = |token: farrier_server::access::JoinTokenRow| {
        let by_location =
            token.location.as_ref().is_some_and(|location| is_within(location, scope));
        by_location
            || token
                .pool
                .is_some_and(|pool| pool.parse().is_ok_and(|pool| *scope == Domain::Pool(pool)))
    };
    if store.list()?.into_iter().any(is_in_scope) {
        return Ok(true);
    }
    let path = log_path(dir);
    Ok(path.exists() && state_at(&path)?.domain_counts.contains_key(scope))
}

fn list(args: &ListArgs, printer: &mut Printer) -> anyhow::Result<()> {
    let now = Timestamp::now();
    let mut rows = Vec::new();
    for listed in args.data.store()?.users()? {
        let state = listed.state(now);
        let user = &listed.user;
        if args.output == Output::Json {
            let value = json!({
                "id": user.token, "name": user.name, "role": user.role.as_str(),
                "scope": String::from(user.scope.clone()), "created_at": listed.created_at.to_string(),
                "expires": user.expires.to_string(), "state": state.to_string(),
            });
            printer.line(&value.to_string())?;
        } else {
            rows.push(vec![
                user.token.to_string(),
                state.to_string(),
                user.name.clone(),
                user.role.to_string(),
                user.scope.to_string(),
                format!("{:.0}", user.expires),
            ]);
        }
    }
    let headings = ["Token", "State", "Name", "Role", "Scope", "Expires"];
    match (args.output, rows.is_empty()) {
        (Output::Json, _) => {}
        (Output::Table, true) => {
            printer.line("no users; `farrier server user add NAME --role ROLE` adds one")?;
        }
        (Output::Table, false) => printer.table(&headings, &rows)?,
    }
    Ok(())
}
