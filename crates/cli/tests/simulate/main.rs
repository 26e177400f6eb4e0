//! `farrier simulate`, seen by the clients that people have: nvidia-ml-py, nvitop and gpustat, unchanged.

#[path = "../support/mod.rs"]
mod support;

mod clients;
mod command;
mod faults;
mod transcript;
mod world;
