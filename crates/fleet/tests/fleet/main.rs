//! Decisions of the controller on simulated histories, checked against its invariants.

#![expect(clippy::unwrap_used, reason = "a test that cannot continue fails")]

mod budget;
mod clock;
mod coverage;
mod domains;
mod histories;
mod hostile;
mod ledger;
mod logic_version;
mod notification_keys;
mod notification_receivers;
mod notification_routes;
mod notification_scopes;
mod notifications;
mod policy;
mod quarantine;
mod recorded;
mod recorded_histories;
mod test_fleet;
mod waits;
