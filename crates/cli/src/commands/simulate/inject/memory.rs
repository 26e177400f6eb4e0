//! Arguments for memory faults.

use farrier_sim::fault::{EccErrors, RemapFault, RetiredFault};

/// ECC error increments.
#[derive(Debug, clap::Args)]
pub(super) struct EccArgs {
    /// Corrected errors in memory
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    corrected: u64,
    /// Uncorrected errors in memory
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    uncorrected: u64,
    /// Corrected errors in caches and register files
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    sram_corrected: u64,
    /// Uncorrected errors in caches and register files
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    sram_uncorrected: u64,
    /// Exceed the SRAM threshold, so that the GPU should be replaced
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

/// Row remapping changes.
#[derive(Debug, clap::Args)]
pub(super) struct RemapArgs {
    /// Rows remapped for correctable errors
    #[arg(long, value_name = "ROWS", default_value_t = 0)]
    corrected: u32,
    /// Rows remapped for uncorrectable errors
    #[arg(long, value_name = "ROWS", default_value_t = 0)]
    uncorrected: u32,
    /// A remap waits for a reset
    #[arg(long)]
    pending: bool,
    /// A remap failed
    #[arg(long)]
    failed: bool,
    /// Additional banks with few spare rows left
    #[arg(long, value_name = "BANKS", default_value_t = 0)]
    banks_low: u32,
    /// Additional banks without spare rows
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

/// Page retirements, on GPUs without row remapping.
#[derive(Debug, clap::Args)]
pub(super) struct RetiredArgs {
    /// Pages retired for repeated single-bit errors
    #[arg(long, value_name = "PAGES", default_value_t = 0)]
    single: u32,
    /// Pages retired for a double-bit error
    #[arg(long, value_name = "PAGES", default_value_t = 0)]
    double: u32,
    /// A retirement waits for a reset
    #[arg(long)]
    pending: bool,
}

impl From<&RetiredArgs> for RetiredFault {
    fn from(args: &RetiredArgs) -> Self {
        Self { single: args.single, double: args.double, pending: args.pending }
    }
}
