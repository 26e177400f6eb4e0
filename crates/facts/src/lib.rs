//! Facts about NVIDIA GPUs, drivers, CUDA and frameworks, each with its source, and the functions
//! that answer questions from them.
//!
//! Pure: no clock, no files, no network. The binary passes in text, bytes and dates and prints the
//! results; the agent and the server call the same functions.
//!
//! ```text
//! data/*.toml ─ build.rs ─> FactSet ─┬─> check::check(set, query)      verdict, reasons, remedies
//!                                    ├─> node::evaluate(set, node, on) NodeObservation -> items
//!                                    ├─> decode::Decoder               kernel log lines -> events
//!                                    ├─> lint::lint(set, text)         useless or harmful settings
//!                                    ├─> diag::evaluate(test, outcome) pass, degraded or fail
//!                                    └─> tune::plan(set, profile, …)   steps towards a profile
//! ```

pub mod advisory;
pub mod check;
pub mod cuda;
pub mod decode;
pub mod diag;
pub mod driver;
pub mod exposure;
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
