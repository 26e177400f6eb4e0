//! A Prometheus process, and its HTTP API.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::agent_node::skipped;
use crate::support::wait::wait_for;

/// A running Prometheus, killed when the test ends.
pub(crate) struct Prometheus {
    child: Child,
    folder: PathBuf,
    address: String,
}

/// Whether Prometheus and promtool are installed. Prints a message if they are not.
pub(crate) fn is_installed() -> bool {
    let runs = |program: &str| {
        let mut command = Command::new(program);
        command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    let is_installed = runs("prometheus") && runs("promtool");
    if !is_installed {
        skipped("prometheus or promtool is missing: `apt-get install prometheus`");
    }
    is_installed
}

/// A label of a target or sample.
type Labels = serde_json::Map<String, Value>;

impl Prometheus {
    /// Starts Prometheus in `folder`, with these rules. It scrapes the server, and the agents that
    /// [`Prometheus::set_agents`] names, every second.
    pub(crate) fn start(folder: &Path, rules: &str, server: &str, token: &str) -> Self {
        let at = |name: &str| folder.join(name);
        fs::write(at("farrier.rules.yml"), rules).unwrap();
        fs::write(at("agents.json"), "[]").unwrap();
        // JSON is valid YAML.
        let config = json!({
            "global": { "scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s" },
            "rule_files": [at("farrier.rules.yml")],
            "scrape_configs": [
                {
                    "job_name": "farrier-agent",
                    "file_sd_configs": [{ "files": [at("agents.json")], "refresh_interval": "1s" }],
                },
                {
                    "job_name": "farrier-server",
                    "scheme": "https",
                    "authorization": { "credentials": token },
                    "tls_config": { "ca_file": at("server/ca.pem") },
                    "static_configs": [{ "targets": [server] }],
                },
            ],
        });
        fs::write(at("prometheus.yml"), config.to_string()).unwrap();
        let log = fs::File::create(at("prometheus.log")).unwrap();
        let mut command = Command::new("prometheus");
        command.arg(format!("--config.file={}", at("prometheus.yml").display()));
        command.arg(format!("--storage.tsdb.path={}", at("prometheus").display()));
        command.arg("--web.listen-address=127.0.0.1:0");
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let child = child.spawn().unwrap();
        let mut prometheus = Self { child, folder: folder.to_owned(), address: String::new() };
        let explain = || fs::read_to_string(at("prometheus.log")).unwrap_or_default();
        prometheus.address = wait_for(explain, || {
            let log = fs::read_to_string(at("prometheus.log")).ok()?;
            log.contains("Server is ready to receive web requests").then_some(())?;
            let line = log.lines().find(|line| line.contains("msg=\"Listening on\""))?;
            line.split("address=").nth(1).map(|address| address.trim().to_owned())
        });
        prometheus
    }

    /// Replaces the list of agents to scrape.
    pub(crate) fn set_agents(&self, addresses: &[String]) {
        let new = self.folder.join("agents.json.new");
        fs::write(&new, json!([{ "targets": addresses }]).to_string()).unwrap();
        fs::rename(new, self.folder.join("agents.json")).unwrap();
    }

    /// The samples of an instant query: labels and value.
    pub(crate) fn query(&self, expression: &str) -> Vec<(Labels, f64)> {
        let answer = self.get(&format!("/api/v1/query?query={}", percent_encoded(expression)));
        assert_eq!(answer["status"], "success", "{expression}: {answer}");
        let rows = answer["data"]["result"].as_array().unwrap();
        let sample = |row: &Value| {
            let value = row["value"][1].as_str().unwrap().parse().unwrap();
            (row["metric"].as_object().unwrap().clone(), value)
        };
        rows.iter().map(sample).collect()
    }

    /// The rules of this type, `alert` or `record`.
    pub(crate) fn rules(&self, kind: &str) -> Vec<Value> {
        let answer = self.get(&format!("/api/v1/rules?type={kind}"));
        let groups = answer["data"]["groups"].as_array().unwrap();
        groups.iter().flat_map(|group| group["rules"].as_array().unwrap().clone()).collect()
    }

    /// The alerts that fire now.
    pub(crate) fn firing(&self) -> Vec<Value> {
        let answer = self.get("/api/v1/alerts");
        let alerts = answer["data"]["alerts"].as_array().unwrap().iter();
        alerts.filter(|alert| alert["state"] == "firing").cloned().collect()
    }

    fn get(&self, path: &str) -> Value {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        // With HTTP 1.0 the answer is not chunked.
        write!(stream, "GET {path} HTTP/1.0\r\nHost: {}\r\n\r\n", self.address).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        serde_json::from_str(body).unwrap_or_else(|err| panic!("{path}: {err}: {answer}"))
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn percent_encoded(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        encoded.push_str(&format!("%{byte:02X}"));
    }
    encoded
}
