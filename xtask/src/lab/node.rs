//! Farrier in the guest: the binary, the bundles of its drivers, and its changes.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::Value;

use super::archive::{DriverVersion, Repository};
use super::cache::lab_folder;
use super::machine::{Job, Machine};
use super::stand_in::Flavour;
use crate::shell::{cargo, command, root, run};

const RESUME_UNIT: &str = "farrier-change-resume.service";
/// A change builds modules and an initramfs under software emulation.
const CHANGE_DEADLINE: Duration = Duration::from_secs(3600);

/// Builds `farrier` for the guest, without debug information.
pub(crate) fn build() -> anyhow::Result<PathBuf> {
    cargo(&["build", "--package", "farrier", "--locked"])?;
    let folder = lab_folder().join("bin");
    fs::create_dir_all(&folder)?;
    let binary = folder.join("farrier");
    let mut strip = command("strip");
    strip.arg("-o").arg(&binary).arg(root().join("target/debug/farrier"));
    run(&mut strip, "strip")?;
    Ok(binary)
}

/// Installs Farrier as docs/change.md says.
pub(crate) fn install(machine: &mut Machine) -> anyhow::Result<()> {
    machine.copy_in(&build()?, "/usr/bin/farrier")?;
    let unit = root().join("deploy/systemd").join(RESUME_UNIT);
    machine.copy_in(&unit, &format!("/etc/systemd/system/{RESUME_UNIT}"))?;
    machine.script(&format!("systemctl --quiet enable {RESUME_UNIT}"))?;
    Ok(())
}

/// Loads the driver at each boot, as udev does for a real GPU.
pub(crate) fn load_driver_at_boot(machine: &mut Machine) -> anyhow::Result<()> {
    machine.script(
        "cat >/etc/systemd/system/lab-driver.service <<'UNIT'\n\
         [Unit]\n\
         Before=farrier-change-resume.service\n\
         [Service]\n\
         Type=oneshot\n\
         ExecStart=-/sbin/modprobe nvidia\n\
         ExecStart=-/sbin/modprobe nvidia-uvm\n\
         [Install]\n\
         WantedBy=multi-user.target\n\
         UNIT\n\
         systemctl --quiet enable lab-driver.service",
    )?;
    Ok(())
}

/// Creates a bundle from a repository of the archive, and returns its identity.
pub(crate) fn create_bundle(
    machine: &mut Machine,
    repository: Repository,
    version: &DriverVersion,
    flavour: Flavour,
) -> anyhow::Result<String> {
    let suite = repository.suite.name();
    let packages = repository.driver_packages(flavour).join(" --package ");
    machine.script(&format!(
        "farrier bundle create --platform debian/12/amd64 --driver {} \
         --apt 'file:///srv/archive/{suite} ./' --package {packages} --output json \
         >/run/bundle.json",
        version.upstream(),
    ))?;
    let listed = machine.script("ls -t /var/lib/farrier/bundles/bundles | head -1")?;
    listed.strip_suffix(".json").map(str::to_owned).context("a bundle in the store")
}

/// Starts a change to a bundle.
pub(crate) fn start_change(
    machine: &mut Machine,
    bundle: &str,
    options: &[&str],
) -> anyhow::Result<Job> {
    let argv = [&["farrier", "change", "apply", bundle, "--yes"], options].concat();
    machine.start(&argv)
}

/// How many changes the node has had.
pub(crate) fn count_changes(machine: &mut Machine) -> anyhow::Result<usize> {
    let text = machine.succeed(&["farrier", "change", "history", "--output", "json"])?;
    let report: Value = serde_json::from_str(&text)?;
    report["changes"].as_array().map(Vec::len).context("the changes")
}

/// State of the last change. `None` if it has not ended.
fn end_of_change(machine: &mut Machine) -> anyhow::Result<Option<String>> {
    let text = machine.succeed(&["farrier", "change", "status", "--output", "json"])?;
    let report: Value = serde_json::from_str(&text)?;
    let change = &report["change"];
    let is_closed = change["state"] == "quarantined"
        || machine.run(&["systemctl", "is-active", "--quiet", RESUME_UNIT])?.code != Some(0);
    Ok(change["state"].as_str().filter(|_| is_closed).map(str::to_owned))
}

/// Waits until the change that was started, or continued after a boot, has ended. Returns its
/// state.
pub(crate) fn wait_for_end(machine: &mut Machine) -> anyhow::Result<String> {
    let deadline = Instant::now() + CHANGE_DEADLINE;
    loop {
        if let Some(state) = end_of_change(machine)? {
            return Ok(state);
        }
        if Instant::now() > deadline {
            let status = machine.run(&["farrier", "change", "status"])?;
            bail!("the change did not end:\n{}", status.all());
        }
        std::thread::sleep(Duration::from_secs(2));
    }
}
