//! Arguments for NVLink, PCIe and fabric faults.

use farrier_sim::fault::{BitErrorRate, FabricFault, LinkErrors, PcieFault, PortError};

/// PCIe link state and errors.
#[derive(Debug, clap::Args)]
pub(super) struct PcieArgs {
    /// Current generation
    #[arg(long)]
    generation: Option<u32>,
    /// Current lanes
    #[arg(long)]
    width: Option<u32>,
    /// Additional replays
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    replays: u32,
    /// Additional correctable errors
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    aer_correctable: u32,
    /// Additional uncorrectable, non-fatal errors
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    aer_non_fatal: u32,
    /// Additional fatal errors
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    aer_fatal: u32,
    /// An error that the port above the GPU reports in the kernel log
    #[arg(long, value_name = "ERROR")]
    port_error: Option<PortErrorArg>,
}

/// An error of a PCIe port.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum PortErrorArg {
    NonFatal,
    Fatal,
    Contained,
    Unrecovered,
    LinkDown,
}

impl From<PortErrorArg> for PortError {
    fn from(error: PortErrorArg) -> Self {
        match error {
            PortErrorArg::NonFatal => Self::NonFatal,
            PortErrorArg::Fatal => Self::Fatal,
            PortErrorArg::Contained => Self::Contained,
            PortErrorArg::Unrecovered => Self::Unrecovered,
            PortErrorArg::LinkDown => Self::LinkDown,
        }
    }
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
            port_error: args.port_error.map(PortError::from),
        }
    }
}

/// NVSwitch fabric state.
#[derive(Debug, clap::Args)]
pub(super) struct FabricArgs {
    /// Registration state: 1 not started, 2 in progress, 3 completed
    #[arg(long)]
    state: Option<u32>,
    /// NVML return code of the registration
    #[arg(long, value_name = "CODE")]
    status: Option<u32>,
    /// NVML health mask, as a decimal number or in hexadecimal such as 0x1a9
    #[arg(long, value_name = "MASK", value_parser = mask)]
    health_mask: Option<u32>,
}

impl From<&FabricArgs> for FabricFault {
    fn from(args: &FabricArgs) -> Self {
        Self { state: args.state, status: args.status, health_mask: args.health_mask }
    }
}

/// NVLink errors.
#[derive(Debug, clap::Args)]
pub(super) struct LinkArgs {
    /// Link number
    pub(super) link: usize,
    /// Additional replays
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    replay: u64,
    /// Additional link retrainings
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    recovery: u64,
    /// Additional CRC errors in data
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    crc: u64,
    /// Additional CRC errors in flits
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    crc_flit: u64,
    /// Additional receive errors. This option and those below, except --speed, are for NVLink 5
    /// only
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    receive: u64,
    /// Additional malformed packets
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    malformed: u64,
    /// Additional buffer overruns
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    overrun: u64,
    /// Additional local link integrity errors
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    integrity: u64,
    /// Additional packets dropped on transmit
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    discarded: u64,
    /// Additional failed retrainings
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    recovery_failed: u64,
    /// Additional errors after FEC
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    effective: u64,
    /// Additional symbols that FEC could not correct
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    symbol: u64,
    /// Additional blocks retransmitted by the physical layer
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    retry_blocks: u64,
    /// Bit error rate after FEC, such as 2e-12
    #[arg(long, value_name = "RATE")]
    effective_ber: Option<BitErrorRate>,
    /// Symbol error rate after FEC, such as 15e-100
    #[arg(long, value_name = "RATE")]
    symbol_ber: Option<BitErrorRate>,
    /// Link speed in MB/s
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

/// Parses a decimal or hexadecimal mask.
fn mask(text: &str) -> Result<u32, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|err| err.to_string())
}
