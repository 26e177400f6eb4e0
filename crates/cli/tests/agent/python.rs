//! The Python client of the socket (`python/src/farrier/agent.py`), against a whole agent.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::support::wait::TEST_TIMEOUT;
use crate::world::World;

/// A rank that says a step, waits for a wish, says that it is fulfilled, and stays until its input ends.
const RANK: &str = "
import sys, time
from farrier.agent import Job

job = Job('4711', rank=1, world_size=4, gpu=sys.argv[1])
job.phase('train')
job.step_end(7, seconds=2.0, tokens=100, loss=1.5)
end = time.monotonic() + float(sys.argv[2])
while job.checkpoint_wanted is None and time.monotonic() < end:
    job.poll()
    time.sleep(0.01)
print(job.connected, job.dropped, job.checkpoint_wanted, flush=True)
job.checkpoint_done(8)
print(job.connected, job.dropped, job.checkpoint_wanted, flush=True)
sys.stdin.read()
";

/// A process that does not outlive its test.
struct Rank(Child);

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether there is a Python that the package runs on; with `CI=true` a missing one is a failure.
fn has_python() -> bool {
    let wanted = "import sys; sys.exit(sys.version_info < (3, 10))";
    let found = Command::new("python3").args(["-c", wanted]).status().is_ok_and(|it| it.success());
    let on_ci = std::env::var("CI").is_ok_and(|value| value == "true");
    assert!(found || !on_ci, "Python 3.10 or newer is needed on CI");
    if !found {
        eprintln!("SKIPPED: there is no Python 3.10 or newer");
    }
    found
}

#[test]
fn the_python_client_is_shown_told_and_answered() {
    if !has_python() {
        return;
    }
    let world = World::of(2);
    let agent = world.agent().ready();
    let (status, _) = world.status();
    let gpu = status["gpus"][1]["identity"]["uuid"].as_str().unwrap();
    // As PyTorch writes it.
    let gpu = gpu.trim_start_matches("GPU-");
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/src");
    let patience = TEST_TIMEOUT.as_secs().to_string();
    let mut python = Command::new("python3");
    python.args(["-c", RANK, gpu, &patience]).stdin(Stdio::piped()).stdout(Stdio::piped());
    python.env("PYTHONPATH", package).env("FARRIER_SOCKET", world.path("agent.sock"));
    let mut rank = Rank(python.spawn().unwrap());
    let mut said = BufReader::new(rank.0.stdout.take().unwrap()).lines();

    let status = agent.until(|status| status["jobs"][0]["step"] == 7);
    let job = &status["jobs"][0];
    assert_eq!((&job["job"], &job["phase"]), (&"4711".into(), &"train".into()), "{job:#}");
    assert_eq!((&job["loss"], &job["tokens_per_s"]), (&1.5.into(), &50.0.into()), "{job:#}");

    world.inject(&["--gpu", "1", "xid", "95"]);
    let heard = said.next().unwrap().unwrap();
    assert!(heard.starts_with("True 0 gpu.xid Xid 95") && heard.contains(gpu), "{heard}");
    assert_eq!(said.next().unwrap().unwrap(), "True 0 None");
    let status = agent.until(|status| status["jobs"][0]["checkpoint_step"] == 8);
    assert!(
        status["jobs"][0]["checkpoint_wanted_for"].to_string().contains("Xid 95"),
        "{status:#}"
    );

    drop(rank.0.stdin.take());
    agent.until(|status| !status["jobs"][0]["left"].is_null());
    assert!(rank.0.wait().unwrap().success());
    agent.stop();
}
