//! What a failed rpm says. It runs with `LC_ALL=C`.

use farrier_fleet::change::ActionFailure;

use super::super::programs::ProgramOutput;
use super::rehearsal::broken_dependency;

/// A script of a shell, and one of rpm's own Lua interpreter.
const SCRIPT_FAILED: [&str; 2] = ["scriptlet failed", "lua script failed"];

/// Whether a script failed. rpm's exit code does not say so after the package was installed.
pub(super) fn has_failed_script(stderr: &str) -> bool {
    SCRIPT_FAILED.iter().any(|text| stderr.contains(text))
}

pub(super) fn failure(output: &ProgramOutput) -> ActionFailure {
    let lines = || output.stderr.lines().map(str::trim);
    let find = |texts: &[&str]| {
        lines().find(|line| texts.iter().any(|text| line.contains(text))).map(str::to_owned)
    };
    if let Some(detail) = find(&["can't create transaction lock"]) {
        return ActionFailure::PackageLock { detail };
    }
    if let Some(line) = find(&["No space left on device", "more space on the", "needed on the"]) {
        // `installing package X needs 12MB more space on the /usr filesystem`
        let path = line.split_once(" on the ").and_then(|(_, rest)| rest.split(' ').next());
        return ActionFailure::DiskFull { path: path.unwrap_or("/").to_owned() };
    }
    if let Some(line) = find(&["igest mismatch", "igest: BAD", "does not verify"]) {
        return ActionFailure::Tampered { file: line };
    }
    let broken: Vec<String> = lines().filter_map(broken_dependency).collect();
    if !broken.is_empty() {
        return ActionFailure::DirtyTransaction { packages: broken };
    }
    let unsatisfied =
        ["is needed by", "conflicts with", "is obsoleted by", "different architecture"];
    if let Some(detail) = find(&unsatisfied) {
        return ActionFailure::Unsatisfiable { detail };
    }
    let detail = find(&SCRIPT_FAILED).or_else(|| find(&["error:"]));
    let detail = detail.unwrap_or_else(|| output.message());
    ActionFailure::PackageManager { detail }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use super::*;

    fn said(stderr: &str) -> ActionFailure {
        let status = ExitStatus::from_raw(1 << 8);
        failure(&ProgramOutput { status, stdout: String::new(), stderr: stderr.to_owned() })
    }

    #[test]
    fn failed_scripts_are_found() {
        // Printed by rpm 4.18.0, which ended with 0.
        assert!(has_failed_script(
            "warning: %post(a-1-1.x86_64) scriptlet failed, exit status 1\n"
        ));
        assert!(has_failed_script(
            "error: lua script failed: [string \"%post(luapost-1-1.x86_64)\"]:1: no\n"
        ));
        assert!(!has_failed_script("warning: /etc/a.conf saved as /etc/a.conf.rpmsave\n"));
    }

    #[test]
    fn texts_of_rpm_become_failures() {
        // Printed by rpm 4.18.0.
        assert!(matches!(
            said(
                "error: can't create transaction lock on /var/lib/rpm/.rpm.lock (Resource temporarily unavailable)\n"
            ),
            ActionFailure::PackageLock { .. }
        ));
        assert_eq!(
            said(
                "error: Failed dependencies:\n\tlib = 3:580 is needed by (installed) drv-580-1.el9.x86_64\n"
            ),
            ActionFailure::DirtyTransaction {
                packages: vec!["drv-580-1.el9.x86_64 (needs lib = 3:580)".to_owned()]
            }
        );
        assert_eq!(
            said("error: Failed dependencies:\n\tdrv-535 conflicts with drv-580-1.el9.x86_64\n"),
            ActionFailure::Unsatisfiable {
                detail: "drv-535 conflicts with drv-580-1.el9.x86_64".to_owned()
            }
        );
        assert_eq!(
            said(
                "\tinstalling package big-1-1.x86_64 needs 12MB more space on the /usr filesystem\n"
            ),
            ActionFailure::DiskFull { path: "/usr".to_owned() }
        );
        assert_eq!(
            said("warning: %post(pers-580-1.el9.x86_64) scriptlet failed, exit status 1\n"),
            ActionFailure::PackageManager {
                detail: "warning: %post(pers-580-1.el9.x86_64) scriptlet failed, exit status 1"
                    .to_owned()
            }
        );
    }
}
