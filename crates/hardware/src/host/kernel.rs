//! Kernel state: memory, clock source, frequency governors, file handles, memory errors.

use farrier_facts::node::Reading;
use farrier_fleet::health::{Sample, Signal};

use super::{count, flag, number, push_node, required, unexpected_content};
use crate::root::Root;

const PROCESSORS: &str = "/sys/devices/system/cpu";
const MEMORY_CONTROLLERS: &str = "/sys/devices/system/edac/mc";

/// Clock sources that are read without leaving the processor or the guest. Every `clock_gettime` of
/// every rank reads the clock source. `hpet`, `acpi_pm`, `jiffies` and hypervisor registers are 10
/// to 100 times slower.
const CLOCK_SOURCES_GOOD: [&str; 5] =
    ["tsc", "arch_sys_counter", "kvm-clock", "hyperv_clocksource_tsc_page", "timebase"];

/// Size of a huge page on x86-64, and on ARM64 with 4 KiB pages. Buffers of NCCL and of the driver
/// need contiguous blocks of this size.
const LARGE_BLOCK_BYTES: u64 = 2 << 20;

pub(super) fn read_oom_kills(root: &Root, samples: &mut Vec<Sample>) {
    let path = "/proc/vmstat";
    // Kernels before 4.13 do not count OOM kills.
    let kills = required(root.text(path), path)
        .and_then(|text| keyed(&text, "oom_kill ").map_or(Reading::Absent, Reading::Value));
    push_node(samples, Signal::NodeOomKills, kills.map(count));
}

/// All signals of the kernel except OOM kills.
pub(super) fn read(root: &Root, samples: &mut Vec<Sample>) {
    push_node(samples, Signal::NodeClockSourceGood, clock_source(root));
    push_node(samples, Signal::NodeGovernorsSlow, slow_governors(root));
    push_node(samples, Signal::NodeFileHandles, file_handles(root));
    push_node(samples, Signal::NodeMemoryAvailable, memory_available(root));
    push_node(samples, Signal::NodeLargeBlocksFree, large_blocks(root));
    push_node(samples, Signal::NodeEdacUncorrected, memory_errors(root, "ue_count"));
    push_node(samples, Signal::NodeCpuThrottles, cpu_throttles(root));
    push_node(samples, Signal::NodeEdacCorrected, memory_errors(root, "ce_count"));
}

fn clock_source(root: &Root) -> Reading<f64> {
    root.trimmed("/sys/devices/system/clocksource/clocksource0/current_clocksource")
        .map(|source| flag(CLOCK_SOURCES_GOOD.contains(&source.as_str())))
}

/// Absent if the kernel does not control frequencies, as in most virtual machines.
fn slow_governors(root: &Root) -> Reading<f64> {
    required(root.list(PROCESSORS), PROCESSORS).and_then(|names| {
        let (mut governed, mut slow) = (false, 0);
        for name in names.iter().filter(|name| is_numbered(name, "cpu")) {
            match root.trimmed(&format!("{PROCESSORS}/{name}/cpufreq/scaling_governor")) {
                Reading::Value(governor) => {
                    governed = true;
                    slow += u64::from(governor != "performance");
                }
                Reading::Absent => {}
                Reading::Unreadable(why) => return Reading::Unreadable(why),
            }
        }
        if governed { Reading::Value(count(slow)) } else { Reading::Absent }
    })
}

/// How often the processors were throttled. Absent if the kernel does not count this, as in most
/// virtual machines and on Arm. Each processor of a package counts the throttling of the package,
/// so the largest count is taken.
fn cpu_throttles(root: &Root) -> Reading<f64> {
    required(root.list(PROCESSORS), PROCESSORS).and_then(|names| {
        let (mut cores, mut package) = (None, 0);
        for name in names.iter().filter(|name| is_numbered(name, "cpu")) {
            let folder = format!("{PROCESSORS}/{name}/thermal_throttle");
            match number(root, &format!("{folder}/core_throttle_count")) {
                Reading::Value(count) => *cores.get_or_insert(0_u64) += count,
                Reading::Absent => continue,
                Reading::Unreadable(why) => return Reading::Unreadable(why),
            }
            match number(root, &format!("{folder}/package_throttle_count")) {
                Reading::Value(count) => package = package.max(count),
                Reading::Absent => {}
                Reading::Unreadable(why) => return Reading::Unreadable(why),
            }
        }
        cores.map_or(Reading::Absent, |cores| Reading::Value(count(cores.saturating_add(package))))
    })
}

