//! In a pipe: by NVML, by an agent, without either.

use std::fs;
use std::process::{Child, Stdio};

use serde_json::Value;

use crate::support::wait::wait_for;
use crate::support::{Ran, farrier, run};
use crate::terminal::Terminal;
use crate::world::{World, borrowed};

fn once(world: &World, more: &[&str]) -> Ran {
    let words = world.words(&[&["--once", "--interval", "0.2"], more].concat());
    run(&borrowed(&words))
}

#[test]
fn a_table_without_escape_codes_and_the_same_as_json() {
    let world = World::of(2);
    world.inject(&["throttle", "sw-power-cap", "--gpu", "1"]);
    world.inject(&["activity", "--nvlink-tx", "60e9", "--nvlink-rx", "60e9", "--gpu", "1"]);
    let ran = once(&world, &[]);
    assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
    assert!(!ran.stdout.contains('\x1b'));
    for part in ["NVIDIA H100 80GB HBM3", "500/700W", "power cap", "Slurm job 7411", "120G"] {
        assert!(ran.stdout.contains(part), "{part}: {}", ran.stdout);
    }
    assert!(
        ran.stdout.contains("GPU 1: the power limit of 700 W holds the clocks down, 500 W drawn")
    );
    assert_eq!(ran.stderr, "");

    let ran = once(&world, &["--output", "json"]);
    let told: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((&told["v"], &told["teller"]), (&1.into(), &"nvml".into()));
    assert_eq!(told["gpus"][1]["limit"]["kind"], "power-cap");
    assert_eq!(told["gpus"][1]["readings"]["gpu.power_w"]["value"], 500.0);
    assert_eq!(told["processes"][0]["job"], "Slurm job 7411.0");
    assert_eq!(told["gpus"][0]["links"]["up"], 18);
    assert_eq!(told["cuda"], "13.0");
}

#[test]
fn without_a_driver_or_a_library_it_says_so_and_what_to_do() {
    let world = World::of(1);
    let root = world.text("node/root");
    let words = ["top", "--once", "--nvml", "/nonexistent/libnvidia-ml.so.1", "--root", &root];
    let ran = run(&words);
    assert_eq!(ran.code, 1, "{}{}", ran.stdout, ran.stderr);
    assert!(ran.stdout.contains("there is no NVML: "), "{}", ran.stdout);
    assert!(ran.stdout.contains("try: farrier check"), "{}", ran.stdout);
    assert!(ran.stdout.contains(", GPUs not known, "), "{}", ran.stdout);
    assert!(ran.stdout.contains("processes: not known"), "{}", ran.stdout);

    world.inject(&["driver-unloaded"]);
    let ran = once(&world, &[]);
    assert_eq!(ran.code, 1);
    assert!(ran.stdout.contains("NVML_ERROR_DRIVER_NOT_LOADED"), "{}", ran.stdout);
    let json: Value = serde_json::from_str(&once(&world, &["--output", "json"]).stdout).unwrap();
    assert_eq!(json["processes"], Value::Null);
    assert!(json["silence"]["since"].is_string(), "{json:#}");
}

#[test]
fn a_library_without_a_gpu_is_a_node_without_a_gpu() {
    let world = World::of(1);
    fs::remove_file(world.path("node/gpus/0.json")).unwrap();
    let ran = once(&world, &[]);
    assert_eq!(ran.code, 0, "{}", ran.stdout);
    assert!(ran.stdout.contains("there is no NVIDIA GPU here"), "{}", ran.stdout);
    let told: Value = serde_json::from_str(&once(&world, &["--output", "json"]).stdout).unwrap();
    assert_eq!((&told["gpus"], &told["silence"]), (&Value::Array(Vec::new()), &Value::Null));
}

