//! Debian's Alertmanager.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use farrier_fleet::health::Severity;
use farrier_fleet::notify::{AlertmanagerReceiver, Notification, Receiver};
use farrier_notify::Sender;
use serde_json::Value;

use crate::http_server::{Answer, HttpServer};
use crate::sample::{node, notification, resolved, skipped};

const PROGRAM: &str = "/usr/bin/prometheus-alertmanager";

struct Alertmanager {
    child: Child,
    address: String,
}

impl Drop for Alertmanager {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Alertmanager {
    /// Starts one that sends its notifications to a webhook. `None` if it is not installed.
    fn start(folder: &Path, webhook: &str) -> Option<Self> {
        if !Path::new(PROGRAM).exists() {
            skipped("Alertmanager is not installed; run `apt-get install prometheus-alertmanager`");
            return None;
        }
        let config = folder.join("alertmanager.yml");
        let text = format!(
            "route:\n  receiver: hook\n  group_by: ['farrier_group']\n  group_wait: 10ms\n  group_interval: 1s\n\
             receivers:\n- name: hook\n  webhook_configs:\n  - url: {webhook}\n"
        );
        std::fs::write(&config, text).unwrap();
        let mut child = Command::new(PROGRAM)
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.path={}", folder.join("data").display()))
            .args(["--web.listen-address=127.0.0.1:0", "--cluster.listen-address="])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut log = String::new();
        let address = loop {
            let line =
                lines.next().unwrap_or_else(|| panic!("Alertmanager ended:\n{log}")).unwrap();
            let address = line.split_whitespace().find_map(|word| {
                word.strip_prefix("address=").filter(|address| address.starts_with("127.0.0.1:"))
            });
            if let Some(address) = address {
                break address.to_owned();
            }
            log.push_str(&line);
            log.push('\n');
        };
        // It stops when its log is not read.
        std::thread::spawn(move || lines.for_each(drop));
        Some(Self { child, address })
    }

    fn receiver(&self) -> Receiver {
        let url = format!("http://{}", self.address);
        Receiver::Alertmanager(AlertmanagerReceiver { url, bearer_token: None, ca: None })
    }

    /// The alerts that are not resolved.
    fn alerts(&self) -> Vec<Value> {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.write_all(b"GET /api/v2/alerts HTTP/1.0\r\nHost: x\r\n\r\n").unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        let (_, body) = response.split_once("\r\n\r\n").unwrap();
        serde_json::from_str(body).unwrap()
    }
}

async fn deliver(alertmanager: &Alertmanager, notification: &Notification) {
    Sender::unrestricted().deliver(&alertmanager.receiver(), notification).await.unwrap();
}

#[tokio::test]
async fn alertmanager_keeps_one_alert_of_a_group_until_it_is_resolved() {
    let folder = tempfile::tempdir().unwrap();
    let mut hook = HttpServer::plain(vec![Answer::status(200)]).await;
    let Some(alertmanager) = Alertmanager::start(folder.path(), &hook.url("/")) else { return };
    let first = Notification { severity: Severity::Critical, ..notification() };
    deliver(&alertmanager, &first).await;
    let alerts = alertmanager.alerts();
    assert_eq!(alerts.len(), 1, "{alerts:#?}");
    let labels = &alerts[0]["labels"];
    assert_eq!(labels["alertname"], "gpu.xid");
    assert_eq!(labels["severity"], "critical");
    assert_eq!((&labels["node"], &labels["pool"]), (&"gpu-7".into(), &"train".into()));
    let annotations = &alerts[0]["annotations"];
    assert_eq!(
        annotations["summary"],
        "CRITICAL gpu-7 GPU 3: Xid 79: the GPU is not reachable over PCIe"
    );
    assert_eq!(annotations["action_needed"], "power-cycle the node");
    assert_eq!(annotations["idempotency_key"], "gpu-7/gpu.xid/1");
    assert_eq!(alerts[0]["generatorURL"], "https://runbooks.example/xid.79");

    // A repeat, also one with another text and another time, is the same alert.
    deliver(&alertmanager, &first).await;
    let cause = "Xid 79 again".to_owned();
    deliver(&alertmanager, &Notification { key: "2".to_owned(), cause, ..first.clone() }).await;
    assert_eq!(alertmanager.alerts().len(), 1);
    // Another group is another alert.
    let group = "gpu-8 \"\\,{}/x".to_owned();
    let other = Notification { group, nodes: vec![node("gpu-8", None)], ..first.clone() };
    deliver(&alertmanager, &other).await;
    assert_eq!(alertmanager.alerts().len(), 2);

    // If the labels change, the alert with the earlier labels ends.
    for severity in [Severity::Fatal, Severity::Critical, Severity::Fatal] {
        deliver(&alertmanager, &Notification { severity, ..other.clone() }).await;
        deliver(&alertmanager, &Notification { severity, ..first.clone() }).await;
        let alerts = alertmanager.alerts();
        assert_eq!(alerts.len(), 2, "{alerts:#?}");
        let severity = severity.to_string();
        assert!(alerts.iter().all(|alert| alert["labels"]["severity"] == severity), "{alerts:#?}");
    }

    deliver(&alertmanager, &resolved()).await;
    let alerts = alertmanager.alerts();
    assert_eq!(alerts.len(), 1, "{alerts:#?}");
    assert_eq!(alerts[0]["labels"]["node"], "gpu-8");

    // Alertmanager notifies its own receiver of the alert and of its end.
    let mut firing = false;
    loop {
        let sent = hook.next().await.json();
        if sent["groupLabels"]["farrier_group"] == "gpu-7/gpu.xid" {
            firing |= sent["status"] == "firing";
            if firing && sent["status"] == "resolved" {
                break;
            }
        }
    }
}
