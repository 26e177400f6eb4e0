//! Size limits of messages. Larger input is refused before it is decoded further.

/// A message: about a thousand findings with their evidence. An agent that has more to report drops
/// evidence first, then the least severe findings. One message is one commit, and a fatal finding
/// of another node may have to wait for it.
pub const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// Findings or changes in a message. The rest is left for the envelope.
pub const FINDINGS_BYTES_MAX: usize = MESSAGE_BYTES_MAX - 4096;

/// Space that the findings or changes of a message may take in the server's log, by
/// `Finding::estimated_bytes`. The log is JSON, about six times the size of a message with little
/// text, so the message's own size bounds neither the log nor the commit.
pub const LOGGED_BYTES_MAX: usize = 2 * MESSAGE_BYTES_MAX;

/// Changes of one record, and open findings of one node. A message holds about a thousand with
/// their evidence ([`MESSAGE_BYTES_MAX`]), so a node exceeds that only through several messages.
/// The agent's journal merges pending changes into no more than this.
pub const FINDINGS_MAX: usize = 20_000;

/// Observations behind one finding; the engine keeps far fewer.
pub const EVIDENCE_MAX: usize = 256;

/// A rule code, a version, or the name of a GPU or device.
pub const NAME_BYTES_MAX: usize = 256;

pub const TEXT_BYTES_MAX: usize = 16 << 10;

pub const GPUS_MAX: usize = 1024;

pub const FRAMEWORKS_MAX: usize = 256;

/// How far a node's last order may be ahead of the server's log, which may have been restored from
/// a backup. A node beyond that has the journal of another server, a damaged journal, or
/// reports a false number. The server ignores it and continues from its own number.
pub const ORDERS_AHEAD_MAX: u64 = 1000;

/// Unacknowledged records of a node in flight.
pub const FLIGHT_MAX: usize = 32;

/// A file that a node uploads for an order.
pub const ARTIFACT_BYTES_MAX: u64 = 32 << 20;

/// One chunk of it: small next to a message, so that heartbeats on the same connection do not wait.
pub const ARTIFACT_CHUNK_BYTES: usize = 64 << 10;

/// Order statuses pending on a node: those of the one active order, and unacknowledged ones.
pub const ORDER_STATUSES_MAX: usize = 1024;
