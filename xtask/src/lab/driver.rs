//! Drivers in the guest: which repositories it sees, and how a driver is installed by hand.

use super::archive::{DriverVersion, Repository};
use super::machine::Machine;
use super::stand_in::Flavour;

/// Makes exactly these repositories visible.
pub(crate) fn show(machine: &mut Machine, repositories: &[Repository]) -> anyhow::Result<()> {
    let line = |repository: &Repository| {
        format!("deb [trusted=yes] file:/srv/archive/{} ./\n", repository.suite.name())
    };
    let lines: String = repositories.iter().map(line).collect();
    machine.script(&format!(
        "printf '%s' '{lines}' >/etc/apt/sources.list; apt-get --quiet=2 update"
    ))?;
    Ok(())
}

/// A script that installs all packages of a driver with apt. It names the whole closure: apt goes
/// back to an older version only of packages that it is told about. Packages that were installed as
/// dependencies stay marked as such.
pub(crate) fn install_script(repository: Repository, flavour: Flavour) -> String {
    let suite = repository.suite.name();
    let requested = repository.driver_packages(flavour).join(" ");
    format!(
        "requested=' {requested} '\n\
         closure=$(sed -n 's/^Package: //p' /srv/archive/{suite}/Packages | while read package; do\n\
         case $package in linux-*) continue;; esac\n\
         case $requested in *\" $package \"*) echo $package/{suite}; continue;; esac\n\
         state=$(dpkg-query --show --showformat '${{db:Status-Status}}' $package 2>/dev/null || true)\n\
         if test \"$state\" = installed; then echo $package/{suite}; fi\n\
         done)\n\
         automatic=$(apt-mark showauto)\n\
         export DEBIAN_FRONTEND=noninteractive\n\
         apt-get --quiet --yes --allow-downgrades --no-install-recommends \
         --target-release {suite} install $closure\n\
         apt-mark auto $automatic >/dev/null"
    )
}

/// Loads the modules and makes their device files. On a real node the PCI id of the card does the
/// first, and the driver's own tools do both. Waits for the end of the boot, because
/// nvidia-persistenced opens a device before it gives up.
pub(crate) fn load(machine: &mut Machine) -> anyhow::Result<()> {
    machine.script(
        "systemctl is-system-running --wait >/dev/null || true\n\
         modprobe nvidia; modprobe nvidia-uvm; nvidia-modprobe -c 0 -u\n\
         test -e /dev/nvidia0 || mknod --mode=666 /dev/nvidia0 c 195 0",
    )?;
    Ok(())
}

/// Removes all modules; fails if one is in use.
pub(crate) fn unload(machine: &mut Machine) -> anyhow::Result<()> {
    machine.script(
        "for module in nvidia_drm nvidia_modeset nvidia_uvm nvidia_peermem nvidia; do\n\
         if test -e /sys/module/$module; then rmmod $module; fi\n\
         done",
    )?;
    Ok(())
}

/// The versions that have to agree on a healthy node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DriverState {
    /// `/sys/module/nvidia/version`; `None` if no module is loaded.
    pub(crate) loaded: Option<String>,
    /// `modinfo` of the running kernel's module; `None` if it has none.
    pub(crate) on_disk: Option<String>,
    /// The version in the file name of NVML; `None` if it is not installed.
    pub(crate) library: Option<String>,
}

impl DriverState {
    pub(crate) fn of(version: &DriverVersion) -> Self {
        let upstream = Some(version.upstream().to_owned());
        Self { loaded: upstream.clone(), on_disk: upstream.clone(), library: upstream }
    }

    pub(crate) fn read(machine: &mut Machine) -> anyhow::Result<Self> {
        let mut read = |script: &str| -> anyhow::Result<Option<String>> {
            let text = machine.script(script)?;
            Ok(Some(text).filter(|text| !text.is_empty()))
        };
        Ok(Self {
            loaded: read("if test -e /sys/module/nvidia; then cat /sys/module/nvidia/version; fi")?,
            on_disk: read("modinfo -F version nvidia-current 2>/dev/null || true")?,
            library: read(
                "library=/usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.1\n\
                 if test -e $library; then readlink $library | sed s/.*\\.so\\.//; fi",
            )?,
        })
    }
}