/// Parses `9344 0 9223372036854775807`: allocated handles, the free ones among them, and the
/// maximum.
fn file_handles(root: &Root) -> Reading<f64> {
    let path = "/proc/sys/fs/file-nr";
    required(root.trimmed(path), path).and_then(|word| {
        let numbers: Vec<u64> =
            word.split_whitespace().map_while(|word| word.parse().ok()).collect();
        match numbers[..] {
            [allocated, free, most] if most > 0 => {
                Reading::Value(count(allocated.saturating_sub(free)) / count(most))
            }
            _ => unexpected_content(path),
        }
    })
}

fn memory_available(root: &Root) -> Reading<f64> {
    let path = "/proc/meminfo";
    required(root.text(path), path).and_then(|text| {
        let total = keyed(&text, "MemTotal:").filter(|total| *total > 0);
        match keyed(&text, "MemAvailable:").zip(total) {
            Some((available, total)) => Reading::Value(count(available) / count(total)),
            None => unexpected_content(path),
        }
    })
}

fn large_blocks(root: &Root) -> Reading<f64> {
    let path = "/proc/buddyinfo";
    let order = order_of(LARGE_BLOCK_BYTES, page_bytes());
    required(root.text(path), path)
        .and_then(|text| {
            free_blocks(&text, order).map_or_else(|| unexpected_content(path), Reading::Value)
        })
        .map(count)
}

/// Parses `Node 0, zone   Normal   4113   1022 ...`: the number of free blocks of one page, two
/// pages, four pages and so on.
fn free_blocks(text: &str, order: usize) -> Option<u64> {
    let mut sum = 0;
    let mut zones = 0;
    for line in text.lines().filter(|line| !line.is_empty()) {
        let (_, zone) = line.split_once("zone")?;
        for (place, blocks) in zone.split_whitespace().skip(1).enumerate() {
            let blocks: u64 = blocks.parse().ok()?;
            if place >= order {
                sum += blocks;
            }
        }
        zones += 1;
    }
    (zones > 0).then_some(sum)
}

fn order_of(block_bytes: u64, page_bytes: u64) -> usize {
    (block_bytes / page_bytes.max(1)).max(1).ilog2() as usize
}

/// 4 KiB, or 64 KiB on some ARM nodes.
fn page_bytes() -> u64 {
    // SAFETY: `sysconf` takes an integer, accesses no memory of ours, and returns -1 for unknown
    // names.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(bytes).ok().filter(|bytes| *bytes > 0).unwrap_or(4096)
}

/// Absent if no EDAC driver is loaded.
fn memory_errors(root: &Root, file: &str) -> Reading<f64> {
    root.list(MEMORY_CONTROLLERS).and_then(|names| {
        let controllers: Vec<&String> =
            names.iter().filter(|name| is_numbered(name, "mc")).collect();
        if controllers.is_empty() {
            return Reading::Absent;
        }
        let mut sum = 0_u64;
        for name in controllers {
            match number(root, &format!("{MEMORY_CONTROLLERS}/{name}/{file}")) {
                Reading::Value(errors) => sum = sum.saturating_add(errors),
                Reading::Absent => {}
                Reading::Unreadable(why) => return Reading::Unreadable(why),
            }
        }
        Reading::Value(count(sum))
    })
}

fn is_numbered(name: &str, word: &str) -> bool {
    name.strip_prefix(word).is_some_and(|digits| {
        !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit())
    })
}

/// The number after a key at the start of a line.
fn keyed(text: &str, key: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(key))?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_blocks_are_counted_from_an_order_up() {
        let text = "Node 0, zone      DMA      0      0      0      0      0      0      0      0      1      2      2 \n\
                    Node 0, zone   Normal   4113   1022    500    100     50     20     10      5      3      7     11 \n";
        assert_eq!(free_blocks(text, 9), Some(22));
        assert_eq!(free_blocks(text, 10), Some(13));
        assert_eq!(free_blocks("", 9), None);
        assert_eq!(free_blocks("nonsense\n", 9), None);
        assert_eq!(order_of(2 << 20, 4096), 9);
        assert_eq!(order_of(2 << 20, 65536), 5);
    }
}
