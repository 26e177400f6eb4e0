//! Memory that goes wrong.

use farrier_sim::fault::{EccErrors, RemapFault, RetiredFault};

/// Memory errors, added to those that are there.
#[derive(Debug, clap::Args)]
pub(super) struct EccArgs {
    /// In memory, put right
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    corrected: u64,
    /// In memory, not put right
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    uncorrected: u64,
    /// In caches and register files, put right
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    sram_corrected: u64,
    /// In caches and register files, not put right
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    sram_uncorrected: u64,
    /// So many in caches and register files that the part should be replaced
    #[arg(long)]
    sram_threshold: bool,
}

impl From<&EccArgs> for EccErrors {
    fn from(args: &EccArgs) -> Self {
        Self {
            corrected: args.corrected,
            uncorrected: args.uncorrected,
            sram_corrected: args.sram_corrected,
            sram_uncorrected: args.sram_uncorrected,
            sram_threshold: args.sram_threshold,
        }
    }
}

/// Rows taken out of service.
#[derive(Debug, clap::Args)]
pub(super) struct RemapArgs {
    /// For correctable errors
    #[arg(long, value_name = "ROWS", default_value_t = 0)]
    corrected: u32,
    /// For uncorrectable errors
    #[arg(long, value_name = "ROWS", default_value_t = 0)]
    uncorrected: u32,
    /// More wait for a reset
    #[arg(long)]
    pending: bool,
    /// A remap failed
    #[arg(long)]
    failed: bool,
    /// More banks that have few spare rows left
    #[arg(long, value_name = "BANKS", default_value_t = 0)]
    banks_low: u32,
    /// More banks that have none left
    #[arg(long, value_name = "BANKS", default_value_t = 0)]
    banks_none: u32,
}

impl From<&RemapArgs> for RemapFault {
    fn from(args: &RemapArgs) -> Self {
        Self {
            corrected: args.corrected,
            uncorrected: args.uncorrected,
            pending: args.pending,
            failed: args.failed,
            banks_low: args.banks_low,
            banks_none: args.banks_none,
        }
    }
}

/// Pages taken out of service, on parts without row remapping.
#[derive(Debug, clap::Args)]
pub(super) struct RetiredArgs {
    /// For many single-bit errors
    #[arg(long, value_name = "PAGES", default_value_t = 0)]
    single: u32,
    /// For a double-bit error
    #[arg(long, value_name = "PAGES", default_value_t = 0)]
    double: u32,
    /// More wait for a reset
    #[arg(long)]
    pending: bool,
}

impl From<&RetiredArgs> for RetiredFault {
    fn from(args: &RetiredArgs) -> Self {
        Self { single: args.single, double: args.double, pending: args.pending }
    }
}
