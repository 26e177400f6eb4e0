//! Texts of flags, for 0 and 1.

use super::super::super::signal::Signal;

/// The flag, its text for 0, and its text for 1.
const WORDS: [(Signal, &str, &str); 25] = [
    (Signal::GpuLost, "NVML finds the GPU", "NVML says that the GPU fell off the bus"),
    (
        Signal::GpuResetRequired,
        "NVML asks for no reset of the GPU",
        "NVML says that the GPU needs a reset before it works again",
    ),
    (
        Signal::GpuUnreadable,
        "NVML reads values of the GPU",
        "NVML lists the GPU and no call reads anything of it",
    ),
    (Signal::GpuEccEnabled, "error correction is off", "error correction is on"),
    (
        Signal::GpuEccSramThreshold,
        "errors of caches and register files are below the driver's threshold",
        "errors of caches and register files are past the driver's threshold for a replacement",
    ),
    (
        Signal::GpuRowsPending,
        "no row waits to be remapped",
        "a row waits for a reset to be remapped",
    ),
    (Signal::GpuRowsFailed, "no remap of a row has failed", "the remap of a row has failed"),
    (
        Signal::GpuPagesPending,
        "no page waits to be retired",
        "a page waits for a reset to be retired",
    ),
    (
        Signal::GpuMemoryUnrepairable,
        "no memory is broken beyond repair",
        "memory is broken beyond repair",
    ),
    (
        Signal::GpuInforomValid,
        "the card's configuration store fails its checksum",
        "the card's configuration store passes its checksum",
    ),
    (
        Signal::GpuOnBus,
        "the kernel does not list the GPU on the bus",
        "the kernel lists the GPU on the bus",
    ),
    (
        Signal::GpuFabricUnhealthy,
        "the fabric's health mask names nothing wrong",
        "the fabric's health mask names something wrong",
    ),
    (Signal::GpuPersistence, "persistence mode is off", "persistence mode is on"),
    (Signal::GpuMigEnabled, "the GPU is not partitioned", "the GPU is partitioned"),
    (Signal::LinkActive, "the link is down", "the link is up"),
    (Signal::NicPresent, "the port is gone from sysfs", "the port stands in sysfs"),
    (Signal::NicActive, "the port is down", "the port is up"),
    (
        Signal::NodeCallsStuck,
        "no call of NVML is stuck (a GPU is asked again `probe.avoid_s` after one was)",
        "a call of NVML is stuck",
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
        "the kernel uses a good clock source",
    ),
    (Signal::AgentKernelLog, "the kernel log cannot be read", "the kernel log can be read"),
    (
        Signal::AgentLogWritable,
        "findings cannot be written to disk",
        "findings can be written to disk",
    ),
    (
        Signal::AgentConfigGood,
        "the configuration on disk is not the one in force",
        "the configuration on disk is the one in force",
    ),
    (
        Signal::AgentSinkGood,
        "the sink does not take what it is given",
        "the sink takes what it is given",
    ),
];

pub(super) fn state(signal: Signal, is_set: bool) -> String {
    if let Some((_, off, on)) = WORDS.iter().find(|(known, ..)| *known == signal) {
        return (if is_set { *on } else { *off }).to_owned();
    }
    // Unreachable: the test below checks that every flag is in the table.
    format!("`{signal}` is {}", u8::from(is_set))
}

#[cfg(test)]
mod tests {
    use super::super::super::super::signal::Behaviour;
    use super::*;

    #[test]
    fn every_flag_has_words_both_ways() {
        for signal in Signal::ALL.iter().filter(|it| it.behaviour() == Behaviour::Flag) {
            assert!(WORDS.iter().any(|(known, ..)| known == signal), "{signal}");
        }
    }
}
