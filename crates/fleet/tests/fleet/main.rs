//! Decisions of the controller on simulated histories, checked against its invariants.

#![expect(clippy::unwrap_used, reason = "a test that cannot continue fails")]

mod budget;
mod clock;
mod domains;
mod histories;
mod hostile;
mod logic_version;
mod notifications;
mod quarantine;
mod recorded;
mod recorded_histories;
mod test_fleet;
mod waits;
