//! Processes on a GPU.

use std::collections::BTreeSet;
use std::ffi::c_uint;

use farrier_facts::node::Reading;
use farrier_fleet::health::signal::Signal;

use crate::nvml::caller::{CallResult, call};
use crate::nvml::ffi::{self, ProcessInfo, RawDevice};

use super::reader::{ReadFailure, Reader};
use super::{NvmlProcess, ProcessKind};

/// Initial size of the buffer, which grows on demand.
const BUFFER_INITIAL: usize = 64;

/// Maximum size of the buffer. A GPU has contexts for fewer processes.
const BUFFER_MAX: usize = 4096;

/// `NVML_ERROR_NO_PERMISSION`
const NO_PERMISSION: ffi::Return = 4;

/// Maximum MIG instances, more than a GPU supports.
const INSTANCES_MAX: c_uint = 64;

impl Reader<'_, '_> {
    /// Lists all processes of the GPU, or of its MIG instances if it is partitioned.
    pub(super) fn processes(
        &mut self,
        buffer: &mut Vec<ProcessInfo>,
        into: &mut Vec<NvmlProcess>,
    ) -> Result<(), ReadFailure> {
        let from = into.len();
        let mut called = self.device_processes(self.device, buffer, into);
        let refused = matches!(called, Ok(NO_PERMISSION | ffi::NOT_SUPPORTED));
        if refused && self.gpu.is_partitioned {
            // Listing the processes of a whole GPU needs root. Listing those of an instance does
            // not.
            called = self.instance_processes(buffer, into);
        }
        let processes: BTreeSet<u32> = into[from..].iter().map(|process| process.pid).collect();
        let count = f64::from(u32::try_from(processes.len()).unwrap_or(u32::MAX));
        self.put(called, &[(Signal::GpuProcesses, count)])
    }

    fn instance_processes(
        &mut self,
        buffer: &mut Vec<ProcessInfo>,
        into: &mut Vec<NvmlProcess>,
    ) -> CallResult {
        let mut most: c_uint = 0;
        let called = call!(
            self.caller,
            ffi::DeviceNumber,
            "nvmlDeviceGetMaxMigDeviceCount",
            self.device,
            &raw mut most
        );
        if called != Ok(ffi::SUCCESS) {
            return called;
        }
        for number in 0..most.min(INSTANCES_MAX) {
            let mut instance: RawDevice = std::ptr::null_mut();
            let opened = call!(
                self.caller,
                ffi::DeviceInstance,
                "nvmlDeviceGetMigDeviceHandleByIndex",
                self.device,
                number,
                &raw mut instance
            );
            // An index without an instance returns NOT_FOUND.
            if opened == Ok(ffi::SUCCESS) {
                let called = self.device_processes(instance, buffer, into);
                if called != Ok(ffi::SUCCESS) {
                    return called;
                }
            }
        }
        Ok(ffi::SUCCESS)
    }

    fn device_processes(
        &mut self,
        device: RawDevice,
        buffer: &mut Vec<ProcessInfo>,
        into: &mut Vec<NvmlProcess>,
    ) -> CallResult {
        let from = into.len();
        for kind in [ProcessKind::Compute, ProcessKind::Graphics, ProcessKind::Mps] {
            match self.processes_of_kind(device, kind, buffer, into) {
                Ok(ffi::SUCCESS) => {}
                // Some GPUs support only compute processes.
                Ok(ffi::NOT_SUPPORTED) | Err(_) if kind != ProcessKind::Compute => {}
                other => {
                    into.truncate(from);
                    return other;
                }
            }
        }
        Ok(ffi::SUCCESS)
    }

    fn processes_of_kind(
        &mut self,
        device: RawDevice,
        kind: ProcessKind,
        buffer: &mut Vec<ProcessInfo>,
        into: &mut Vec<NvmlProcess>,
    ) -> CallResult {
        if buffer.is_empty() {
            buffer.resize(BUFFER_INITIAL, ProcessInfo::default());
        }
        loop {
            let mut count = c_uint::try_from(buffer.len()).unwrap_or(0);
            let called = self.list(device, kind, &mut count, buffer);
            let found = usize::try_from(count).unwrap_or(usize::MAX);
            if called == Ok(ffi::INSUFFICIENT_SIZE) && buffer.len() < BUFFER_MAX {
                // Leave headroom for processes that start before the retry.
                buffer.resize(
                    (found + BUFFER_INITIAL).max(buffer.len() * 2).min(BUFFER_MAX),
                    ProcessInfo::default(),
                );
                continue;
            }
            if called == Ok(ffi::SUCCESS) {
                let gpu = &self.gpu.identity.uuid;
                into.extend(buffer.iter().take(found).map(|info| NvmlProcess {
                    gpu: gpu.clone(),
                    pid: info.pid,
                    kind,
                    used_bytes: match info.used_memory {
                        ffi::NOT_AVAILABLE => Reading::Absent,
                        bytes => Reading::Value(bytes),
                    },
                    gpu_instance:
                        Some(info.gpu_instance).filter(|instance| *instance != c_uint::MAX),
                }));
            }
            return called;
        }
    }

    fn list(
        &mut self,
        device: RawDevice,
        kind: ProcessKind,
        count: &mut c_uint,
        buffer: &mut [ProcessInfo],
    ) -> CallResult {
        type List = ffi::DeviceProcesses;
        let (count, buffer) = (std::ptr::from_mut(count), buffer.as_mut_ptr());
        match kind {
            ProcessKind::Compute => {
                call!(
                    self.caller,
                    List,
                    "nvmlDeviceGetComputeRunningProcesses_v3",
                    device,
                    count,
                    buffer
                )
            }
            ProcessKind::Graphics => {
                call!(
                    self.caller,
                    List,
                    "nvmlDeviceGetGraphicsRunningProcesses_v3",
                    device,
                    count,
                    buffer
                )
            }
            ProcessKind::Mps => call!(
                self.caller,
                List,
                "nvmlDeviceGetMPSComputeRunningProcesses_v3",
                device,
                count,
                buffer
            ),
        }
    }
}
