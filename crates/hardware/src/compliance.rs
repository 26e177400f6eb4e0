//! TPM, encrypted volumes, and the signature policy for container images.

use std::collections::BTreeSet;

use farrier_facts::node::{ComplianceObservation, DataVolume, ImagePolicy, ReadError, Reading};
use serde::Deserialize;

use crate::host::mounts;
use crate::root::{Root, read_text};
use crate::secure_boot;

const TPM: &str = "/sys/class/tpm";

/// Mount points that the node boots from. On a node that starts unattended, they are often not
/// encrypted.
const BOOT_MOUNTS: [&str; 3] = ["/", "/boot", "/boot/efi"];

/// Maximum device-mapper layers below a file system. The usual maximum is three: LVM on LUKS on
/// RAID.
const LAYERS_MAX: u32 = 8;

pub fn read(root: &Root) -> ComplianceObservation {
    ComplianceObservation {
        tpm_version: tpm_version(root),
        volumes: volumes(root),
        image_policy: image_policy(root),
    }
}

/// Whether Secure Boot is on. Absent if the machine did not boot with EFI.
pub fn secure_boot(root: &Root) -> Reading<bool> {
    secure_boot::read(root).enabled
}

fn tpm_version(root: &Root) -> Reading<u32> {
    if root.exists("/sys/class") == Reading::Value(false) {
        return Reading::Unreadable(ReadError::unavailable("/sys is not mounted below this root"));
    }
    root.list(TPM).and_then(|names| match names.iter().find(|name| name.starts_with("tpm")) {
        None => Reading::Absent,
        Some(name) => root
            .trimmed(&format!("{TPM}/{name}/tpm_version_major"))
            .and_then(|text| text.parse().map_or(Reading::Absent, Reading::Value)),
    })
}

fn volumes(root: &Root) -> Reading<Vec<DataVolume>> {
    mounts::disk_mounts(root).map(|mounts| {
        let mut devices = BTreeSet::new();
        let mut volumes = Vec::new();
        for mount in mounts {
            let is_new = devices.insert(mount.device.clone());
            if is_new && !BOOT_MOUNTS.contains(&mount.path.as_str()) {
                let folder = format!("/sys/dev/block/{}", mount.device);
                let encrypted = encrypted(root, &folder, LAYERS_MAX);
                volumes.push(DataVolume { path: mount.path, encrypted });
            }
        }
        volumes
    })
}

/// Whether this block device, or one below it, is a LUKS mapping. The kernel gives such a mapping a
/// UUID that starts with `CRYPT-LUKS` (cryptsetup).
fn encrypted(root: &Root, folder: &str, layers: u32) -> Reading<bool> {
    match root.trimmed(&format!("{folder}/dm/uuid")) {
        Reading::Value(uuid) if uuid.starts_with("CRYPT-LUKS") => return Reading::Value(true),
        Reading::Value(_) | Reading::Absent => {}
        Reading::Unreadable(why) => return Reading::Unreadable(why),
    }
    let below = match root.list(&format!("{folder}/slaves")) {
        Reading::Value(below) if layers > 0 => below,
        Reading::Value(_) | Reading::Absent => return Reading::Value(false),
        Reading::Unreadable(why) => return Reading::Unreadable(why),
    };
    // All parts must be encrypted.
    for name in &below {
        match encrypted(root, &format!("/sys/class/block/{name}"), layers - 1) {
            Reading::Value(true) => {}
            other => return other,
        }
    }
    Reading::Value(!below.is_empty())
}

#[derive(Deserialize)]
struct PolicyFile {
    default: Vec<PolicyRequirement>,
}

#[derive(Deserialize)]
struct PolicyRequirement {
    #[serde(rename = "type")]
    kind: String,
}

fn image_policy(root: &Root) -> Reading<ImagePolicy> {
    let path = "/etc/containers/policy.json";
    root.extract(path, |file| read_text(file).and_then(|text| default_policy(&text)))
}

fn default_policy(text: &str) -> Reading<ImagePolicy> {
    let Ok(policy) = serde_json::from_str::<PolicyFile>(text) else {
        return Reading::Unreadable(ReadError::malformed("not an image policy"));
    };
    let kinds: Vec<&str> = policy.default.iter().map(|each| each.kind.as_str()).collect();
    // All requirements must hold, so the strictest one decides.
    Reading::Value(if kinds.contains(&"reject") {
        ImagePolicy::Reject
    } else if kinds.contains(&"signedBy") || kinds.contains(&"sigstoreSigned") {
        ImagePolicy::Signed
    } else if kinds == ["insecureAcceptAnything"] {
        ImagePolicy::AcceptAnything
    } else {
        ImagePolicy::Other
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strictest_default_requirement_decides() {
        for (text, expected) in [
            (r#"{"default": [{"type": "insecureAcceptAnything"}]}"#, ImagePolicy::AcceptAnything),
            (r#"{"default": [{"type": "reject"}], "transports": {}}"#, ImagePolicy::Reject),
            (r#"{"default": [{"type": "sigstoreSigned", "keyPath": "/k"}]}"#, ImagePolicy::Signed),
            (r#"{"default": []}"#, ImagePolicy::Other),
        ] {
            assert_eq!(default_policy(text), Reading::Value(expected), "{text}");
        }
        assert!(matches!(default_policy("{}"), Reading::Unreadable(_)));
    }

    #[test]
    fn luks_is_found_below_lvm() {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("sys/dev/block/253:1/dm/uuid", "LVM-abc\n");
        write("sys/dev/block/253:1/slaves/dm-0", "");
        write("sys/class/block/dm-0/dm/uuid", "CRYPT-LUKS2-0f3c-data\n");
        write("sys/dev/block/259:5/size", "1\n");
        let line = |number: u32, device: &str, path: &str| {
            format!("{number} 1 {device} / {path} rw - ext4 /dev/x{number} rw\n")
        };
        let mounts = [line(1, "259:2", "/"), line(2, "253:1", "/data"), line(3, "259:5", "/plain")];
        write("proc/1/mountinfo", &mounts.concat());
        let volumes = read(&Root::unrecorded(dir.path())).volumes;
        let volume = |path: &str, encrypted: bool| DataVolume {
            path: path.to_owned(),
            encrypted: Reading::Value(encrypted),
        };
        assert_eq!(volumes, Reading::Value(vec![volume("/data", true), volume("/plain", false)]));
    }
}
