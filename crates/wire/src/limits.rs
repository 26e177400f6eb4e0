//! Size limits of messages. Larger input is refused before it is decoded further.

/// Maximum bytes of a message: about a thousand findings with their evidence. If an agent has more
/// to report, it drops evidence first, then the least severe findings. The server commits each
/// message as a whole, and a fatal finding from another node may have to wait for that commit.
pub const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// Maximum bytes of the findings or changes in a message. The rest is for the other fields of the
/// message.
pub const FINDINGS_BYTES_MAX: usize = MESSAGE_BYTES_MAX - 4096;

/// Maximum space that the findings or changes of a message take in the server's log, by
/// `Finding::estimated_bytes`. The log is JSON, which takes about six times the size of a message
/// with little text. A limit on the message alone would therefore limit neither the log nor the
/// commit.
pub const LOGGED_BYTES_MAX: usize = 2 * MESSAGE_BYTES_MAX;

/// Maximum changes in one record, and maximum open findings of one node. A message holds about a
/// thousand findings with their evidence ([`MESSAGE_BYTES_MAX`]), so a node reaches this limit only
/// with several messages. The agent's journal merges pending changes so that they stay within this
/// limit.
pub const FINDINGS_MAX: usize = 20_000;

/// Maximum items of evidence per finding. The engine keeps far fewer.
pub const EVIDENCE_MAX: usize = 256;

/// Longest name: a rule code, a version, or the name of a GPU or device.
pub const NAME_BYTES_MAX: usize = 256;

pub const TEXT_BYTES_MAX: usize = 16 << 10;

pub const GPUS_MAX: usize = 1024;

/// Maximum bytes of the cause of a coverage gap.
pub const GAP_CAUSE_BYTES_MAX: usize = 512;

pub const FRAMEWORKS_MAX: usize = 256;

/// How far the last order of a node may be ahead of the server's log. The log may be behind because
/// it was restored from a backup. A node that is further ahead has the journal of another server or
/// a damaged journal, or reports a false number. The server refuses the session of such a node.
pub const ORDERS_AHEAD_MAX: u64 = 1000;

/// Maximum journal records that a node has sent and the server has not acknowledged yet. The server
/// acknowledges a record when it is on the server's disk.
pub const FLIGHT_MAX: usize = 32;

/// Maximum bytes of a file that a node uploads for an order.
pub const ARTIFACT_BYTES_MAX: u64 = 32 << 20;

/// Maximum bytes of one chunk of an artifact. Chunks are small, so that heartbeats on the same
/// connection do not wait for them.
pub const ARTIFACT_CHUNK_BYTES: usize = 64 << 10;

/// Maximum order statuses that wait on a node: the status of the active order, and statuses that
/// the server has not acknowledged.
pub const ORDER_STATUSES_MAX: usize = 1024;
