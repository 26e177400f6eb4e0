//! Hooks of a real agent on a simulated node.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::sync::mpsc::{Receiver, channel};

use serde_json::Value;

use crate::agent_node::{AgentNode, find};
use crate::support::wait::{TEST_TIMEOUT, wait_for, wait_until};

/// An HTTP server that answers each request with the next status, and then with the last one.
struct Webhook {
    address: SocketAddr,
    requests: Receiver<(String, Value)>,
}

impl Webhook {
    fn start(statuses: &'static [u16]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, requests) = channel();
        std::thread::spawn(move || {
            for (index, stream) in listener.incoming().enumerate() {
                let mut stream = BufReader::new(stream.unwrap());
                let (mut key, mut length) = (String::new(), 0);
                loop {
                    let mut line = String::new();
                    stream.read_line(&mut line).unwrap();
                    let Some((name, value)) = line.trim().split_once(": ") else {
                        if line.trim().is_empty() {
                            break;
                        }
                        continue;
                    };
                    match name {
                        "idempotency-key" => value.clone_into(&mut key),
                        "content-length" => length = value.parse().unwrap(),
                        _ => (),
                    }
                }
                let mut body = vec![0; length];
                stream.read_exact(&mut body).unwrap();
                let status = statuses[index.min(statuses.len() - 1)];
                let answer = format!("HTTP/1.1 {status} X\r\ncontent-length: 0\r\n\r\n");
                stream.get_mut().write_all(answer.as_bytes()).unwrap();
                if sender.send((key, serde_json::from_slice(&body).unwrap())).is_err() {
                    return;
                }
            }
        });
        Self { address, requests }
    }

    fn next(&self) -> (String, Value) {
        self.requests.recv_timeout(TEST_TIMEOUT).unwrap()
    }
}

/// Two hooks: a webhook, and a command that appends its input to a file.
fn hooks(agent_node: &AgentNode, webhook: SocketAddr) -> String {
    let program = agent_node.path("page");
    let out = agent_node.path("pages");
    fs::write(
        &program,
        format!("#!/bin/sh\ncat >> {}\necho >> {}\n", out.display(), out.display()),
    )
    .unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let common = "severity = \"fatal\"\ncodes = [\"xid.79\"]\n\
                  runbooks = \"https://runbooks.example/{code}\"\n";
    format!(
        "[[hook]]\nname = \"hook\"\n{common}[hook.webhook]\nurl = \"http://{webhook}/\"\n\
         [[hook]]\nname = \"page\"\n{common}[hook.command]\nargv = [\"{}\"]\ntimeout_s = 300\n",
        program.display()
    )
}

