//! How busy a GPU is.

use farrier_sim::fault::Activity;

/// How busy a GPU's parts are.
#[derive(Debug, clap::Args)]
pub(super) struct ActivityArgs {
    /// Share of time in which a kernel ran, from 0 to 1 as all shares
    #[arg(long, value_name = "SHARE")]
    graphics: Option<f64>,
    /// Multiprocessors at work
    #[arg(long, value_name = "SHARE")]
    sm: Option<f64>,
    /// Warps in use
    #[arg(long, value_name = "SHARE")]
    occupancy: Option<f64>,
    /// Tensor cores at work
    #[arg(long, value_name = "SHARE")]
    tensor: Option<f64>,
    /// Memory bandwidth in use
    #[arg(long, value_name = "SHARE")]
    dram: Option<f64>,
    /// Double precision at work
    #[arg(long, value_name = "SHARE")]
    fp64: Option<f64>,
    /// Single precision at work
    #[arg(long, value_name = "SHARE")]
    fp32: Option<f64>,
    /// Half precision at work
    #[arg(long, value_name = "SHARE")]
    fp16: Option<f64>,
    /// Integer units at work
    #[arg(long, value_name = "SHARE")]
    integer: Option<f64>,
    /// Sent on all NVLink links, in bytes a second
    #[arg(long, value_name = "BYTES_PER_S")]
    nvlink_tx: Option<u64>,
    /// Received on all NVLink links, in bytes a second
    #[arg(long, value_name = "BYTES_PER_S")]
    nvlink_rx: Option<u64>,
    /// Sent to the host, in bytes a second
    #[arg(long, value_name = "BYTES_PER_S")]
    pcie_tx: Option<u64>,
    /// Received from the host, in bytes a second
    #[arg(long, value_name = "BYTES_PER_S")]
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
