//! The exported functions, one file per subject.

/// Exports functions about a device. The body gets the current state of the GPU.
macro_rules! device_calls {
    ($($name:ident($($argument:ident: $type:ty),* $(,)?) |$gpu:ident| $body:expr;)*) => {$(
        #[unsafe(no_mangle)]
        pub(crate) extern "C" fn $name(handle: crate::abi::DeviceHandle, $($argument: $type),*) -> std::ffi::c_int {
            crate::library::on_device(stringify!($name), handle, |$gpu| $body)
        }
    )*};
}

/// Exports functions about the node. The body gets the session.
macro_rules! node_calls {
    ($($name:ident($($argument:ident: $type:ty),* $(,)?) |$session:ident| $body:expr;)*) => {$(
        #[unsafe(no_mangle)]
        pub(crate) extern "C" fn $name($($argument: $type),*) -> std::ffi::c_int {
            crate::library::on_node(stringify!($name), |$session| $body)
        }
    )*};
}

mod board;
mod clocks;
mod events;
mod fields;
mod gpm;
mod handles;
mod links;
mod memory;
mod mig;
mod power;
mod processes;
mod settings;
mod system;
mod unsupported;
mod utilisation;

#[cfg(test)]
pub(crate) use {
    board::{nvmlDeviceGetName, nvmlDeviceGetUUID},
    clocks::nvmlDeviceGetSupportedGraphicsClocks,
    events::{nvmlDeviceRegisterEvents, nvmlEventSetCreate, nvmlEventSetFree, nvmlEventSetWait_v2},
    fields::nvmlDeviceGetFieldValues,
    handles::{nvmlDeviceGetCount_v2, nvmlDeviceGetHandleByIndex_v2, nvmlDeviceGetHandleByUUID},
    links::nvmlDeviceGetNvLinkState,
    memory::{nvmlDeviceGetMemoryInfo, nvmlDeviceGetTotalEccErrors},
    power::{nvmlDeviceGetPowerManagementLimit, nvmlDeviceGetTemperature},
    processes::nvmlDeviceGetComputeRunningProcesses_v3,
    settings::nvmlDeviceSetPowerManagementLimit,
    system::nvmlSystemGetDriverVersion,
    utilisation::nvmlDeviceGetUtilizationRates,
};
