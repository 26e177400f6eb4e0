//! Writes the files of a node to a temporary folder.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

pub(crate) const DRIVER: &str = "580.95.05";
pub(crate) const KERNEL: &str = "6.8.0-60-generic";

/// A folder with a node's files in `root/` and a recorded NVML capture in `nvml.json`.
pub(crate) struct NodeFiles {
    folder: tempfile::TempDir,
}

impl NodeFiles {
    /// A node without files.
    pub(crate) fn empty() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("root")).unwrap();
        Self { folder }
    }

    /// A healthy node with eight H100 GPUs.
    pub(crate) fn healthy() -> Self {
        let node = Self::empty();
        node.write("sys/module/module/parameters/sig_enforce", "N\n");
        node.write("sys/firmware/acpi/pm_profile", "4\n");
        for index in 0..8 {
            node.pci(&format!("0000:{index}7:00.0"), "0x2330", "0x030200", "nvidia");
        }
        for index in 0..4 {
            node.pci(&format!("0000:8{index}:00.0"), "0x22a3", "0x068000", "nvidia-nvswitch");
            node.write(&format!("proc/driver/nvidia-nvswitch/devices/0000:8{index}:00.0"), "");
        }
        node.driver(DRIVER, true);
        node.libraries(DRIVER);
        node.kernel(KERNEL, Some(DRIVER), false);
        node.write("proc/sys/kernel/osrelease", format!("{KERNEL}\n"));
        node.write("etc/default/grub", "GRUB_DEFAULT=0\nGRUB_CMDLINE_LINUX=\"\"\n");
        node.packages(DRIVER, true);
        node.write(
            "etc/apt/apt.conf.d/20auto-upgrades",
            "APT::Periodic::Update-Package-Lists \"1\";\nAPT::Periodic::Unattended-Upgrade \"1\";\n",
        );
        node.write(
            &format!("var/lib/dkms/nvidia/{DRIVER}/{KERNEL}/x86_64/module/nvidia.ko"),
            "built",
        );
        for service in ["nvidia-persistenced", "nvidia-fabricmanager"] {
            node.service(service, true);
        }
        node.write("usr/bin/containerd", "");
        node.write("usr/bin/nvidia-ctk", "");
        node.write(
            "etc/cdi/nvidia.yaml",
            format!("- hostPath: /usr/lib/x86_64-linux-gnu/libcuda.so.{DRIVER}\n"),
        );
        node.torch("2.11.0", "13.0");
        node.nvml(&nvml(DRIVER, 8));
        node
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.folder.path().join("root")
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Arguments that check this node.
    pub(crate) fn args(&self) -> Vec<String> {
        let text = |path: PathBuf| path.into_os_string().into_string().unwrap();
        let mut args = vec!["--root".to_owned(), text(self.root())];
        args.extend(["--on".to_owned(), "2026-11-15".to_owned()]);
        let nvml = self.path("nvml.json");
        if nvml.exists() {
            args.extend(["--nvml".to_owned(), text(nvml)]);
        }
        args
    }

    pub(crate) fn write(&self, path: &str, text: impl AsRef<[u8]>) {
        let path = self.root().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub(crate) fn link(&self, path: &str, target: &str) {
        let path = self.root().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let _ = fs::remove_file(&path);
        symlink(target, path).unwrap();
    }

    pub(crate) fn remove(&self, path: &str) {
        let path = self.root().join(path);
        if path.is_dir() {
            fs::remove_dir_all(path).unwrap();
        } else {
            fs::remove_file(path).unwrap();
        }
    }

    pub(crate) fn pci(&self, address: &str, device: &str, class: &str, driver: &str) {
        let at = |name: &str| format!("sys/bus/pci/devices/{address}/{name}");
        self.write(&at("vendor"), "0x10de\n");
        self.write(&at("device"), format!("{device}\n"));
        self.write(&at("class"), format!("{class}\n"));
        self.link(&at("driver"), &format!("../../../bus/pci/drivers/{driver}"));
    }

    pub(crate) fn driver(&self, version: &str, open: bool) {
        let line = if open {
            "NVIDIA UNIX Open Kernel Module for x86_64"
        } else {
            "NVIDIA UNIX x86_64 Kernel Module"
        };
        self.write("sys/module/nvidia/version", format!("{version}\n"));
        self.write("sys/module/nvidia_uvm/version", format!("{version}\n"));
        self.write(
            "proc/driver/nvidia/version",
            format!(
                "NVRM version: {line}  {version}  Release Build  (dvs-builder@U22)\nGCC version:\n"
            ),
        );
        self.write(&format!("lib/firmware/nvidia/{version}/gsp_ga10x.bin"), "");
        self.write("proc/driver/nvidia/params", "NvLinkDisable: 0\nCoherentGPUMemoryMode: \"\"\n");
    }

    pub(crate) fn libraries(&self, version: &str) {
        for name in ["libcuda.so", "libnvidia-ml.so"] {
            let folder = "usr/lib/x86_64-linux-gnu";
            self.write(&format!("{folder}/{name}.{version}"), "library");
            self.link(&format!("{folder}/{name}.1"), &format!("{name}.{version}"));
        }
    }

    pub(crate) fn kernel(&self, release: &str, driver: Option<&str>, signed: bool) {
        self.write(&format!("boot/vmlinuz-{release}"), "kernel");
        self.write(&format!("lib/modules/{release}/build/Makefile"), "");
        self.write(&format!("lib/modules/{release}/modules.dep"), "");
        if let Some(driver) = driver {
            self.write(&format!("lib/firmware/nvidia/{driver}/gsp_ga10x.bin"), "");
            for name in ["nvidia", "nvidia-uvm"] {
                let path = format!("lib/modules/{release}/updates/dkms/{name}.ko");
                self.write(&path, module(driver, release, signed));
            }
        }
    }

    pub(crate) fn packages(&self, driver: &str, on_hold: bool) {
        let mut status = String::new();
        let selection = if on_hold { "hold" } else { "install" };
        let mut add = |selection: &str, name: &str, version: &str| {
            status.push_str(&format!(
                "Package: {name}\nStatus: {selection} ok installed\nArchitecture: amd64\nVersion: {version}\n\n"
            ));
        };
        for name in ["nvidia-open", "libnvidia-compute", "nvidia-fabricmanager"] {
            add(selection, name, &format!("{driver}-1"));
        }
        add("install", "nvidia-container-toolkit", "1.19.1-1");
        add(selection, "linux-image-generic", "6.8.0-60.63");
        add("install", "unattended-upgrades", "2.9.1");
        add("install", "bash", "5.2.21-2ubuntu4");
        self.write("var/lib/dpkg/status", status);
    }

    pub(crate) fn service(&self, name: &str, running: bool) {
        let unit = format!("{name}.service");
        self.write(&format!("lib/systemd/system/{unit}"), "[Service]\n");
        self.link(
            &format!("etc/systemd/system/multi-user.target.wants/{unit}"),
            &format!("/lib/systemd/system/{unit}"),
        );
        if running {
            self.write(&format!("sys/fs/cgroup/system.slice/{unit}/cgroup.procs"), "1234\n");
        }
    }

    pub(crate) fn torch(&self, version: &str, cuda: &str) {
        let site = "usr/local/lib/python3.12/dist-packages";
        self.write("usr/bin/python3", "");
        self.write(
            &format!("{site}/torch-{version}.dist-info/METADATA"),
            format!("Metadata-Version: 2.1\nName: torch\nVersion: {version}\n\n"),
        );
        self.write(
            &format!("{site}/torch/version.py"),
            format!("__version__ = '{version}'\ncuda: Optional[str] = '{cuda}'\n"),
        );
    }

    pub(crate) fn nvml(&self, answers: &Value) {
        fs::write(self.path("nvml.json"), serde_json::to_vec_pretty(answers).unwrap()).unwrap();
    }
}

/// An NVML capture of H100s.
pub(crate) fn nvml(driver: &str, count: u32) -> Value {
    let value = |value: Value| json!({ "value": value });
    let devices: Vec<Value> = (0..count)
        .map(|index| {
            json!({
                "index": index,
                "handle": { "value": null },
                "name": value("NVIDIA H100 80GB HBM3".into()),
                "uuid": value(format!("GPU-00000000-0000-0000-0000-00000000000{index}").into()),
                "pci_address": value(format!("00000000:{index}7:00.0").into()),
                "pci_device_id": value(0x2330_10de_u32.into()),
                "vbios": value("96.00.A5.00.01".into()),
                "gsp_firmware": value(driver.into()),
                "compute_mode": value(0.into()),
                "persistence": value(true.into()),
                "ecc": value(json!({ "current": true, "pending": true })),
                "mig": value(json!({ "current": false, "pending": false })),
                "power": value(json!({
                    "limit_mw": 700_000, "default_mw": 700_000, "min_mw": 200_000, "max_mw": 700_000
                })),
                "addressing_mode": value("none".into()),
                "fabric": value(json!({ "state": 3, "status": 0 })),
                "remapped_rows": value(json!({
                    "correctable": 0, "uncorrectable": 0, "pending": false, "failed": false
                })),
                "recovery_action": value(0.into()),
            })
        })
        .collect();
    json!({ "answered": {
        "driver_version": value(driver.into()),
        "library_version": value(format!("13.{driver}").into()),
        "cuda_version": value(13_000.into()),
        "count": value(count.into()),
        "devices": devices,
    }})
}

/// A kernel module: an ELF file with a `.modinfo` section.
pub(crate) fn module(version: &str, kernel: &str, signed: bool) -> Vec<u8> {
    let modinfo = format!(
        "version={version}\0license=Dual MIT/GPL\0vermagic={kernel} SMP preempt mod_unload modversions \0"
    );
    let names = b"\0.modinfo\0.shstrtab\0";
    let mut bytes = vec![0; 0x40];
    bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
    bytes.extend_from_slice(modinfo.as_bytes());
    let names_at = bytes.len();
    bytes.extend_from_slice(names);
    let table = bytes.len() as u64;
    for (name, offset, length) in
        [(0_u32, 0, 0), (1, 0x40, modinfo.len()), (10, names_at, names.len())]
    {
        let mut header = [0_u8; 0x40];
        header[..4].copy_from_slice(&name.to_le_bytes());
        header[0x18..0x20].copy_from_slice(&(offset as u64).to_le_bytes());
        header[0x20..0x28].copy_from_slice(&(length as u64).to_le_bytes());
        bytes.extend_from_slice(&header);
    }
    bytes[0x28..0x30].copy_from_slice(&table.to_le_bytes());
    bytes[0x3a..0x3c].copy_from_slice(&0x40_u16.to_le_bytes());
    bytes[0x3c..0x3e].copy_from_slice(&3_u16.to_le_bytes());
    bytes[0x3e..0x40].copy_from_slice(&2_u16.to_le_bytes());
    if signed {
        bytes.extend_from_slice(b"signature~Module signature appended~\n");
    }
    bytes
}

/// Whether the user can open a file without the permission for it, as root can. Permission tests
/// cannot work then.
pub(crate) fn may_open_everything(probe: &Path) -> bool {
    fs::File::open(probe).is_ok()
}
