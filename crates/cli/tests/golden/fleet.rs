//! A server over the log of [`crate::scenario`], and people who ask it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;

use farrier_server::access::{NewJoinToken, Store};
use farrier_server::rest::Rate;
use farrier_server::run::{self, Options, Running, WallClock};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use tokio::runtime::Runtime;

use crate::play::{Stage, settle};
use crate::scenario;
use crate::support;
use crate::volatile;

/// The server's clock when it starts: not on the day of the scenario, so that what the server writes can be told from it, and more than
/// five seconds after its end, so that the server says each time that it did not run in between.
const START: &str = "2026-11-16T00:00:00Z";

/// A folder with the server's in `server`, and a server that serves it.
pub(crate) struct Fleet {
    runtime: Runtime,
    running: Option<Running>,
}

impl Fleet {
    /// A stage with a fleet to whom all of the scenario happened. Nobody has logged in yet.
    pub(crate) fn stage() -> Stage {
        let mut stage = Self::unserved();
        let dir = stage.path("server");
        let runtime = Runtime::new().unwrap();
        let wall_clock = WallClock::default();
        let start: Timestamp = START.parse().unwrap();
        wall_clock.set_offset(start.duration_since(Timestamp::now()));
        let options = Options {
            plain_pool: Some("train".parse().unwrap()),
            rate: Rate { per_s: 1e6, burst: 1e6 },
            wall_clock,
            ..Options::new(dir, SocketAddr::from(([127, 0, 0, 1], 0)))
        };
        let running = runtime.block_on(run::start(options)).unwrap();
        stage.name("url", format!("http://{}", running.address()));
        stage.served_by(Self { runtime, running: Some(running) })
    }

    /// The same without a server.
    pub(crate) fn unserved() -> Stage {
        let mut stage = Stage::folder();
        let config = stage.path("config").to_str().unwrap().to_owned();
        stage.variable("XDG_CONFIG_HOME", config);
        stage.variable("COLUMNS", "140".to_owned());
        // Before there is a log: then the server's authority is made.
        let people = [
            ("admin", "ann --role admin"),
            ("operator", "bob --role operator"),
            ("viewer", "vic --role viewer --pool train"),
        ];
        for (name, words) in people {
            let token = token(&stage, words);
            stage.name(name, token);
        }
        enrol(&stage.path("server"), "serves");
        let end = scenario::play(&stage.path("server"));
        stage.name("end", end.to_string());
        for (file, field) in [
            ("observe.json", "\"autonomy\": \"observe\""),
            ("wrong.json", "\"autonomy\": \"often\""),
            ("tries.json", "\"tries\": 0"),
        ] {
            let policy = format!("{{\"pools_default\": {{{field}}}}}\n");
            std::fs::write(stage.path(file), policy).unwrap();
        }
        stage
    }

    /// What the server answers to somebody.
    fn get(&self, token: &str, path: &str) -> String {
        let mut stream = TcpStream::connect(self.running.as_ref().unwrap().address()).unwrap();
        let head = format!(
            "GET {path} HTTP/1.1\r\nHost: fleet\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        assert!(!head.to_lowercase().contains("transfer-encoding"), "{head}");
        body.to_owned()
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            let _ = self.runtime.block_on(running.stop());
        }
    }
}

/// A person's token, made as on a server.
fn token(stage: &Stage, words: &str) -> String {
    let dir = stage.path("server").to_str().unwrap().to_owned();
    let words: Vec<&str> = words.split(' ').collect();
    let add = [&["server", "user", "add"], &words[..], &["--dir", &dir, "--output", "json"]];
    let made = support::run(&add.concat());
    assert_eq!(made.code, 0, "{}", made.stderr);
    let made: Value = serde_json::from_str(&made.stdout).unwrap();
    made["token"].as_str().unwrap().to_owned()
}

/// Has the access store know a node, so that there are certificates to revoke.
fn enrol(dir: &Path, name: &str) {
    let (store, now) = (Store::open(dir).unwrap(), Timestamp::now());
    let wanted = NewJoinToken::new("train".parse().unwrap(), now + SignedDuration::from_hours(1));
    let token = store.create(&wanted, now).unwrap().digest();
    store.join(&token, &name.parse().unwrap(), name.as_bytes(), None, now).unwrap();
}

#[test]
fn openapi() {
    let stage = Fleet::stage();
    let document: Value =
        serde_json::from_str(&stage.server().get(stage.value("admin"), "/api/v1/openapi.json"))
            .unwrap();
    settle("openapi.json", &format!("{}\n", serde_json::to_string_pretty(&document).unwrap()));
}

/// Names, labels and what is said of them. Values are those of the scenario where they are of the fleet.
#[test]
fn metrics() {
    let stage = Fleet::stage();
    let text = stage.server().get(stage.value("admin"), "/metrics");
    let lines = text.lines().map(|line| match line.rsplit_once(' ') {
        Some((name, _)) if !line.starts_with('#') && !name.starts_with("farrier_fleet_") => {
            format!("{name} <value>\n")
        }
        _ => format!("{line}\n"),
    });
    settle("metrics.txt", &volatile::replaced(&lines.collect::<String>(), None));
}
