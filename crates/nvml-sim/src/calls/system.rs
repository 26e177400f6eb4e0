//! Initialisation, versions and node-wide calls.

use std::ffi::{c_char, c_int, c_uint};

use crate::abi::{DeviceHandle, OutArray, OutPtr, TextBuffer, fixed_text};
use crate::error_code::{ErrorCode, NvmlResult, error_string};
use crate::library::{self, handle_for};
use crate::structs::{
    ConfComputeCaps, ConfComputeSettings, ConfComputeState, DriverBranch, KeyRotation,
};

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlInit() -> c_int {
    library::initialise("nvmlInit")
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlInit_v2() -> c_int {
    library::initialise("nvmlInit_v2")
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlInitWithFlags(_flags: c_uint) -> c_int {
    library::initialise("nvmlInitWithFlags")
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlShutdown() -> c_int {
    library::shut_down()
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlErrorString(code: c_int) -> *const c_char {
    error_string(code).as_ptr()
}

node_calls! {
    nvmlSystemGetDriverVersion(version: TextBuffer, length: c_uint) |session| version.put(length, &session.node()?.driver);
    nvmlSystemGetNVMLVersion(version: TextBuffer, length: c_uint) |session| version.put(length, &session.node()?.nvml_version());
    nvmlSystemGetCudaDriverVersion(version: OutPtr<c_int>) |session| cuda_version(session, version);
    nvmlSystemGetCudaDriverVersion_v2(version: OutPtr<c_int>) |session| cuda_version(session, version);
    nvmlSystemGetProcessName(pid: c_uint, name: TextBuffer, length: c_uint) |session| name.put(length, &process_name(session, pid)?);
    nvmlSystemGetHicVersion(count: OutPtr<c_uint>, _entries: OutArray<u32>) |_session| count.put(0);
    nvmlUnitGetCount(count: OutPtr<c_uint>) |_session| count.put(0);
    nvmlGetBlacklistDeviceCount(count: OutPtr<c_uint>) |_session| count.put(0);
    nvmlGetExcludedDeviceCount(count: OutPtr<c_uint>) |_session| count.put(0);
    nvmlSystemGetTopologyGpuSet(cpu: c_uint, count: OutPtr<c_uint>, devices: OutArray<DeviceHandle>) |session| {
        let near = session.gpus().into_iter().filter(|(_, gpu)| cpu_list(&gpu.pci.cpus).contains(&cpu));
        put_devices(&near.map(|(index, _)| handle_for(index)).collect::<Vec<_>>(), count, devices)
    };
    nvmlSystemGetConfComputeCapabilities(caps: OutPtr<ConfComputeCaps>) |session| {
        let able = session.gpus().iter().any(|(_, gpu)| gpu.board.compute_capability[0] >= 9);
        caps.put(ConfComputeCaps { cpu: 0, gpus: u32::from(able) })
    };
    nvmlSystemGetConfComputeState(state: OutPtr<ConfComputeState>) |_session| {
        state.put(ConfComputeState { environment: 0, feature: 0, dev_tools: 0 })
    };
    nvmlSystemGetConfComputeGpusReadyState(ready: OutPtr<c_uint>) |_session| ready.put(0);
    nvmlSystemGetConfComputeSettings(settings: OutPtr<ConfComputeSettings>) |_session| settings.change_version(1, |settings| {
        (settings.environment, settings.feature, settings.dev_tools, settings.multi_gpu) = (0, 0, 0, 0);
    });
    nvmlSystemGetConfComputeKeyRotationThresholdInfo(info: OutPtr<KeyRotation>) |_session| {
        info.change_version(1, |info| info.attacker_advantage = 60)
    };
    nvmlSystemGetNvlinkBwMode(mode: OutPtr<c_uint>) |_session| mode.put(0);
    nvmlSystemGetDriverBranch(info: OutPtr<DriverBranch>, length: c_uint) |session| {
        let branch = format!("r{}_00", session.node()?.driver_numbers()[0]);
        if branch.len() >= length as usize {
            return Err(ErrorCode::INSUFFICIENT_SIZE);
        }
        info.change_version(1, |info| info.branch = fixed_text(&branch))
    };
}

fn cuda_version(session: &library::Session, version: OutPtr<c_int>) -> NvmlResult {
    let cuda = session.node()?.cuda;
    let number = cuda[0].saturating_mul(1000).saturating_add(cuda[1].saturating_mul(10));
    version.put(c_int::try_from(number).map_err(|_| ErrorCode::UNKNOWN)?)
}

/// The name of the simulated process with this PID, or else of the real process.
fn process_name(session: &library::Session, pid: u32) -> Result<String, ErrorCode> {
    for (_, gpu) in session.gpus() {
        let mut running = gpu.processes.iter();
        if let Some(found) = running.find(|found| found.pid == pid) {
            return Ok(found.name.clone());
        }
    }
    let command =
        std::fs::read(format!("/proc/{pid}/cmdline")).map_err(|_| ErrorCode::NOT_FOUND)?;
    let first = command.split(|byte| *byte == 0).next().unwrap_or_default();
    Ok(String::from_utf8_lossy(first).into_owned())
}

/// Parses a CPU list such as `0-47,96`.
pub(crate) fn cpu_list(text: &str) -> Vec<u32> {
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.trim().split_once('-').unwrap_or((part.trim(), part.trim()));
        if let (Ok(first), Ok(last)) = (first.parse::<u32>(), last.parse::<u32>()) {
            // The number of CPUs is limited, so that a typing mistake cannot exhaust the memory.
            cpus.extend((first..=last).take(4096));
        }
    }
    cpus
}

/// Writes a list of devices. Without a buffer, it writes only the count and succeeds.
pub(crate) fn put_devices(
    found: &[DeviceHandle],
    count: OutPtr<u32>,
    devices: OutArray<DeviceHandle>,
) -> NvmlResult {
    let needed = u32::try_from(found.len()).map_err(|_| ErrorCode::UNKNOWN)?;
    if devices.is_null() {
        return count.put(needed);
    }
    devices.fill(count, found)
}
