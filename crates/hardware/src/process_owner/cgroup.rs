//! Derives the owner of a process from its cgroup path.
//!
//! ```text
//! 0::/system.slice/slurmstepd.scope/job_42/step_0/user/task_0              Slurm, cgroup v2
//! 9:memory:/slurm/uid_1000/job_42/step_batch/task_0                        Slurm, cgroup v1
//! 0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podUID.slice/
//!     cri-containerd-ID.scope                                              pod
//! 0::/system.slice/docker-ID.scope, /machine.slice/libpod-ID.scope         container
//! 0::/system.slice/ollama.service                                          unit
//! 0::/user.slice/user-1000.slice/session-3.scope                           unit
//! ```

use super::OwnerKind;

/// Digits of a container id, which is a SHA-256 in hexadecimal. Inside a pod, shorter ids are
/// accepted.
const CONTAINER_DIGITS: usize = 64;
const CONTAINER_DIGITS_MIN: usize = 12;

/// The owner from the lines of `/proc/PID/cgroup`, and the path that shows it. With cgroup v1 the
/// hierarchies may differ. Then a scheduler takes precedence over a container, and a container over
/// systemd.
pub(super) fn owner_from_cgroup(text: &str) -> (OwnerKind, Option<String>) {
    let paths = text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    let owner =
        paths.map(|path| (owner_from_path(path), path)).min_by_key(|(kind, _)| precedence(kind));
    match owner {
        Some((kind, path)) => (kind, Some(path.to_owned())),
        None => (unknown("the process is in no cgroup"), None),
    }
}

fn unknown(why: &str) -> OwnerKind {
    OwnerKind::Unknown { why: why.to_owned() }
}

fn precedence(kind: &OwnerKind) -> u8 {
    match kind {
        OwnerKind::SlurmJob { .. } => 0,
        OwnerKind::Pod { .. } => 1,
        OwnerKind::Container { .. } => 2,
        OwnerKind::Unit { .. } => 3,
        OwnerKind::Unknown { .. } => 4,
    }
}

fn owner_from_path(path: &str) -> OwnerKind {
    // Without the systemd cgroup driver, containerd uses colons:
    // `kubepods-podUID.slice:cri-containerd:ID`.
    let parts: Vec<&str> = path.split(['/', ':']).filter(|part| !part.is_empty()).collect();
    slurm(&parts)
        .or_else(|| pod(&parts))
        .or_else(|| container(&parts))
        .or_else(|| unit(&parts))
        .unwrap_or_else(|| unknown("its cgroup belongs to no job, container or unit"))
}

fn slurm(parts: &[&str]) -> Option<OwnerKind> {
    // `slurm` or `slurm_NODE`; `slurmstepd.scope` or `NODE_slurmstepd.scope`.
    let own = |part: &&str| part.starts_with("slurm") || part.ends_with("slurmstepd.scope");
    let below = &parts[parts.iter().position(own)? + 1..];
    let id = below.iter().find_map(|part| part.strip_prefix("job_")?.parse().ok())?;
    let step = below.iter().find_map(|part| part.strip_prefix("step_")).map(str::to_owned);
    Some(OwnerKind::SlurmJob { id, step })
}

fn pod(parts: &[&str]) -> Option<OwnerKind> {
    let (place, uid) =
        parts.iter().enumerate().rev().find_map(|(place, part)| Some((place, pod_uid(part)?)))?;
    // If the path has colons, the name of the runtime comes between pod and container.
    let mut below = parts.iter().skip(place + 1).take(2);
    let container = below.find_map(|part| container_id(part, CONTAINER_DIGITS_MIN));
    Some(OwnerKind::Pod { uid, container })
}

/// The UID in `podUID` or `kubepods-burstable-podUID.slice`, where systemd writes `_` for `-`. The
/// UID of a static pod is a plain hash.
fn pod_uid(part: &str) -> Option<String> {
    let part = part.strip_suffix(".slice").unwrap_or(part);
    let (_, uid) = part.rsplit_once("pod")?;
    let uid = uid.replace('_', "-").to_ascii_lowercase();
    let hash = uid.len() == 32 && is_hex(&uid);
    let lengths: Vec<usize> = uid.split('-').map(str::len).collect();
    let proper = lengths == [8, 4, 4, 4, 12] && uid.split('-').all(is_hex);
    (hash || proper).then_some(uid)
}

fn container(parts: &[&str]) -> Option<OwnerKind> {
    let id = parts.iter().rev().find_map(|part| container_id(part, CONTAINER_DIGITS))?;
    Some(OwnerKind::Container { id })
}

/// The ID in `ID`, `cri-containerd-ID.scope`, `crio-ID.scope`, `docker-ID.scope` or
/// `libpod-ID.scope`.
fn container_id(part: &str, digits_min: usize) -> Option<String> {
    let part = part.strip_suffix(".scope").unwrap_or(part);
    let id = part.rsplit('-').next()?;
    ((digits_min..=CONTAINER_DIGITS).contains(&id.len()) && is_hex(id)).then(|| id.to_owned())
}

