//! How much anybody may say at once. What is larger is refused before it is read further.

/// A message: about a thousand findings with their evidence. An agent that has more to report
/// leaves out evidence, then what is least severe. One message is one commit, for which a fatal
/// finding of another node may have to wait.
pub const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// The findings or changes in a message. The rest is room for the envelope.
pub const FINDINGS_BYTES_MAX: usize = MESSAGE_BYTES_MAX - 4096;

/// What the findings or changes in a message may take of the server's log, as
/// `Finding::estimated_bytes` has it. There they are JSON, which is about six times as large as a
/// message with little text: the message's own size bounds neither the log nor the commit.
pub const LOGGED_BYTES_MAX: usize = 2 * MESSAGE_BYTES_MAX;

/// Changes of one record, and open findings of one node. A message holds about a thousand with their evidence ([`MESSAGE_BYTES_MAX`]): a node
/// has more open only where several messages opened them. The agent's journal merges what waits into no more than this.
pub const FINDINGS_MAX: usize = 20_000;

/// Observations behind one finding; the engine keeps far fewer.
pub const EVIDENCE_MAX: usize = 256;

/// A rule's code, a version, a GPU's or a device's name.
pub const NAME_BYTES_MAX: usize = 256;

/// A sentence.
pub const TEXT_BYTES_MAX: usize = 16 << 10;

/// GPUs of a node.
pub const GPUS_MAX: usize = 1024;

/// Frameworks of a node.
pub const FRAMEWORKS_MAX: usize = 256;

/// Orders that a node may have had and the server's log lacks, because it was restored from a backup. A node that says more has another server's journal or a
/// damaged one, or lies: it is not believed, and the server counts on from its own.
pub const ORDERS_AHEAD_MAX: u64 = 1000;

/// Records of a node that may be on their way without an acknowledgement.
pub const FLIGHT_MAX: usize = 32;

/// A file that a node sends for an order.
pub const ARTIFACT_BYTES_MAX: u64 = 32 << 20;

/// One piece of it: small next to a message, so that heartbeats on the same connection do not wait.
pub const ARTIFACT_CHUNK_BYTES: usize = 64 << 10;

/// Answers that wait on a node: there is one order at a time, and what was not acknowledged.
pub const ANSWERS_MAX: usize = 1024;
