//! Processes on a GPU.

use std::collections::BTreeSet;
use std::ffi::c_uint;

use farrier_facts::node::Reading;
use farrier_fleet::health::signal::Signal;

use crate::nvml::caller::{Called, call};
use crate::nvml::ffi::{self, Device, ProcessInfo};

use super::reader::{Reader, Trouble};
use super::{GpuProcess, ProcessKind};

/// Initial buffer size; it grows on demand.
const ROOM: usize = 64;

/// More processes than a GPU has contexts for.
const ROOM_MAX: usize = 4096;

/// `NVML_ERROR_NO_PERMISSION`
const NO_PERMISSION: ffi::Return = 4;

/// More MIG instances than a GPU supports.
const INSTANCES_MAX: c_uint = 64;

impl Reader<'_, '_> {
    /// Lists all processes of the GPU, or of its MIG instances if it is partitioned.
    pub(super) fn processes(
        &mut self,
        room: &mut Vec<ProcessInfo>,
        into: &mut Vec<GpuProcess>,
    ) -> Result<(), Trouble> {
        let from = into.len();
        let mut called = self.of_device(self.device, room, into);
        let refused = matches!(called, Ok(NO_PERMISSION | ffi::NOT_SUPPORTED));
        if refused && self.gpu.is_partitioned {
            // Listing the whole GPU needs root; listing an instance does not.
            called = self.of_instances(room, into);
        }
        let processes: BTreeSet<u32> = into[from..].iter().map(|process| process.pid).collect();
        let count = f64::from(u32::try_from(processes.len()).unwrap_or(u32::MAX));
        self.put(called, &[(Signal::GpuProcesses, count)])
    }

    fn of_instances(&mut self, room: &mut Vec<ProcessInfo>, into: &mut Vec<GpuProcess>) -> Called {
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
            let mut instance: Device = std::ptr::null_mut();
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
                let called = self.of_device(instance, room, into);
                if called != Ok(ffi::SUCCESS) {
                    return called;
                }
            }
        }
        Ok(ffi::SUCCESS)
    }

    fn of_device(
        &mut self,
        device: Device,
        room: &mut Vec<ProcessInfo>,
        into: &mut Vec<GpuProcess>,
    ) -> Called {
        let from = into.len();
        for kind in [ProcessKind::Compute, ProcessKind::Graphics, ProcessKind::Mps] {
            match self.of_kind(device, kind, room, into) {
                Ok(ffi::SUCCESS) => {}
                // Some GPUs support only one kind.
                Ok(ffi::NOT_SUPPORTED) | Err(_) if kind != ProcessKind::Compute => {}
                other => {
                    into.truncate(from);
                    return other;
                }
            }
        }
        Ok(ffi::SUCCESS)
    }

    fn of_kind(
        &mut self,
        device: Device,
        kind: ProcessKind,
        room: &mut Vec<ProcessInfo>,
        into: &mut Vec<GpuProcess>,
    ) -> Called {
        if room.is_empty() {
            room.resize(ROOM, ProcessInfo::default());
        }
        loop {
            let mut count = c_uint::try_from(room.len()).unwrap_or(0);
            let called = self.list(device, kind, &mut count, room);
            let found = usize::try_from(count).unwrap_or(usize::MAX);
            if called == Ok(ffi::INSUFFICIENT_SIZE) && room.len() < ROOM_MAX {
                // Leave headroom for processes that start before the retry.
                room.resize(
                    (found + ROOM).max(room.len() * 2).min(ROOM_MAX),
                    ProcessInfo::default(),
                );
                continue;
            }
            if called == Ok(ffi::SUCCESS) {
                let gpu = &self.gpu.identity.uuid;
                into.extend(room.iter().take(found).map(|info| GpuProcess {
                    gpu: gpu.clone(),
                    pid: info.pid,
                    kind,
                    used_bytes: match info.used_memory {
                        ffi::NOT_AVAILABLE => Reading::Absent,
                        bytes => Reading::Value(bytes),
                    },
                    gpu_instance: Some(info.gpu_instance).filter(|it| *it != c_uint::MAX),
                }));
            }
            return called;
        }
    }

    fn list(
        &mut self,
        device: Device,
        kind: ProcessKind,
        count: &mut c_uint,
        room: &mut [ProcessInfo],
    ) -> Called {
        type List = ffi::DeviceProcesses;
        let (count, room) = (std::ptr::from_mut(count), room.as_mut_ptr());
        match kind {
            ProcessKind::Compute => {
                call!(
                    self.caller,
                    List,
                    "nvmlDeviceGetComputeRunningProcesses_v3",
                    device,
                    count,
                    room
                )
            }
            ProcessKind::Graphics => {
                call!(
                    self.caller,
                    List,
                    "nvmlDeviceGetGraphicsRunningProcesses_v3",
                    device,
                    count,
                    room
                )
            }
            ProcessKind::Mps => call!(
                self.caller,
                List,
                "nvmlDeviceGetMPSComputeRunningProcesses_v3",
                device,
                count,
                room
            ),
        }
    }
}
