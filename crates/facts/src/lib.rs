//! What runs on what, and what a message or a setting means: facts with sources, and answers from them.
//!
//! Pure: no clock, no file, no network. The binary passes text, bytes and dates in and prints what
//! comes out; the agent and the server use the same functions.
//!
//! ```text
//! data/*.toml ─ build.rs ─> FactSet ─┬─> check::check(set, query)      verdict, reasons, remedies, notices
//!                                    ├─> node::judge(set, seen, on)    what was read on a node -> items
//!                                    ├─> decode::Decoder               kernel log lines -> events
//!                                    ├─> lint::lint(set, text)         settings that do nothing or harm
//!                                    ├─> diag::judge(test, outcome)    what a tested GPU did -> pass, degraded, fail
//!                                    └─> tune::plan(set, profile, …)   settings that a node's work wants
//! ```

pub mod advisory;
pub mod check;
pub mod cuda;
pub mod decode;
pub mod diag;
pub mod driver;
pub mod framework;
pub mod gpu;
pub mod lint;
pub mod names;
pub mod node;
pub mod origin;
pub mod set;
pub mod setting;
pub mod text;
pub mod tune;
pub mod validate;
pub mod version;
pub mod xid;

pub use set::FactSet;
