//! Texts that describe flags: one text for the value 0, and one for the value 1.

use super::super::super::signal::Signal;

/// The flag, its text for 0, and its text for 1.
const TEXTS: [(Signal, &str, &str); 26] = [
    (Signal::GpuLost, "NVML does not report the GPU as lost", "NVML reports the GPU as lost"),
    (Signal::GpuResetRequired, "NVML does not require a GPU reset", "NVML requires a GPU reset"),
    (
        Signal::GpuUnreadable,
        "NVML reads values from the GPU",
        "NVML lists the GPU, but every read from it fails",
    ),
    (
        Signal::GpuClockApplicationLow,
        "no low application clock is set",
        "an application clock below 60 % of the model's highest clock is set",
    ),
    (Signal::GpuEccEnabled, "ECC is off", "ECC is on"),
    (
        Signal::GpuEccSramThreshold,
        "SRAM errors are below the driver's threshold",
        "SRAM errors exceed the driver's threshold for replacement",
    ),
    (
        Signal::GpuRowsPending,
        "no row remapping is pending",
        "a row remapping is pending until a reset",
    ),
    (
        Signal::GpuRowsFailed,
        "the driver reports no failed row remapping",
        "a row remapping has failed",
    ),
    (
        Signal::GpuPagesPending,
        "no page retirement is pending",
        "a page retirement is pending until a reset",
    ),
    (
        Signal::GpuMemoryUnrepairable,
        "the driver does not report unrepairable memory",
        "the driver reports unrepairable memory",
    ),
    (Signal::GpuInforomValid, "the InfoROM checksum is invalid", "the InfoROM checksum is valid"),
    (
        Signal::GpuOnBus,
        "the kernel does not list the GPU on the PCI bus",
        "the kernel lists the GPU on the PCI bus",
    ),
    (
        Signal::GpuFabricUnhealthy,
        "the fabric health mask reports no problem",
        "the fabric health mask reports a problem",
    ),
    (Signal::GpuPersistence, "persistence mode is off", "persistence mode is on"),
    (Signal::GpuMigEnabled, "MIG mode is off", "MIG mode is on"),
    (Signal::LinkActive, "the link is down", "the link is up"),
    (Signal::NicPresent, "the port is missing from sysfs", "the port is in sysfs"),
    (Signal::NicActive, "the port is down", "the port is up"),
    (
        Signal::NodeCallsStuck,
        "no NVML call hangs (after a hang, a GPU is probed again after `probe.avoid_s`)",
        "an NVML call hangs",
    ),
    (Signal::NodeNvmlAnswers, "NVML does not answer", "NVML answers"),
    (
        Signal::NodeDriverLoaded,
        "the NVIDIA kernel module is not loaded",
        "the NVIDIA kernel module is loaded",
    ),
    (
        Signal::NodeClockSourceGood,
        "the kernel uses a slow clock source",
        "the kernel uses a fast clock source",
    ),
    (Signal::AgentKernelLog, "the kernel log cannot be read", "the kernel log can be read"),
    (
        Signal::AgentLogWritable,
        "findings cannot be written to disk",
        "findings can be written to disk",
    ),
    (
        Signal::AgentConfigGood,
        "the configuration file on disk is not in effect",
        "the configuration file on disk is in effect",
    ),
    (Signal::AgentSinkGood, "the sink cannot be written", "the sink can be written"),
];

pub(super) fn state(signal: Signal, is_set: bool) -> String {
    if let Some((_, off, on)) = TEXTS.iter().find(|(flag, ..)| *flag == signal) {
        return (if is_set { *on } else { *off }).to_owned();
    }
    // This line is not reached: the test below checks that every flag is in the table.
    format!("`{signal}` is {}", u8::from(is_set))
}

#[cfg(test)]
mod tests {
    use super::super::super::super::signal::Behaviour;
    use super::*;

    #[test]
    fn every_flag_has_a_text_for_0_and_1() {
        for signal in Signal::ALL.iter().filter(|signal| signal.behaviour() == Behaviour::Flag) {
            assert!(TEXTS.iter().any(|(flag, ..)| flag == signal), "{signal}");
        }
    }
}
