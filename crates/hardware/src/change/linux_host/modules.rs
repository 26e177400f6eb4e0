//! Loads and unloads the driver's modules.

use std::fs;
use std::path::Path;
use std::time::Duration;

use farrier_facts::node::Reading;
use farrier_fleet::change::{ActionFailure, LoadFailure, SavedNode};

use super::super::programs::{ProgramError, Programs, io_failure};
use crate::driver::where_mounted;
use crate::root::Root;

/// Modules in the order in which they are removed: a module comes before those that it uses.
const MODULES: [&str; 9] = [
    "nvidia_drm",
    "nvidia_modeset",
    "nvidia_uvm",
    "nvidia_peermem",
    "nvidia_fs",
    "gdrdrv",
    "nvidia_cspmu",
    "nvidia_vgpu_vfio",
    "nvidia",
];
/// Modules that are loaded in any case.
const REQUIRED: [&str; 2] = ["nvidia", "nvidia_uvm"];
/// Key of the loaded modules in [`SavedNode::settings`].
pub(super) const KEY: &str = "modules";
/// `rmmod` waits for nothing, so it ends at once or hangs in the kernel.
const UNLOAD_LIMIT: Duration = Duration::from_secs(30);
/// A node with eight GPUs needs 20 seconds.
const LOAD_LIMIT: Duration = Duration::from_secs(180);

/// Loaded modules of the driver, in the order of removal.
pub(super) fn loaded(root: &Root) -> Reading<Vec<String>> {
    let listed = where_mounted(root, root.list("/sys/module"));
    listed.map(|names| {
        let is_loaded = |name: &&str| names.iter().any(|listed| listed == name);
        MODULES.into_iter().filter(is_loaded).map(str::to_owned).collect()
    })
}

/// Removes all modules. Checks the reference counts of all of them first, so that nothing is
/// removed if one is in use.
pub(super) fn unload(root: &Root, programs: &Programs) -> Result<(), ActionFailure> {
    let unread =
        |why: &str| ActionFailure::Io { path: "/sys/module".to_owned(), detail: why.to_owned() };
    let modules = match loaded(root) {
        Reading::Value(modules) => modules,
        Reading::Absent => Vec::new(),
        Reading::Unreadable(why) => return Err(unread(&why.to_string())),
    };
    for module in &modules {
        let count = root.trimmed(&format!("/sys/module/{module}/refcnt"));
        let count = count.value().and_then(|text| text.parse::<usize>().ok());
        let count = count.ok_or_else(|| unread("a reference count cannot be read"))?;
        let holders = match root.list(&format!("/sys/module/{module}/holders")) {
            Reading::Value(names) => names,
            _ => Vec::new(),
        };
        // A reference of a module that is removed too does not count.
        let ours = holders.iter().filter(|holder| modules.contains(holder)).count();
        if count > ours {
            return Err(ActionFailure::ModuleInUse { module: module.clone() });
        }
    }
    for (position, module) in modules.iter().enumerate() {
        match programs.output("rmmod", &[module], UNLOAD_LIMIT) {
            Ok(_) => {}
            Err(ProgramError::Failed { .. }) if position == 0 => {
                return Err(ActionFailure::ModuleInUse { module: module.clone() });
            }
            Err(ProgramError::Failed { .. }) => {
                return Err(ActionFailure::PartialUnload { module: module.clone() });
            }
            Err(err) => return Err(err.into_failure()),
        }
    }
    Ok(())
}

/// Loads the modules that were loaded before the change, and those that every node needs.
pub(super) fn load(programs: &Programs, saved: Option<&SavedNode>) -> Result<(), ActionFailure> {
    let before = saved.and_then(|saved| saved.settings.get(KEY));
    let before: Vec<&str> = before.map(|text| text.split(' ').collect()).unwrap_or_default();
    let mut modules: Vec<&str> = REQUIRED.to_vec();
    let others = MODULES.iter().rev().filter(|module| before.contains(module));
    modules.extend(others.filter(|module| !REQUIRED.contains(module)));
    for module in modules {
        match programs.output("modprobe", &[module], LOAD_LIMIT) {
            Ok(_) => {}
            Err(ProgramError::Failed { message, .. }) => {
                let kind = kind(&message);
                return Err(ActionFailure::Load { kind, detail: message });
            }
            Err(err) => return Err(err.into_failure()),
        }
    }
    create_device_files(programs)
}

/// What modprobe says. It runs with `LC_ALL=C`.
fn kind(message: &str) -> LoadFailure {
    let has = |text: &str| message.contains(text);
    if has("Key was rejected") || has("Required key not available") {
        LoadFailure::KeyRejected
    } else if has("No such device") {
        LoadFailure::NoDevice
    } else if has("Exec format error") || has("Invalid module format") || has("version magic") {
        LoadFailure::WrongKernel
    } else if has("Input/output error") {
        LoadFailure::InitFailed
    } else {
        LoadFailure::Other
    }
}

/// Creates the device files, which a program without privileges cannot do.
fn create_device_files(programs: &Programs) -> Result<(), ActionFailure> {
    let path = "/usr/bin/nvidia-modprobe";
    match fs::metadata(programs.path(path)) {
        Ok(_) if Path::new("/proc/driver/nvidia/gpus").exists() => programs
            .output(path, &["-u", "-c0"], LOAD_LIMIT)
            .map(drop)
            .map_err(ProgramError::into_failure),
        Ok(_) => Ok(()),
        Err(err) if err.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(err) => Err(io_failure(path, &err)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_modprobe_are_classified() {
        let line = |text: &str| format!("modprobe: ERROR: could not insert 'nvidia': {text}");
        assert_eq!(kind(&line("Key was rejected by service")), LoadFailure::KeyRejected);
        assert_eq!(kind(&line("No such device")), LoadFailure::NoDevice);
        assert_eq!(kind(&line("Exec format error")), LoadFailure::WrongKernel);
        assert_eq!(kind(&line("Unknown symbol in module")), LoadFailure::Other);
    }
}
