//! The Python client of the job socket (`python/src/farrier/agent.py`), against a complete agent.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::agent_node::AgentNode;
use crate::support::wait::TEST_TIMEOUT;

/// A rank that reports a step, waits for a checkpoint request, reports that the checkpoint is done,
/// and exits when stdin ends.
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

/// A process that is killed at the end of its test.
struct Rank(Child);

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether a Python version that the package supports is installed. With `CI=true`, the test fails
/// if it is missing.
fn has_python() -> bool {
    let version_check = "import sys; sys.exit(sys.version_info < (3, 10))";
    let has_python = Command::new("python3")
        .args(["-c", version_check])
        .status()
        .is_ok_and(|status| status.success());
    let on_ci = std::env::var("CI").is_ok_and(|value| value == "true");
    assert!(has_python || !on_ci, "CI requires Python 3.10 or newer");
    if !has_python {
        eprintln!("SKIPPED: Python 3.10 or newer is not installed");
    }
    has_python
}

#[test]
fn the_python_client_reports_steps_and_gets_checkpoint_requests() {
    if !has_python() {
        return;
    }
    let agent_node = AgentNode::with_gpus(2);
    let agent = agent_node.agent().ready();
    let (status, _) = agent_node.status();
    let gpu = status["gpus"][1]["identity"]["uuid"].as_str().unwrap();
    // PyTorch writes UUIDs without the `GPU-` prefix.
    let gpu = gpu.trim_start_matches("GPU-");
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/src");
    let timeout_s = TEST_TIMEOUT.as_secs().to_string();
    let mut python = Command::new("python3");
    python.args(["-c", RANK, gpu, &timeout_s]).stdin(Stdio::piped()).stdout(Stdio::piped());
    python.env("PYTHONPATH", package).env("FARRIER_SOCKET", agent_node.path("agent.sock"));
    let mut rank = Rank(python.spawn().unwrap());
    let mut lines = BufReader::new(rank.0.stdout.take().unwrap()).lines();

    let status = agent.until(|status| status["jobs"][0]["step"] == 7);
    let job = &status["jobs"][0];
    assert_eq!((&job["job"], &job["phase"]), (&"4711".into(), &"train".into()), "{job:#}");
    assert_eq!((&job["loss"], &job["tokens_per_s"]), (&1.5.into(), &50.0.into()), "{job:#}");

    agent_node.inject(&["--gpu", "1", "xid", "95"]);
    let line = lines.next().unwrap().unwrap();
    assert!(line.starts_with("True 0 gpu.xid Xid 95") && line.contains(gpu), "{line}");
    assert_eq!(lines.next().unwrap().unwrap(), "True 0 None");
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
