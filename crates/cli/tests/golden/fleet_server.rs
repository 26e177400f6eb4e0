//! A server with the log of [`crate::scenario`], and its users.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;

use farrier_notify::ReceiverFolders;
use farrier_server::access::{AccessStore, NewJoinToken};
use farrier_server::rest::Rate;
use farrier_server::run::{self, Running, ServerOptions, WallClock};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use tokio::runtime::Runtime;

use crate::case::{CaseEnv, compare_or_bless};
use crate::scenario;
use crate::support;
use crate::volatile;

/// The server's clock when it starts. It is the day after the scenario, so that [`volatile`] can
/// tell the server's entries from those of the scenario. It is more than five seconds after the
/// last entry of the scenario, so that the server always logs that it did not run in between.
const START: &str = "2026-11-16T00:00:00Z";

/// A server with its data directory in `server` of the working directory.
pub(crate) struct FleetServer {
    runtime: Runtime,
    running: Option<Running>,
}

impl FleetServer {
    /// An environment with a running server that has the log of the scenario. No user is logged in
    /// yet.
    pub(crate) fn environment() -> CaseEnv {
        let mut env = Self::environment_without_server();
        let dir = env.path("server");
        let runtime = Runtime::new().unwrap();
        let wall_clock = WallClock::default();
        let start: Timestamp = START.parse().unwrap();
        wall_clock.set_offset(start.duration_since(Timestamp::now()));
        let options = ServerOptions {
            plain_pool: Some("train".parse().unwrap()),
            rate: Rate { per_s: 1e6, burst: 1e6 },
            wall_clock,
            receiver_folders: ReceiverFolders {
                commands: vec!["/bin".into()],
                secrets: vec!["/nonexistent".into()],
            },
            ..ServerOptions::new(dir, SocketAddr::from(([127, 0, 0, 1], 0)))
        };
        let running = runtime.block_on(run::start(options)).unwrap();
        env.set_placeholder("url", format!("http://{}", running.address()));
        env.with_server(Self { runtime, running: Some(running) })
    }

    /// An environment with users and the log of the scenario, but without a running server.
    pub(crate) fn environment_without_server() -> CaseEnv {
        let mut env = CaseEnv::folder();
        let config = env.path("config").to_str().unwrap().to_owned();
        env.set_env_var("XDG_CONFIG_HOME", config);
        env.set_env_var("COLUMNS", "140".to_owned());
        // Add users before the scenario writes the log. The first command creates the CA, and no
        // command creates a CA for a directory that has a log.
        let users = [
            ("admin", "ann --role admin"),
            ("operator", "bob --role operator"),
            ("viewer", "vic --role viewer --pool train"),
        ];
        for (name, args) in users {
            let token = token(&env, args);
            env.set_placeholder(name, token);
        }
        enrol(&env.path("server"), "healthy");
        let end = scenario::write(&env.path("server"));
        env.set_placeholder("end", end.to_string());
        for (file, field) in [
            ("observe.json", "\"autonomy\": \"observe\""),
            ("wrong.json", "\"autonomy\": \"often\""),
            ("max-attempts.json", "\"max_attempts\": 0"),
        ] {
            let policy = format!("{{\"pools_default\": {{{field}}}}}\n");
            std::fs::write(env.path(file), policy).unwrap();
        }
        for file in ["notify.json", "notify-wrong.json", "notify-outside.json"] {
            let input = format!("{}/tests/golden/input/{file}", env!("CARGO_MANIFEST_DIR"));
            std::fs::copy(input, env.path(file)).unwrap();
        }
        env
    }

    /// Body of the response to a GET request with this token.
    fn get(&self, token: &str, path: &str) -> String {
        let mut stream = TcpStream::connect(self.running.as_ref().unwrap().address()).unwrap();
        let head = format!(
            "GET {path} HTTP/1.1\r\nHost: fleet\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        let (head, body) = response.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        assert!(!head.to_lowercase().contains("transfer-encoding"), "{head}");
        body.to_owned()
    }
}

impl Drop for FleetServer {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            let _ = self.runtime.block_on(running.stop());
        }
    }
}

/// Adds a user on the server's command line; returns the token.
fn token(env: &CaseEnv, args: &str) -> String {
    let dir = env.path("server").to_str().unwrap().to_owned();
    let args: Vec<&str> = args.split(' ').collect();
    let add = [&["server", "user", "add"], &args[..], &["--dir", &dir, "--output", "json"]];
    let output = support::run(&add.concat());
    assert_eq!(output.code, 0, "{}", output.stderr);
    let created: Value = serde_json::from_str(&output.stdout).unwrap();
    created["token"].as_str().unwrap().to_owned()
}

/// Enrols a node in the access store, so that it has a certificate to revoke.
fn enrol(dir: &Path, name: &str) {
    let (store, now) = (AccessStore::open(dir).unwrap(), Timestamp::now());
    let new_token =
        NewJoinToken::new("train".parse().unwrap(), now + SignedDuration::from_hours(1));
    let token = store.create(&new_token, now).unwrap().digest();
    store.join(&token, &name.parse().unwrap(), name.as_bytes(), None, now).unwrap();
}

#[test]
fn openapi() {
    let env = FleetServer::environment();
    let document: Value =
        serde_json::from_str(&env.server().get(env.placeholder("admin"), "/api/v1/openapi.json"))
            .unwrap();
    compare_or_bless(
        "openapi.json",
        &format!("{}\n", serde_json::to_string_pretty(&document).unwrap()),
    );
}

/// Compares the names, labels and help texts of all metrics, and the values of fleet metrics. The
/// scenario determines only the values of fleet metrics, except for ages.
#[test]
fn metrics() {
    let env = FleetServer::environment();
    let text = env.server().get(env.placeholder("admin"), "/metrics");
    let is_determined =
        |name: &str| name.starts_with("farrier_fleet_") && !name.contains("_age_seconds");
    let lines = text.lines().map(|line| match line.rsplit_once(' ') {
        Some((name, _)) if !line.starts_with('#') && !is_determined(name) => {
            format!("{name} <value>\n")
        }
        _ => format!("{line}\n"),
    });
    compare_or_bless("metrics.txt", &volatile::replaced(&lines.collect::<String>(), None));
}
