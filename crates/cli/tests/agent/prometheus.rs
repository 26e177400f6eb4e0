//! Debian's Prometheus reads the agent's metrics, and loads the alerts in `deploy/prometheus`.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::agent_node::{AgentNode, skipped};
use crate::support::wait::wait_until;

const PROGRAM: &str = "/usr/bin/prometheus";

struct Prometheus {
    child: Child,
    address: String,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Prometheus {
    fn start(folder: &Path, target: &str) -> Self {
        let rules =
            concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/prometheus/farrier.rules.yml");
        let config = folder.join("prometheus.yml");
        let text = format!(
            "global: {{ scrape_interval: 1s, evaluation_interval: 1s }}\nrule_files: [{rules:?}]\n\
             scrape_configs:\n- job_name: farrier\n  static_configs: [{{ targets: [{target:?}] }}]\n"
        );
        fs::write(&config, text).unwrap();
        let mut child = Command::new(PROGRAM)
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", folder.join("prometheus").display()))
            .arg("--web.listen-address=127.0.0.1:0")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut log = String::new();
        let address = loop {
            let line = lines.next().unwrap_or_else(|| panic!("Prometheus ended:\n{log}")).unwrap();
            let address = line.split_whitespace().find_map(|word| {
                let address = word.strip_prefix("address=")?;
                address.strip_prefix("127.0.0.1:").filter(|port| *port != "0").map(|_| address)
            });
            if let Some(address) = address {
                break address.to_owned();
            }
            log.push_str(&line);
            log.push('\n');
        };
        // It stops when its log is not read.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, address }
    }

    fn get(&self, path: &str) -> Value {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let request = format!("GET {path} HTTP/1.0\r\nHost: x\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        let body = response.split_once("\r\n\r\n").unwrap().1;
        // Until Prometheus is ready it answers with a text.
        serde_json::from_str(body).unwrap_or_default()
    }
}

#[test]
fn prometheus_reads_the_metrics_of_hooks_and_loads_the_alerts() {
    if !Path::new(PROGRAM).exists() {
        return skipped("Prometheus is not installed; run `apt-get install prometheus`");
    }
    let agent_node = AgentNode::with_gpus(1);
    let hook = "[[hook]]\nname = \"true\"\n[hook.command]\nargv = [\"/bin/true\"]\n";
    fs::write(agent_node.path("agent.toml"), agent_node.config(hook)).unwrap();
    let agent = agent_node.agent().ready();
    agent_node.inject(&["--gpu", "0", "xid", "79"]);
    agent.until(|status| {
        let hook = &status["hooks"][0];
        hook["counts"]["delivered"].as_u64() > Some(0) && hook["queued"] == 0
    });
    let log = agent.log();
    let target = log.lines().rev().find_map(|line| line.split("address=").nth(1)).unwrap();
    let prometheus = Prometheus::start(&agent_node.path(""), target.trim());
    let query =
        "/api/v1/query?query=farrier_hook_notifications_total%7Bresult%3D%22delivered%22%7D";
    wait_until(
        || format!("{:#}", prometheus.get(query)),
        || {
            let result = &prometheus.get(query)["data"]["result"][0];
            result["metric"]["hook"] == "true"
                && result["value"][1].as_str().is_some_and(|value| value != "0")
        },
    );
    let rules = prometheus.get("/api/v1/rules");
    let rules = rules["data"]["groups"].as_array().unwrap().iter();
    let names: Vec<&Value> = rules
        .flat_map(|group| group["rules"].as_array().unwrap())
        .map(|rule| &rule["name"])
        .collect();
    assert!(names.iter().any(|name| **name == "FarrierHookFailing"), "{names:?}");
    agent.stop();
}