#[test]
fn a_gpu_that_was_lost_before_is_a_row_and_a_finding_and_blinds_no_other() {
    let world = World::of(3);
    world.inject(&["lost", "--gpu", "2"]);
    let ran = once(&world, &["--output", "json"]);
    let told: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(told["gpus"].as_array().unwrap().len(), 3, "{told:#}");
    assert_eq!(told["gpus"][2]["limit"]["kind"], "lost", "{told:#}");
    assert_eq!(told["not_seen"], Value::Array(Vec::new()));
    let found = told["findings"].as_array().unwrap();
    let lost = found.iter().find(|it| it["on"] == "GPU 2").unwrap();
    assert_eq!((&lost["severity"], &lost["action"]), (&"fatal".into(), &"reboot-node".into()));
    for gpu in 0..2 {
        for signal in ["gpu.pcie_transmit_bytes_per_s", "gpu.nvlink_transmit_bytes_per_s"] {
            let reading = &told["gpus"][gpu]["readings"][signal];
            assert!(reading["value"].is_number(), "GPU {gpu}, {signal}: {reading}");
        }
    }
    let ran = once(&world, &["--ascii"]);
    assert!(ran.stdout.contains("GPU 2: it fell off the bus"), "{}", ran.stdout);
    assert!(ran.stdout.is_ascii() && ran.stdout.contains("GPU 2 > reboot-node"), "{}", ran.stdout);
}

#[test]
fn flags_that_do_not_go_together_are_refused() {
    for words in [
        &["top", "--server", "--nvml"][..],
        &["top", "--output", "json"],
        &["top", "--interval", "0"],
        &["top", "--once", "--root", "/tmp"],
    ] {
        let ran = run(words);
        assert_eq!(ran.code, 2, "{words:?}: {}", ran.stdout);
    }
}

/// An agent that does not outlive its test.
struct Agent(Child);

impl Agent {
    fn start(world: &World) -> Self {
        let text = format!(
            "state_dir = {:?}\nlisten = \"off\"\nroot = {:?}\nnvml = {:?}\n[socket]\npath = {:?}\n",
            world.text("state"),
            world.text("node/root"),
            world.text("node/lib/libnvidia-ml.so.1"),
            world.text("agent.sock"),
        );
        fs::write(world.path("agent.toml"), text).unwrap();
        let log = fs::File::create(world.path("log")).unwrap();
        let mut command = farrier(&["agent", "--config", &world.text("agent.toml")]);
        Self(command.stdout(Stdio::null()).stderr(log).spawn().unwrap())
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn agent_words(world: &World) -> Vec<String> {
    let (socket, root) = (world.text("agent.sock"), world.text("node/root"));
    ["top", "--socket", &socket, "--root", &root].map(str::to_owned).to_vec()
}

#[test]
fn an_agent_tells_of_values_findings_and_jobs_and_of_its_own_end() {
    let world = World::of(2);
    world.inject(&["throttle", "sw-thermal", "--gpu", "0"]);
    let mut agent = Agent::start(&world);
    let words = agent_words(&world);
    let json = [&borrowed(&words)[..], &["--once", "--output", "json"]].concat();
    let told = wait_for(
        || run(&json).stdout,
        || {
            let told: Value = serde_json::from_str(&run(&json).stdout).unwrap();
            // Processes and limits come with a slower look than power.
            let is_whole = told["silence"].is_null()
                && told["processes"].as_array().is_some_and(|it| it.len() == 2)
                && told["gpus"][0]["links"]["up"] == 18;
            is_whole.then_some(told)
        },
    );
    assert_eq!(told["teller"], "agent");
    assert_eq!(told["gpus"][0]["limit"]["kind"], "sw-thermal");
    assert_eq!(told["processes"][0]["job"], "Slurm job 7411.0");
    assert!(told["findings"].is_array() && told["verdict"].is_string(), "{told:#}");

    world.inject(&["xid", "79", "--gpu", "1"]);
    let live = [&borrowed(&words)[..], &["--interval", "0.2"]].concat();
    let terminal = Terminal::run(&live, (100, 30));
    let text = terminal.until("found", |text| text.contains("fatal") && text.contains("GPU 1"));
    assert!(text.contains("by the agent"), "{text}");
    agent.0.kill().unwrap();
    agent.0.wait().unwrap();
    let text = terminal.until_shown("no answer for");
    let row = text.lines().find(|line| line.starts_with("  0 ")).unwrap();
    assert!(row.contains('?') && row.contains("unknown"), "what it said is not so any more: {row}");
    drop(terminal);
    let _again = Agent::start(&world);
}

#[test]
fn an_agent_that_is_not_there_is_said() {
    let world = World::of(1);
    let words = agent_words(&world);
    let ran = run(&[&borrowed(&words)[..], &["--once"]].concat());
    assert_eq!(ran.code, 1);
    assert!(ran.stdout.contains("no agent is at `"), "{}", ran.stdout);
}
