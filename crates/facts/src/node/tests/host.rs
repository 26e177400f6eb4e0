//! Disks, clock, IOMMU, `GPUDirect` RDMA, IMEX, ACS and the container runtime.

use super::Verdict::{Blocked, Caveat, Ok as Fine, Unknown};
use super::*;

pub(super) fn healthy() -> HostObservation {
    let disk = |path: &str| DiskUsage {
        path: path.to_owned(),
        total_bytes: 1 << 40,
        available_bytes: 1 << 39,
        total_inodes: 1 << 20,
        available_inodes: 1 << 19,
        read_only: false,
    };
    let domain = |index: u32| IommuDomain {
        address: format!("0000:{index:02x}:00.0"),
        kind: "identity".to_owned(),
    };
    HostObservation {
        virtual_machine: Reading::Value(false),
        disks: Reading::Value(vec![disk("/"), disk("/scratch")]),
        clock_synchronised: Reading::Value(true),
        rdma_devices: Reading::Value(8),
        peermem_loaded: Reading::Value(true),
        kernel_dma_buf: Reading::Value(true),
        iommu: Reading::Value((0..8).map(domain).collect()),
        imex_nodes: Reading::Absent,
    }
}

pub(super) fn compliant() -> ComplianceObservation {
    let encrypted = Reading::Value(true);
    ComplianceObservation {
        tpm_version: Reading::Value(2),
        volumes: Reading::Value(vec![DataVolume { path: "/scratch".to_owned(), encrypted }]),
        image_policy: Reading::Value(ImagePolicy::Signed),
    }
}

#[test]
fn compliance_is_stated_and_changes_no_verdict() {
    check_all(&[
        ("tpm-absent", Fine, |s| s.compliance.tpm_version = Reading::Absent),
        ("volumes-plain", Fine, |s| {
            let Reading::Value(volumes) = &mut s.compliance.volumes else { panic!() };
            volumes[0].encrypted = Reading::Value(false);
        }),
        ("image-policy", Fine, |s| s.compliance.image_policy = Reading::Absent),
    ]);
    let mut node = super::healthy();
    node.compliance =
        ComplianceObservation { tpm_version: denied(), volumes: denied(), image_policy: denied() };
    let report = evaluated(&node);
    assert_eq!(report.verdict, Fine);
    for what in ["TPM", "encryption", "image policy"] {
        assert!(report.not_judged.iter().any(|text| text.contains(what)), "{what}");
    }
}

fn disk(node: &mut NodeObservation) -> &mut DiskUsage {
    let Reading::Value(disks) = &mut node.host.disks else { panic!() };
    &mut disks[1]
}

fn translate(node: &mut NodeObservation) {
    let Reading::Value(domains) = &mut node.host.iommu else { panic!() };
    domains[3].kind = "DMA-FQ".to_owned();
}

fn bridges(node: &mut NodeObservation) {
    let bridges = vec!["0000:16:00.0".to_owned()];
    node.now.as_mut().unwrap().acs_bridges = Reading::Value(bridges);
}

/// A node of an NVL72 rack, with IMEX enabled.
fn rack(node: &mut NodeObservation) {
    blackwell(node, "NVIDIA GB200", 0x2941);
    node.services.insert("nvidia-imex".to_owned(), service());
    node.host.imex_nodes = Reading::Value(true);
}

#[test]
fn host() {
    check_all(&[
        ("disk-full", Blocked, |s| disk(s).available_bytes = 1 << 30),
        ("disk-full", Blocked, |s| disk(s).available_inodes = 0),
        ("disk-nearly-full", Caveat, |s| disk(s).available_bytes = 40 << 30),
        ("disks-free", Fine, |s| {
            disk(s).total_bytes = 1 << 50;
            disk(s).available_bytes = 40 << 40;
        }),
        ("file-system-read-only", Blocked, |s| disk(s).read_only = true),
        ("disks-unknown", Unknown, |s| s.host.disks = denied()),
        ("clock-unsynchronised", Caveat, |s| s.host.clock_synchronised = Reading::Value(false)),
        ("clock-unknown", Unknown, |s| s.host.clock_synchronised = denied()),
        ("iommu-translates", Caveat, translate),
        ("iommu-unknown", Unknown, |s| s.host.iommu = denied()),
        ("gpudirect-rdma", Fine, |s| s.host.peermem_loaded = Reading::Value(false)),
        ("gpudirect-rdma-missing", Caveat, |s| {
            s.host.peermem_loaded = Reading::Value(false);
            s.host.kernel_dma_buf = Reading::Value(false);
        }),
        ("gpudirect-rdma-missing", Caveat, |s| {
            s.host.peermem_loaded = Reading::Value(false);
            s.kernels.running = text("5.4.0-200-generic");
        }),
        ("gpudirect-rdma-unknown", Unknown, |s| {
            s.host.peermem_loaded = denied();
            s.host.kernel_dma_buf = Reading::Value(false);
        }),
        ("acs-on", Caveat, bridges),
        ("acs-unknown", Unknown, |s| s.now.as_mut().unwrap().acs_bridges = denied()),
        ("container-runtime-unconfigured", Caveat, |s| {
            s.containers.cdi = Reading::Value(Vec::new());
            s.containers.configured = Reading::Value(false);
        }),
        ("container-runtime-configured", Fine, |s| s.containers.cdi = Reading::Value(Vec::new())),
        ("container-runtime-unread", Unknown, |s| {
            s.containers.cdi = Reading::Value(Vec::new());
            s.containers.configured = denied();
        }),
        ("imex-not-running", Blocked, |s| {
            rack(s);
            s.services.get_mut("nvidia-imex").unwrap().running = Reading::Value(false);
        }),
        ("imex-nodes-missing", Blocked, |s| {
            rack(s);
            s.host.imex_nodes = Reading::Absent;
        }),
    ]);
}

/// An item that must not be reported after this change.
type QuietCase = (&'static str, fn(&mut NodeObservation));

#[test]
fn host_settings_are_judged_only_where_they_matter() {
    let cases: [QuietCase; 5] = [
        ("iommu-translates", |s| {
            translate(s);
            s.host.virtual_machine = Reading::Value(true);
        }),
        ("iommu-translates", |s| {
            translate(s);
            s.host.rdma_devices = Reading::Value(0);
        }),
        ("acs-on", |s| {
            bridges(s);
            s.host.virtual_machine = Reading::Value(true);
        }),
        ("gpudirect-rdma-missing", |s| {
            s.host.rdma_devices = Reading::Value(0);
            s.host.peermem_loaded = Reading::Value(false);
            s.host.kernel_dma_buf = Reading::Value(false);
        }),
        // Kubernetes runs IMEX in pods.
        ("imex-not-running", |s| {
            rack(s);
            let imex = s.services.get_mut("nvidia-imex").unwrap();
            (imex.running, imex.enabled) = (Reading::Value(false), Reading::Value(false));
        }),
    ];
    for (code, change) in cases {
        let mut node = super::healthy();
        change(&mut node);
        let report = evaluated(&node);
        assert!(report.items.iter().all(|item| item.code != code), "{code}");
    }
}
