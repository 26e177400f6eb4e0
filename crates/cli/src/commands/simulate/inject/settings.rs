//! Settings that somebody changed.

use clap::ValueEnum;
use farrier_sim::fault::SettingsChange;

/// Settings; what is not given stays.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = true)]
pub(super) struct SettingsArgs {
    /// Whether the driver stays loaded without clients
    #[arg(long)]
    persistence: Option<Switch>,
    /// NVML's number: 0 default, 2 prohibited, 3 exclusive process
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(0..=3))]
    compute_mode: Option<u32>,
    /// Whether memory errors are put right
    #[arg(long)]
    ecc: Option<Switch>,
    /// Whether the GPU is partitioned
    #[arg(long)]
    mig: Option<Switch>,
    /// Graphics clock that applications asked for
    #[arg(long, value_name = "MHZ")]
    application_graphics_mhz: Option<u32>,
}

/// On or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Switch {
    On,
    Off,
}

impl From<&SettingsArgs> for SettingsChange {
    fn from(args: &SettingsArgs) -> Self {
        let on = |switch: Option<Switch>| switch.map(|switch| switch == Switch::On);
        Self {
            persistence: on(args.persistence),
            compute: args.compute_mode,
            ecc: on(args.ecc),
            mig: on(args.mig),
            application_graphics_mhz: args.application_graphics_mhz,
        }
    }
}
