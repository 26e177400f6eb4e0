//! Join tokens, and revocation of certificates.

use farrier_fleet::fleet::{Location, Pool};
use farrier_wire::rest::{Done, HintCode, TokenCreated, TokenList, TokenRequest, TokenRow};
use jiff::{SignedDuration, Timestamp};

use super::caller::Caller;
use super::failure::Failure;
use super::reply::Reply;
use super::{Call, run_to_completion};
use crate::access::{AccessStore, AccessTokenKind, JoinTokenRow, NewJoinToken};

/// Whether the caller may see and change a token. The pool of the token has to be in the caller's
/// scope.
fn is_in_scope(caller: &Caller, token: &JoinTokenRow) -> bool {
    let pool: Option<Pool> = token.pool.as_deref().and_then(|pool| pool.parse().ok());
    pool.is_some_and(|pool| caller.has_pool(&pool))
}

pub(super) async fn create(call: Call) -> Result<Reply, Failure> {
    let TokenRequest {
        pool,
        node,
        tenant,
        site,
        rack,
        leaf,
        nvlink,
        spine,
        row,
        pdu,
        uses,
        expires_s,
    } = call.body()?;
    let location =
        Location { pool: pool.clone(), tenant, site, rack, leaf, nvlink, spine, row, pdu };
    let caller = call.caller()?;
    if !caller.has_pool(&pool) {
        return Err(Failure::forbidden(format!("pool {pool} is not in your scope")));
    }
    if location.has_more_than_pool() {
        caller.check_fleet_wide()?;
    }
    let (uses, expires_s) = (uses.map_or(1, u32::from), expires_s.map_or(3600, u32::from));
    // A token for one node allows its user to take over the name of that node, so the node must be
    // in the caller's scope.
    if let Some(id) = node.clone() {
        let viewer = caller.clone();
        let name = id.clone();
        let is_allowed = call
            .app
            .controller
            .read(move |state| state.nodes.get(&id).is_none_or(|node| viewer.sees(&node.location)));
        if !is_allowed.await? {
            return Err(Failure::node_not_found(name.as_str()));
        }
    }
    let now = Timestamp::now();
    let expires = now
        .checked_add(SignedDuration::from_secs(i64::from(expires_s)))
        .map_err(|_| Failure::bad_request("`expires_s` is too long"))?;
    let request = NewJoinToken { location, node, scope: caller.scope().clone(), expires, uses };
    let by = caller.actor();
    let created = call.app.with_store(move |store| store.create_by(&by, &request, now)).await?;
    call.app.changes.log_pending().await?;
    let (id, secret) = created;
    Reply::created(&TokenCreated {
        id,
        token: secret.reveal().to_owned(),
        pool,
        expires,
        uses,
        ca_fingerprint: call.app.fingerprint.clone(),
    })
}

pub(super) async fn list(call: Call) -> Result<Reply, Failure> {
    let caller = call.caller()?;
    let now = Timestamp::now();
    let tokens = call.app.with_store(AccessStore::list).await?;
    let visible = tokens.into_iter().filter(|token| is_in_scope(caller, token));
    let tokens = visible.map(|token| row(token, now)).collect();
    Reply::json(&TokenList { tokens })
}

fn row(token: JoinTokenRow, now: Timestamp) -> TokenRow {
    TokenRow {
        id: token.id,
        state: token.state(now).to_owned(),
        pool: token.pool.unwrap_or_default(),
        location: token.location,
        node: token.node,
        expires: token.expires,
        uses_left: token.uses_left,
    }
}

pub(super) async fn revoke(call: Call) -> Result<Reply, Failure> {
    call.expect_empty_body()?;
    let caller = call.caller()?;
    let id = call.path.number("id").and_then(|path| i64::try_from(path).ok()).unwrap_or(i64::MAX);
    let tokens = call.app.with_store(AccessStore::list).await?;
    let found = tokens.into_iter().find(|token| token.id == id && is_in_scope(caller, token));
    let Some(found) = found else {
        let text = format!("there is no token {id}");
        return Err(Failure::not_found(text, HintCode::ListTokens));
    };
    let by = caller.actor();
    let revoke = move |store: &AccessStore| {
        store.revoke_token_by(&by, AccessTokenKind::Join, id, Timestamp::now())
    };
    call.app.with_store(revoke).await?;
    call.app.changes.log_pending().await?;
    Reply::json(&Done { changed: !found.is_revoked })
}

/// Revokes a node's certificates, and ends its session.
pub(super) async fn revoke_node(call: Call) -> Result<Reply, Failure> {
    call.expect_empty_body()?;
    let (id, caller) = (call.path.node()?, call.caller()?.clone());
    let (name, viewer) = (id.clone(), caller.clone());
    let is_seen = call.app.controller.read(move |state| {
        state.nodes.get(&name).map_or(viewer.is_fleet_wide(), |node| viewer.sees(&node.location))
    });
    if !is_seen.await? {
        return Err(Failure::node_not_found(id.as_str()));
    }
    let by = caller.actor();
    run_to_completion(async move {
        call.app.with_store(move |store| store.revoke_by(&by, &id, Timestamp::now())).await?;
        // This call disconnects the session before it logs the revocation.
        call.app.changes.log_pending().await?;
        Reply::json(&Done { changed: true })
    })
    .await
}
