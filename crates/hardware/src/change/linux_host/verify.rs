//! Checks of the GPUs after a change, and what is restored before.

use std::collections::BTreeMap;
use std::time::Duration;

use farrier_facts::node::Reading;
use farrier_fleet::change::{ActionFailure, SavedNode};

use super::super::programs::{ProgramError, Programs};
use crate::root::Root;
use crate::{current_faults, pci};

/// Keys of [`SavedNode::settings`].
const GPUS: &str = "gpus";
const XIDS: &str = "xid-lines";
const BOOT: &str = "boot";
const LIMIT: Duration = Duration::from_secs(120);
const CDI_TOOL: &str = "/usr/bin/nvidia-ctk";
const CDI_SPEC: &str = "/etc/cdi/nvidia.yaml";

/// Xids after which a GPU does not work without a repair: uncorrectable errors, a lost GPU, NVLink
/// and GSP failures. The other Xids can come from the programs of a job.
const FATAL_XIDS: [u32; 8] = [48, 64, 74, 79, 95, 119, 120, 140];

/// What the GPUs and the kernel log were like before the change.
pub(super) fn fingerprint(root: &Root) -> BTreeMap<String, String> {
    let mut saved = BTreeMap::new();
    if let Reading::Value(gpus) = gpus(root) {
        saved.insert(GPUS.to_owned(), gpus.to_string());
    }
    if let Reading::Value(lines) = current_faults::read(root).xid_lines {
        saved.insert(XIDS.to_owned(), lines.len().to_string());
    }
    if let Reading::Value(boot) = root.trimmed("/proc/sys/kernel/random/boot_id") {
        saved.insert(BOOT.to_owned(), boot);
    }
    saved
}

/// GPUs that the driver serves.
fn gpus(root: &Root) -> Reading<usize> {
    root.list("/proc/driver/nvidia/gpus").map(|names| names.len())
}

fn failed(check: &str, detail: String) -> ActionFailure {
    ActionFailure::CheckFailed { check: check.to_owned(), detail }
}

fn not_run(check: &str, detail: String) -> ActionFailure {
    ActionFailure::CheckNotRun { check: check.to_owned(), detail }
}

/// Verification level V1: the GPUs on PCI are those that the driver serves and those of before, and
/// the kernel log has no new Xid. The state machine has checked level V0.
pub(super) fn verify(root: &Root, saved: Option<&SavedNode>) -> Result<Vec<String>, ActionFailure> {
    const COUNT: &str = "gpu-count";
    const XID: &str = "xid";
    let on_pci = match pci::read(root) {
        Reading::Value(devices) => devices.iter().filter(|device| device.is_gpu()).count(),
        Reading::Absent => 0,
        Reading::Unreadable(why) => return Err(not_run(COUNT, why.to_string())),
    };
    let served = match gpus(root) {
        Reading::Value(count) => count,
        Reading::Absent => 0,
        Reading::Unreadable(why) => return Err(not_run(COUNT, why.to_string())),
    };
    if served != on_pci {
        return Err(failed(COUNT, format!("the driver serves {served} of {on_pci} GPUs")));
    }
    let before = saved.and_then(|saved| saved.settings.get(GPUS));
    if before.is_some_and(|before| *before != served.to_string()) {
        let before = before.map(String::as_str).unwrap_or_default();
        return Err(failed(COUNT, format!("{served} GPUs; {before} before the change")));
    }
    match new_xids(root, saved) {
        Reading::Value(lines) if lines.is_empty() => {}
        Reading::Value(lines) => return Err(failed(XID, lines.join("; "))),
        Reading::Absent => return Err(not_run(XID, "there is no kernel log".to_owned())),
        Reading::Unreadable(why) => return Err(not_run(XID, why.to_string())),
    }
    Ok(vec![COUNT.to_owned(), XID.to_owned()])
}

/// Lines with an Xid since the change began.
fn new_xids(root: &Root, saved: Option<&SavedNode>) -> Reading<Vec<String>> {
    let boot = root.trimmed("/proc/sys/kernel/random/boot_id");
    let known = saved.filter(|saved| saved.settings.get(BOOT) == boot.value());
    let known = known.and_then(|saved| saved.settings.get(XIDS)?.parse::<usize>().ok());
    current_faults::read(root)
        .xid_lines
        .map(|lines| lines.into_iter().skip(known.unwrap_or_default()).collect())
}

/// A fatal Xid or a lost GPU since the change. Absent if there is none.
pub(super) fn regression(root: &Root, saved: Option<&SavedNode>) -> Reading<String> {
    let lines = match new_xids(root, saved) {
        Reading::Value(lines) => lines,
        Reading::Absent => Vec::new(),
        Reading::Unreadable(why) => return Reading::Unreadable(why),
    };
    if let Some(line) = lines.into_iter().find(|line| is_fatal(line)) {
        return Reading::Value(line);
    }
    let before = saved.and_then(|saved| saved.settings.get(GPUS)?.parse::<usize>().ok());
    match (gpus(root), before) {
        (Reading::Unreadable(why), _) => Reading::Unreadable(why),
        (Reading::Value(now), Some(before)) if now < before => {
            Reading::Value(format!("{now} GPUs; {before} before the change"))
        }
        (Reading::Absent, Some(before)) if before > 0 => {
            Reading::Value(format!("no GPUs; {before} before the change"))
        }
        _ => Reading::Absent,
    }
}

/// `NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, ...`
fn is_fatal(line: &str) -> bool {
    let rest = line.split_once("Xid (").and_then(|(_, rest)| rest.split_once("): "));
    let number = rest.and_then(|(_, rest)| {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        rest[..digits].parse::<u32>().ok()
    });
    number.is_some_and(|number| FATAL_XIDS.contains(&number))
}

/// Writes the CDI specification for the driver that is loaded, if the node has one.
pub(super) fn restore(root: &Root, programs: &Programs) -> Result<(), ActionFailure> {
    let has = |path: &str| root.exists(path) == Reading::Value(true);
    if has(CDI_TOOL) && has(CDI_SPEC) {
        let output = format!("--output={CDI_SPEC}");
        programs
            .output(CDI_TOOL, &["cdi", "generate", &output], LIMIT)
            .map_err(ProgramError::into_failure)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_fatal_xids_are_a_regression() {
        assert!(is_fatal("NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus."));
        assert!(!is_fatal("NVRM: Xid (PCI:0000:3b:00): 31, pid=1, Ch 0000000a"));
        assert!(!is_fatal("nothing"));
    }
}
