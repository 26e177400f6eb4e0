//! A `libnvidia-ml.so.1` for simulated GPUs. Any NVML client works against it unchanged.
//!
//! ```text
//! client ─ C ABI ─> calls/*.rs ─ on_device ─> library (faults, lost, unsupported) ─> Session
//!                                                                   reads on change │
//!                           DIR/{node.json, gpus/N.json} <── writes settings ─────────┘
//! ```
//!
//! The node directory is `FARRIER_SIM_NODE`, or else the parent of the folder that contains this
//! library (`DIR/lib/libnvidia-ml.so.1`). If a file cannot be read, the last valid state stays in
//! use. No panic crosses the C boundary, and the library spawns no threads.
//!
//! All unsafe code is in `abi` and `structs` (pointers from C callers) and in `locate` (the path of
//! this library).
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
