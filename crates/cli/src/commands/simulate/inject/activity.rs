//! Arguments of `inject activity`.

use farrier_sim::fault::Activity;

/// GPU utilisation as a profiler reports it.
#[derive(Debug, clap::Args)]
pub(super) struct ActivityArgs {
    /// Share of time in which a kernel ran, from 0 to 1 like all shares
    #[arg(long, value_name = "SHARE")]
    graphics: Option<f64>,
    /// Share of active multiprocessors
    #[arg(long, value_name = "SHARE")]
    sm: Option<f64>,
    /// Share of warp slots in use
    #[arg(long, value_name = "SHARE")]
    occupancy: Option<f64>,
    /// Share of time in which tensor cores were active
    #[arg(long, value_name = "SHARE")]
    tensor: Option<f64>,
    /// Share of the memory bandwidth in use
    #[arg(long, value_name = "SHARE")]
    dram: Option<f64>,
    /// FP64 pipe utilisation
    #[arg(long, value_name = "SHARE")]
    fp64: Option<f64>,
    /// FP32 pipe utilisation
    #[arg(long, value_name = "SHARE")]
    fp32: Option<f64>,
    /// FP16 pipe utilisation
    #[arg(long, value_name = "SHARE")]
    fp16: Option<f64>,
    /// Integer pipe utilisation
    #[arg(long, value_name = "SHARE")]
    integer: Option<f64>,
    /// Transmit rate of all NVLink links, in bytes per second
    #[arg(long, value_name = "BYTES_PER_S", value_parser = bytes_per_s)]
    nvlink_tx: Option<u64>,
    /// Receive rate of all NVLink links, in bytes per second
    #[arg(long, value_name = "BYTES_PER_S", value_parser = bytes_per_s)]
    nvlink_rx: Option<u64>,
    /// PCIe transmit rate to the host, in bytes per second
    #[arg(long, value_name = "BYTES_PER_S", value_parser = bytes_per_s)]
    pcie_tx: Option<u64>,
    /// PCIe receive rate from the host, in bytes per second
    #[arg(long, value_name = "BYTES_PER_S", value_parser = bytes_per_s)]
    pcie_rx: Option<u64>,
}

impl From<&ActivityArgs> for Activity {
    fn from(args: &ActivityArgs) -> Self {
        Self {
            graphics: args.graphics,
            sm: args.sm,
            occupancy: args.occupancy,
            tensor: args.tensor,
            dram: args.dram,
            fp64: args.fp64,
            fp32: args.fp32,
            fp16: args.fp16,
            integer: args.integer,
            nvlink_transmit_bytes_per_s: args.nvlink_tx,
            nvlink_receive_bytes_per_s: args.nvlink_rx,
            pcie_transmit_bytes_per_s: args.pcie_tx,
            pcie_receive_bytes_per_s: args.pcie_rx,
        }
    }
}

/// Parses a rate, in digits or as `60e9`.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the range is checked before"
)]
fn bytes_per_s(text: &str) -> Result<u64, String> {
    let parsed = text.parse().ok().filter(|rate: &f64| (0.0..=1e15).contains(rate));
    parsed.map(|rate| rate.round() as u64).ok_or_else(|| "expected a rate such as 60e9".to_owned())
}