fn pages(agent_node: &AgentNode) -> Vec<Value> {
    let text = fs::read_to_string(agent_node.path("pages")).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

#[test]
fn a_webhook_and_a_command_get_an_xid_and_its_end_once() {
    let agent_node = AgentNode::with_gpus(4);
    let webhook = Webhook::start(&[500, 200]);
    fs::write(
        agent_node.path("agent.toml"),
        agent_node.config(&hooks(&agent_node, webhook.address)),
    )
    .unwrap();
    let args = agent_node.args();
    let agent = agent_node.agent().ready();
    agent_node.inject(&["--gpu", "3", "xid", "79"]);

    // The first attempt fails; the second has the same key and content.
    let first = webhook.next();
    assert_eq!(webhook.next(), first);
    let (key, sent) = first;
    assert_eq!(key, sent["key"]);
    assert_eq!((&sent["status"], &sent["severity"]), (&"firing".into(), &"fatal".into()));
    assert_eq!(sent["code"], "gpu.xid");
    assert!(sent["cause"].as_str().unwrap().starts_with("Xid 79: "), "{sent:#}");
    let part = sent["nodes"][0]["part"].as_str().unwrap();
    assert!(part.starts_with("GPU 3 ("), "{sent:#}");
    assert!(sent["action_needed"].is_string(), "{sent:#}");
    assert_eq!(sent["runbook_url"], "https://runbooks.example/xid.79");
    wait_until(|| format!("{:#?}", pages(&agent_node)), || !pages(&agent_node).is_empty());
    assert_eq!(pages(&agent_node), std::slice::from_ref(&sent));

    let status = agent.until(|status| {
        status["hooks"].as_array().is_some_and(|hooks| {
            hooks.len() == 2 && hooks.iter().all(|hook| hook["counts"]["delivered"] == 1)
        })
    });
    assert!(find(&status, "gpu.xid").is_some());
    let (_, metrics) = agent.get("/metrics");
    let line = "farrier_hook_notifications_total{hook=\"page\",result=\"delivered\"} 1";
    assert!(metrics.contains(line), "{metrics}");
    let text = agent_node.status_ran(&[]).stdout;
    assert!(text.contains("hooks   hook: 1 delivered, 0 queued"), "{text}");

    // A restart delivers nothing again. The end of the finding comes next.
    agent.stop();
    let agent = agent_node.agent();
    agent.until_found("gpu.xid");
    agent.stop();
    agent_node.inject(&["reboot"]);
    assert_eq!(args, agent_node.args());
    let agent = agent_node.agent();
    let (_, end) = webhook.next();
    assert_eq!((&end["status"], &end["group"]), (&"resolved".into(), &sent["group"]), "{end:#}");
    let both = wait_for(
        || format!("{:#?}", pages(&agent_node)),
        || Some(pages(&agent_node)).filter(|pages| pages.len() == 2),
    );
    assert_eq!(both, [sent, end]);
    assert!(webhook.requests.try_recv().is_err());
    agent.stop();
}

#[test]
fn a_hook_that_does_not_answer_delays_neither_findings_nor_other_hooks() {
    let agent_node = AgentNode::with_gpus(2);
    // Accepts connections (in the backlog of the kernel) and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    fs::write(agent_node.path("agent.toml"), agent_node.config(&hooks(&agent_node, address)))
        .unwrap();
    let agent = agent_node.agent().ready();
    agent_node.inject(&["--gpu", "1", "xid", "79"]);
    let status = agent.until(|status| {
        let hooks = &status["hooks"];
        hooks[0]["queued"] == 1 && hooks[1]["counts"]["delivered"] == 1
    });
    assert!(find(&status, "gpu.xid").is_some());
    let (code, _) = agent.get("/healthz");
    assert_eq!(code, 200);
    agent.stop();
}

#[test]
fn check_config_reports_what_is_wrong_with_a_hook() {
    let agent_node = AgentNode::with_gpus(1);
    let check = |hooks: &str| {
        fs::write(agent_node.path("agent.toml"), agent_node.config(hooks)).unwrap();
        let config = agent_node.text("agent.toml");
        crate::support::run(&["agent", "--config", &config, "--check-config"])
    };
    let secret = agent_node.path("secret");
    fs::write(&secret, "secret").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o644)).unwrap();
    let cases = [
        ("[[hook]]\nname = \"a\"\n".to_owned(), "expected one table out of"),
        ("[[hook]]\n[hook.webhook]\nurl = \"http://x/\"\n".to_owned(), "expected a name"),
        ("[[hook]]\nname = \"a\"\n[hook.webhook]\nulr = \"http://x/\"\n".to_owned(), "unknown field `ulr`"),
        (
            "[[hook]]\nname = \"a\"\ncodes = [\"gpu.xdi\"]\n[hook.webhook]\nurl = \"http://x/\"\n".to_owned(),
            "unknown code `gpu.xdi`; did you mean `gpu.xid`?",
        ),
        (
            "[[hook]]\nname = \"a\"\n[hook.webhook]\nurl = \"x\"\n".to_owned(),
            "`hook.a.url`: the URL is invalid",
        ),
        (
            "[[hook]]\nname = \"a\"\n[hook.webhook]\nurl = \"http://x/\"\ntemplate = '{{ nothing }}'\n".to_owned(),
            "`hook.a.template`: the template is invalid",
        ),
        (
            "[[hook]]\nname = \"a\"\n[hook.command]\nargv = [\"/nonexistent/page\"]\n".to_owned(),
            "`hook.a.argv`: failed to start `/nonexistent/page`",
        ),
        (
            format!("[[hook]]\nname = \"a\"\n[hook.webhook]\nurl = \"http://x/\"\nhmac_key = {secret:?}\n"),
            "chmod 600",
        ),
    ];
    for (hooks, expected) in cases {
        let ran = check(&hooks);
        let text = format!("{}{}", ran.stdout, ran.stderr);
        assert!(ran.code != 0 && text.contains(expected), "{hooks}\n{text}");
    }
    let valid = "[[hook]]\nname = \"a\"\n[hook.webhook]\nurl = \"http://x/\"\n";
    let ran = check(valid);
    assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
    assert!(ran.stdout.contains("[hook.webhook]\nurl = \"http://x/\""), "{}", ran.stdout);
}
