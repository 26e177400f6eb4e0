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
    stream.set_read_timeout(Some(crate::world::PATIENCE)).unwrap();
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
