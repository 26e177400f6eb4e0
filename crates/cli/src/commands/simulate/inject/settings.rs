//! Arguments of `inject settings`.

use clap::ValueEnum;
use farrier_sim::fault::SettingsChange;

/// Driver settings; options left out keep their values.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = true)]
pub(super) struct SettingsArgs {
    /// Persistence mode
    #[arg(long)]
    persistence: Option<Switch>,
    /// Compute mode: 0 default, 2 prohibited, 3 exclusive process
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(0..=3))]
    compute_mode: Option<u32>,
    /// ECC mode
    #[arg(long)]
    ecc: Option<Switch>,
    /// MIG mode
    #[arg(long)]
    mig: Option<Switch>,
    /// Graphics application clock
    #[arg(long, value_name = "MHZ")]
    application_graphics_mhz: Option<u32>,
}

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
