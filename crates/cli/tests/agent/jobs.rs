//! Jobs on the job socket of a complete agent.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

use crate::agent_node::AgentNode;

#[test]
fn a_job_is_listed_and_gets_a_checkpoint_request_when_its_gpu_fails() {
    let agent_node = AgentNode::with_gpus(2);
    let agent = agent_node.agent().ready();
    let (status, _) = agent_node.status();
    let gpu = status["gpus"][1]["identity"]["uuid"].as_str().unwrap().to_owned();
    let mut stream = UnixStream::connect(agent_node.path("agent.sock")).unwrap();
    stream.set_read_timeout(Some(crate::support::wait::TEST_TIMEOUT)).unwrap();
    let hello = format!(
        "{{\"type\":\"hello\",\"v\":1,\"job\":\"4711\",\"world_size\":2,\"gpu\":\"{gpu}\"}}\n"
    );
    stream.write_all(hello.as_bytes()).unwrap();
    stream
        .write_all(
            b"{\"type\":\"step_end\",\"step\":7,\"seconds\":2,\"tokens\":100,\"loss\":1.5}\n",
        )
        .unwrap();
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "{\"type\":\"welcome\",\"v\":1}");
    let status = agent.until(|status| status["jobs"][0]["step"] == 7);
    assert_eq!(status["jobs"][0]["tokens_per_s"], 50.0);
    assert!(agent_node.status_ran(&[]).stdout.contains("4711"));
    agent_node.inject(&["--gpu", "1", "lost"]);
    let line = lines.next().unwrap().unwrap();
    assert!(line.contains("checkpoint_wanted") && line.contains(&gpu), "{line}");
    let (_, text) = agent.get("/metrics");
    assert!(text.contains("farrier_job_step{job=\"4711\",uid="), "{text}");
    agent.stop();
}

struct Rank {
    stream: UnixStream,
    lines: std::io::Lines<BufReader<UnixStream>>,
}

impl Rank {
    fn connect(agent_node: &AgentNode, fields: &str) -> Self {
        let stream = UnixStream::connect(agent_node.path("agent.sock")).unwrap();
        stream.set_read_timeout(Some(crate::support::wait::TEST_TIMEOUT)).unwrap();
        let lines = BufReader::new(stream.try_clone().unwrap()).lines();
        let mut rank = Self { stream, lines };
        rank.send(&format!("{{\"type\":\"hello\",\"v\":1,\"job\":\"4711\",{fields}}}"));
        rank
    }

    fn send(&mut self, line: &str) {
        self.stream.write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    fn next_line(&mut self) -> String {
        self.lines.next().unwrap().unwrap()
    }
}

#[test]
fn the_status_shows_slow_ranks_out_of_memory_errors_and_checkpoints() {
    let agent_node = AgentNode::with_gpus(2);
    let agent = agent_node.agent().ready();
    let (status, _) = agent_node.status();
    let uuid = |at: usize| status["gpus"][at]["identity"]["uuid"].as_str().unwrap().to_owned();
    let fields = |rank: usize| {
        format!(
            "\"rank\":{rank},\"world_size\":4,\"local_world_size\":2,\"gpu\":\"{}\"",
            uuid(rank)
        )
    };
    let mut ranks =
        [Rank::connect(&agent_node, &fields(0)), Rank::connect(&agent_node, &fields(1))];
    for (rank, seconds) in ranks.iter_mut().zip(["2.0", "3.0"]) {
        assert!(rank.next_line().contains("welcome"));
        rank.send(&format!("{{\"type\":\"step_end\",\"step\":7,\"seconds\":{seconds}}}"));
    }
    ranks[1].send("{\"type\":\"oom\",\"bytes_wanted\":2147483648}");
    agent_node.inject(&["--gpu", "1", "xid", "95"]);
    let request = ranks[1].next_line();
    assert!(request.contains("checkpoint_wanted") && request.contains("Xid 95"), "{request}");
    // The checkpoint request reaches jobs before the finding is persisted or shown.
    agent.until(|status| !status["jobs"][0]["checkpoint_wanted_for"][0].is_null());
    let before = agent_node.status_ran(&[]).stdout;
    for part in ["2 of 2 here, 4 in all", "rank 1 +20 %", "none taken yet"] {
        assert!(before.contains(part), "{part}: {before}");
    }
    ranks[1].send("{\"type\":\"checkpoint_done\",\"step\":8}");
    let status = agent.until(|status| status["jobs"][0]["checkpoint_step"] == 8);
    let job = &status["jobs"][0];
    assert_eq!((&job["slowest"]["rank"], &job["slowest_over_median"]), (&1.into(), &1.2.into()));
    assert!(job["checkpoint_wanted_for"].to_string().contains("Xid 95"), "{job:#}");
    drop(ranks);
    agent.until(|status| !status["jobs"][0]["left"].is_null());
    // Join the lines, because it does not matter here where the output wraps.
    let after = agent_node.status_ran(&[]).stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        "because of gpu.xid Xid 95 on GPU 1",
        "; taken 20",
        "of step 8",
        "out of GPU memory once, last 20",
        "by rank 1, requested 2.0 GiB",
        "took 3.00 s for step 7, 20 % more than the median of 2.50 s",
        "no rank connected since",
        "; shown until",
    ] {
        assert!(after.contains(part), "{part}: {after}");
    }
    agent.stop();
}

#[test]
fn a_rank_with_a_gpu_of_another_node_gets_a_notice() {
    let agent_node = AgentNode::with_gpus(1);
    let agent = agent_node.agent().ready();
    // Jobs find their agent through `FARRIER_SOCKET`. The variable works for `farrier status` too.
    let mut status = crate::support::farrier(&["status", "--output", "json"]);
    let ran = status.env("FARRIER_SOCKET", agent_node.path("agent.sock")).output().unwrap();
    assert!(String::from_utf8_lossy(&ran.stdout).contains("\"agent\""), "{ran:?}");
    let mut rank =
        Rank::connect(&agent_node, "\"gpu\":\"GPU-deadbeef-0000-0000-0000-000000000000\"");
    assert!(rank.next_line().contains("welcome"));
    let notice = rank.next_line();
    assert!(notice.contains("notice") && notice.contains("is not on this node"), "{notice}");
    agent_node.inject(&["--gpu", "0", "lost"]);
    assert!(rank.next_line().contains("checkpoint_wanted"));
    agent.stop();
}

#[test]
fn garbage_on_the_socket_does_not_affect_the_agent() {
    let agent_node = AgentNode::with_gpus(1);
    let agent = agent_node.agent().ready();
    agent.until(|status| status["verdict"] == "healthy");
    let before = agent.rss_bytes();
    let mut open = Vec::new();
    for turn in 0..300 {
        let Ok(mut stream) = UnixStream::connect(agent_node.path("agent.sock")) else { continue };
        stream.set_nonblocking(true).unwrap();
        // Each client sends a line without an end, or noise, or nothing.
        let bytes = match turn % 3 {
            0 => vec![b'a'; 128 << 10],
            1 => (0..=255_u8).cycle().take(64 << 10).collect(),
            _ => Vec::new(),
        };
        let _ = stream.write(&bytes);
        open.push(stream);
    }
    let (status, code) = agent_node.status();
    assert_eq!(code, 0, "{status:#}");
    let grown = agent.rss_bytes().saturating_sub(before);
    assert!(grown < 16 << 20, "{grown} bytes more");
    drop(open);
    agent.stop();
}
