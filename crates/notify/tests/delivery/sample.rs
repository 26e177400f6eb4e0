//! Notifications and files for tests.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use farrier_fleet::health::Severity;
use farrier_fleet::notify::{
    AffectedNode, Notification, NotificationKind, NotificationStatus, SecretFile,
};
use jiff::{SignedDuration, Timestamp};

/// A firing notification about one GPU. It started a minute ago.
pub(crate) fn notification() -> Notification {
    let at = Timestamp::from_second(Timestamp::now().as_second()).unwrap();
    Notification {
        key: "gpu-7/gpu.xid/1".to_owned(),
        group: "gpu-7/gpu.xid".to_owned(),
        status: NotificationStatus::Firing,
        severity: Severity::Fatal,
        kind: NotificationKind::Finding,
        code: "gpu.xid".to_owned(),
        cause: "Xid 79: the GPU is not reachable over PCIe".to_owned(),
        nodes: vec![node("gpu-7", Some("GPU 3"))],
        nodes_total: 1,
        action_taken: Some("cordoned; drain ordered".to_owned()),
        action_needed: Some("power-cycle the node".to_owned()),
        runbook_url: Some("https://runbooks.example/xid.79".to_owned()),
        started: at - SignedDuration::from_secs(60),
        at,
    }
}

pub(crate) fn resolved() -> Notification {
    Notification {
        key: "gpu-7/gpu.xid/2".to_owned(),
        status: NotificationStatus::Resolved,
        ..notification()
    }
}

pub(crate) fn node(name: &str, part: Option<&str>) -> AffectedNode {
    AffectedNode {
        node: name.parse().unwrap(),
        pool: Some("train".parse().unwrap()),
        site: None,
        tenant: None,
        part: part.map(str::to_owned),
    }
}

/// Writes a file that only its owner can read.
pub(crate) fn secret(folder: &Path, name: &str, text: &str) -> SecretFile {
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    SecretFile(path)
}

/// Reports that a test cannot run here. With `CI=true`, the test fails.
pub(crate) fn skipped(why: &str) {
    let on_ci = std::env::var("CI").is_ok_and(|value| value == "true");
    assert!(!on_ci, "{why}");
    eprintln!("SKIPPED: {why}");
}

/// The files of a self-signed certificate for `localhost` and `127.0.0.1`.
pub(crate) struct Certificate {
    pub(crate) pem: PathBuf,
    pub(crate) key: PathBuf,
    pub(crate) der: Vec<u8>,
    pub(crate) key_der: Vec<u8>,
}

impl Certificate {
    pub(crate) fn write(folder: &Path) -> Self {
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let certified = rcgen::generate_simple_self_signed(names).unwrap();
        let der = certified.cert.der().to_vec();
        let key_der = certified.signing_key.serialize_der();
        let (pem, key) = (folder.join("tls.pem"), folder.join("tls.key"));
        let encode = farrier_wire::pem::write;
        fs::write(&pem, encode(farrier_wire::pem::CERTIFICATE, &der)).unwrap();
        fs::write(&key, encode(farrier_wire::pem::PRIVATE_KEY, &key_der)).unwrap();
        Self { pem, key, der, key_der }
    }
}

/// An error with its causes, as a caller logs it.
pub(crate) fn chain(err: &dyn std::error::Error) -> String {
    let mut text = format!("{err} / {err:?}");
    let mut cause = err.source();
    while let Some(err) = cause {
        text.push_str(&format!(": {err}"));
        cause = err.source();
    }
    text
}
