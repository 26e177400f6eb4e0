//! A `libnvidia-ml.so.1` that answers for simulated GPUs: any NVML client works against it, unchanged.
//!
//! ```text
//! client ─ C ABI ─> calls/*.rs ─ on_device ─> library (faults, lost, unsupported) ─> Session
//!                                                                                     │ reads on change
//!                                       DIR/{node.json, gpus/N.json} <────────────────┘ writes settings
//! ```
//!
//! The node's directory is `FARRIER_SIM_NODE`, or else the one above the folder that this library lies in
//! (`DIR/lib/libnvidia-ml.so.1`). A file that cannot be read changes nothing: the last good state stays. No
//! panic crosses the C boundary, and no thread is spawned.
//!
//! All unsafe code is in `abi` (pointers that a caller gave us) and `place` (asking the loader where we are).
#![allow(
    unsafe_code,
    reason = "this crate is a C library: it exports symbols and writes through pointers"
)]
#![allow(non_snake_case, reason = "the functions have NVML's names")]

mod abi;
mod calls;
mod error_code;
mod library;
mod locate;
mod structs;
#[cfg(test)]
mod tests;