fn unit(parts: &[&str]) -> Option<OwnerKind> {
    let is_unit = |part: &&&str| matches!(part.rsplit_once('.'), Some((_, "service" | "scope")));
    let name = parts.iter().rev().find(is_unit)?;
    Some(OwnerKind::Unit { name: (*name).to_owned() })
}

fn is_hex(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|digit| digit.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ID: &str = "d6d725b909f37c3e232aadfbafa950a58bfe7baa579ba8c47a12be88bb921607";
    const UID: &str = "8ca306fa-3c03-47fa-97dd-19979c345572";

    fn slurm(id: u64, step: &str) -> OwnerKind {
        OwnerKind::SlurmJob { id, step: Some(step.to_owned()) }
    }

    fn pod(uid: &str, container: Option<&str>) -> OwnerKind {
        OwnerKind::Pod { uid: uid.to_owned(), container: container.map(str::to_owned) }
    }

    fn unit(name: &str) -> OwnerKind {
        OwnerKind::Unit { name: name.to_owned() }
    }

    /// Forms from real nodes. `ID` and `UID` stand for the values above, and `U_ID` for systemd's
    /// spelling of the UID.
    #[test]
    fn real_cgroup_paths_are_parsed() {
        let container = || OwnerKind::Container { id: ID.to_owned() };
        for (line, expected) in [
            (
                "0::/system.slice/slurmstepd.scope/job_1392969/step_0/user/task_0",
                slurm(1_392_969, "0"),
            ),
            (
                "0::/system.slice/gx10-ac12_slurmstepd.scope/job_12/step_batch/user/task_0",
                slurm(12, "batch"),
            ),
            ("0::/system.slice/slurmstepd.scope/job_42/step_extern/user", slurm(42, "extern")),
            (
                "10:devices:/slurm/uid_2101171/job_280678/step_interactive/task_0",
                slurm(280_678, "interactive"),
            ),
            ("9:memory:/slurm_gpu-17/uid_1000/job_5/step_3", slurm(5, "3")),
            ("5:cpuacct:/slurm/uid_1/job_1", OwnerKind::SlurmJob { id: 1, step: None }),
            ("0::/system.slice/slurmstepd.scope/system", unit("slurmstepd.scope")),
            (
                "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podU_ID.slice/cri-containerd-ID.scope",
                pod(UID, Some(ID)),
            ),
            ("0::/kubepods.slice/kubepods-podU_ID.slice/crio-ID.scope", pod(UID, Some(ID))),
            (
                "12:devices:/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podU_ID.slice/crio-ID.scope/container",
                pod(UID, Some(ID)),
            ),
            (
                "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podUID.slice/docker-ID.scope",
                pod(UID, Some(ID)),
            ),
            ("11:pids:/kubepods/burstable/podUID/ID", pod(UID, Some(ID))),
            ("4:cpu,cpuacct:/kubepods/podUID", pod(UID, None)),
            (
                "12:cpu,cpuacct:/system.slice/containerd.service/kubepods-besteffort-podU_ID.slice:cri-containerd:ID",
                pod(UID, Some(ID)),
            ),
            ("0::/../../podUID/ID", pod(UID, Some(ID))),
            (
                "0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-podU_ID.slice/cri-containerd-ID.scope",
                pod(UID, Some(ID)),
            ),
            (
                "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pode4e6004e827fdf45941cf777618f60ce.slice/crio-ID.scope",
                pod("e4e6004e827fdf45941cf777618f60ce", Some(ID)),
            ),
            ("0::/docker/ID", container()),
            ("0::/system.slice/docker-ID.scope", container()),
            ("0::/machine.slice/libpod-ID.scope/container", container()),
            (
                "0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-ID.scope/container",
                container(),
            ),
            ("0::/../cri-containerd-ID.scope", container()),
            ("0::/system.slice/ollama.service", unit("ollama.service")),
            ("0::/user.slice/user-1000.slice/session-3.scope", unit("session-3.scope")),
            (
                "0::/user.slice/user-1000.slice/user@1000.service/app.slice/app-org.kde.konsole-1234.scope",
                unit("app-org.kde.konsole-1234.scope"),
            ),
            ("0::/", unknown("its cgroup belongs to no job, container or unit")),
            ("", unknown("the process is in no cgroup")),
        ] {
            let line = line.replace("U_ID", &UID.replace('-', "_")).replace("UID", UID);
            let line = line.replace("ID", ID);
            assert_eq!(owner_from_cgroup(&line).0, expected, "{line}");
        }
    }

    #[test]
    fn scheduler_hierarchy_takes_precedence() {
        let text = "12:pids:/system.slice/slurmd.service\n\
                    9:memory:/slurm/uid_1000/job_77/step_0/task_0\n\
                    1:name=systemd:/system.slice/slurmd.service\n0::/\n";
        let (kind, path) = owner_from_cgroup(text);
        assert_eq!(kind, slurm(77, "0"));
        assert_eq!(path.as_deref(), Some("/slurm/uid_1000/job_77/step_0/task_0"));
    }

    proptest! {
        #[test]
        fn no_input_panics(text in "\\PC{0,120}") {
            owner_from_cgroup(&text);
        }
    }
}
