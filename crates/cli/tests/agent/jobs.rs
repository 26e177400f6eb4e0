//! Jobs on the socket of a whole agent.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

use crate::world::World;

#[test]
fn a_job_is_shown_and_told_when_its_gpu_fails() {
    let world = World::of(2);
    let agent = world.agent().ready();
    let (status, _) = world.status();
    let gpu = status["gpus"][1]["identity"]["uuid"].as_str().unwrap().to_owned();
    let mut stream = UnixStream::connect(world.path("agent.sock")).unwrap();
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
    assert!(world.status_ran(&[]).stdout.contains("4711"));
    world.inject(&["--gpu", "1", "lost"]);
    let said = lines.next().unwrap().unwrap();
    assert!(said.contains("checkpoint_wanted") && said.contains(&gpu), "{said}");
    let (_, text) = agent.get("/metrics");
    assert!(text.contains("farrier_job_step{job=\"4711\",uid="), "{text}");
    agent.stop();
}

/// A rank of a job.
struct Rank {
    stream: UnixStream,
    lines: std::io::Lines<BufReader<UnixStream>>,
}

impl Rank {
    fn hello(world: &World, words: &str) -> Self {
        let stream = UnixStream::connect(world.path("agent.sock")).unwrap();
        stream.set_read_timeout(Some(crate::support::wait::TEST_TIMEOUT)).unwrap();
        let lines = BufReader::new(stream.try_clone().unwrap()).lines();
        let mut rank = Self { stream, lines };
        rank.say(&format!("{{\"type\":\"hello\",\"v\":1,\"job\":\"4711\",{words}}}"));
        rank
    }

    fn say(&mut self, words: &str) {
        self.stream.write_all(format!("{words}\n").as_bytes()).unwrap();
    }

    fn hear(&mut self) -> String {
        self.lines.next().unwrap().unwrap()
    }
}

#[test]
fn the_status_tells_of_a_slow_rank_of_lost_memory_and_of_checkpoints() {
    let world = World::of(2);
    let agent = world.agent().ready();
    let (status, _) = world.status();
    let uuid = |at: usize| status["gpus"][at]["identity"]["uuid"].as_str().unwrap().to_owned();
    let words = |rank: usize| {
        format!(
            "\"rank\":{rank},\"world_size\":4,\"local_world_size\":2,\"gpu\":\"{}\"",
            uuid(rank)
        )
    };
    let mut ranks = [Rank::hello(&world, &words(0)), Rank::hello(&world, &words(1))];
    for (rank, seconds) in ranks.iter_mut().zip(["2.0", "3.0"]) {
        assert!(rank.hear().contains("welcome"));
        rank.say(&format!("{{\"type\":\"step_end\",\"step\":7,\"seconds\":{seconds}}}"));
    }
    ranks[1].say("{\"type\":\"oom\",\"bytes_wanted\":2147483648}");
    world.inject(&["--gpu", "1", "xid", "95"]);
    let wanted = ranks[1].hear();
    assert!(wanted.contains("checkpoint_wanted") && wanted.contains("Xid 95"), "{wanted}");
    // The jobs are told before anything is written or shown.
    agent.until(|status| !status["jobs"][0]["checkpoint_wanted_for"][0].is_null());
    let before = world.status_ran(&[]).stdout;
    for part in ["2 of 2 here, 4 in all", "rank 1 +20 %", "none taken yet"] {
        assert!(before.contains(part), "{part}: {before}");
    }
    ranks[1].say("{\"type\":\"checkpoint_done\",\"step\":8}");
    let status = agent.until(|status| status["jobs"][0]["checkpoint_step"] == 8);
    let job = &status["jobs"][0];
    assert_eq!((&job["slowest"]["rank"], &job["slowest_over_median"]), (&1.into(), &1.2.into()));
    assert!(job["checkpoint_wanted_for"].to_string().contains("Xid 95"), "{job:#}");
    drop(ranks);
    agent.until(|status| !status["jobs"][0]["left"].is_null());
    // As wide as it comes: where lines are folded is not the matter here.
    let after = world.status_ran(&[]).stdout.split_whitespace().collect::<Vec<_>>().join(" ");
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
fn a_gpu_of_another_node_is_told() {
    let world = World::of(1);
    let agent = world.agent().ready();
    // The variable that leads a job to its agent leads people there, too.
    let mut status = crate::support::farrier(&["status", "--output", "json"]);
    let ran = status.env("FARRIER_SOCKET", world.path("agent.sock")).output().unwrap();
    assert!(String::from_utf8_lossy(&ran.stdout).contains("\"agent\""), "{ran:?}");
    let mut rank = Rank::hello(&world, "\"gpu\":\"GPU-deadbeef-0000-0000-0000-000000000000\"");
    assert!(rank.hear().contains("welcome"));
    let notice = rank.hear();
    assert!(notice.contains("notice") && notice.contains("is not on this node"), "{notice}");
    world.inject(&["--gpu", "0", "lost"]);
    assert!(rank.hear().contains("checkpoint_wanted"));
    agent.stop();
}

#[test]
fn garbage_on_the_socket_leaves_the_agent_as_it_was() {
    let world = World::of(1);
    let agent = world.agent().ready();
    agent.until(|status| status["verdict"] == "healthy");
    let before = agent.rss_bytes();
    let mut open = Vec::new();
    for turn in 0..300 {
        let Ok(mut stream) = UnixStream::connect(world.path("agent.sock")) else { continue };
        stream.set_nonblocking(true).unwrap();
        // A line that never ends, noise, or silence.
        let bytes = match turn % 3 {
            0 => vec![b'a'; 128 << 10],
            1 => (0..=255_u8).cycle().take(64 << 10).collect(),
            _ => Vec::new(),
        };
        let _ = stream.write(&bytes);
        open.push(stream);
    }
    let (status, code) = world.status();
    assert_eq!(code, 0, "{status:#}");
    let grown = agent.rss_bytes().saturating_sub(before);
    assert!(grown < 16 << 20, "{grown} bytes more");
    drop(open);
    agent.stop();
}
