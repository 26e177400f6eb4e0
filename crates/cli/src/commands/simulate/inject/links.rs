//! NVLink, PCIe and the fabric.

use farrier_sim::fault::{BitErrorRate, FabricFault, LinkErrors, PcieFault};

/// A PCIe link that is slower or narrower than it could be, or sends again.
#[derive(Debug, clap::Args)]
pub(super) struct PcieArgs {
    /// Generation now
    #[arg(long)]
    generation: Option<u32>,
    /// Lanes now
    #[arg(long)]
    width: Option<u32>,
    /// More packets sent again
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    replays: u32,
    /// More errors that the link put right
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    aer_correctable: u32,
    /// More errors that it did not put right
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    aer_non_fatal: u32,
    /// More errors after which it was down
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    aer_fatal: u32,
}

impl From<&PcieArgs> for PcieFault {
    fn from(args: &PcieArgs) -> Self {
        Self {
            generation: args.generation,
            width: args.width,
            replays: args.replays,
            aer_correctable: args.aer_correctable,
            aer_non_fatal: args.aer_non_fatal,
            aer_fatal: args.aer_fatal,
        }
    }
}

/// What the NVSwitch fabric says of the GPU.
#[derive(Debug, clap::Args)]
pub(super) struct FabricArgs {
    /// NVML's number: 1 not started, 2 in progress, 3 completed
    #[arg(long)]
    state: Option<u32>,
    /// NVML's return code of the registration
    #[arg(long, value_name = "CODE")]
    status: Option<u32>,
    /// NVML's mask, in decimal or as 0x1a9
    #[arg(long, value_name = "MASK", value_parser = mask)]
    health_mask: Option<u32>,
}

impl From<&FabricArgs> for FabricFault {
    fn from(args: &FabricArgs) -> Self {
        Self { state: args.state, status: args.status, health_mask: args.health_mask }
    }
}

/// Errors on an `NVLink`.
#[derive(Debug, clap::Args)]
pub(super) struct LinkArgs {
    /// Its number
    pub(super) link: usize,
    /// Packets sent again
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    replay: u64,
    /// Times that it was trained anew
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    recovery: u64,
    /// Broken data
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    crc: u64,
    /// Broken flow-control units
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    crc_flit: u64,
    /// Packets that came broken; NVLink 5, as all below but the speed
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    receive: u64,
    /// Packets of a wrong form
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    malformed: u64,
    /// Packets that found no room
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    overrun: u64,
    /// Losses of integrity
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    integrity: u64,
    /// Packets that were not sent
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    discarded: u64,
    /// Trainings that failed
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    recovery_failed: u64,
    /// Errors left after correction
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    effective: u64,
    /// Symbols that could not be corrected
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    symbol: u64,
    /// Blocks sent again by the physical layer
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    retry_blocks: u64,
    /// Rate of bits left wrong, such as 2e-12
    #[arg(long, value_name = "RATE")]
    effective_ber: Option<BitErrorRate>,
    /// Rate of symbols left wrong, such as 15e-100
    #[arg(long, value_name = "RATE")]
    symbol_ber: Option<BitErrorRate>,
    /// What the link runs at, in megabytes a second
    #[arg(long, value_name = "MB_PER_S")]
    speed: Option<u32>,
}

impl From<&LinkArgs> for LinkErrors {
    fn from(args: &LinkArgs) -> Self {
        Self {
            replay: args.replay,
            recovery: args.recovery,
            crc: args.crc,
            crc_flit: args.crc_flit,
            receive: args.receive,
            malformed: args.malformed,
            overrun: args.overrun,
            integrity: args.integrity,
            discarded: args.discarded,
            recovery_failed: args.recovery_failed,
            effective: args.effective,
            symbol: args.symbol,
            retry_blocks: args.retry_blocks,
            effective_ber: args.effective_ber,
            symbol_ber: args.symbol_ber,
            speed_mb_per_s: args.speed,
        }
    }
}

/// A mask in decimal or hexadecimal digits.
fn mask(text: &str) -> Result<u32, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|err| err.to_string())
}
