//! `cargo xtask picture top`: screenshots and a recording of `farrier top` on a simulated node
//! under load.
//!
//! ```text
//! farrier simulate inject, repeatedly ─> node ─> farrier top in tmux ─┬─ capture-pane ─> SVG
//!                                                                     └─ pipe-pane ────> asciicast
//! ```

mod cast;
mod svg;

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::shell::{cargo, command, print_status, root, run};
use cast::Recording;

/// Name of a separate tmux socket, so that other tmux sessions are not affected.
const SOCKET: &str = "farrier-picture";

const WINDOW: &str = "top";

/// How long the load runs before a screenshot: long enough to fill the charts.
const LOAD_TIME: Duration = Duration::from_secs(34);

const GPUS: u32 = 8;

/// Draws `docs/top_80x24.svg`, `docs/top_wide.svg` and `docs/top_gpu.svg`, and records
/// `docs/top.cast`.
pub(crate) fn top() -> anyhow::Result<()> {
    cargo(&["build", "--quiet", "--locked", "-p", "farrier", "-p", "farrier-nvml-sim"])?;
    let node = DemoNode::create()?;
    let docs = root().join("docs");
    node.prepare()?;
    let narrow = node.show((80, 24))?;
    let mut cast = Recording::begin(&narrow, (80, 24))?;
    node.simulate_load(LOAD_TIME / 2, &mut cast)?;
    node.inject(&["lost", "--gpu", "7"])?;
    node.simulate_load(LOAD_TIME / 2, &mut cast)?;
    fs::write(docs.join("top_80x24.svg"), svg::render(&narrow.screen()?, (80, 24)))?;
    narrow.keys(&["Down", "Down", "Down", "Enter"])?;
    node.simulate_load(Duration::from_secs(4), &mut cast)?;
    fs::write(docs.join("top_gpu.svg"), svg::render(&narrow.screen()?, (80, 24)))?;
    narrow.keys(&["Escape", "s", "s"])?;
    node.simulate_load(Duration::from_secs(3), &mut cast)?;
    fs::write(docs.join("top.cast"), cast.end()?)?;
    narrow.end()?;
    node.inject(&["clear", "--gpu", "7"])?;
    let wide = node.show((150, 40))?;
    let mut discarded = Recording::begin(&wide, (150, 40))?;
    node.simulate_load(LOAD_TIME / 2, &mut discarded)?;
    node.inject(&["lost", "--gpu", "7"])?;
    node.simulate_load(LOAD_TIME / 2, &mut discarded)?;
    fs::write(docs.join("top_wide.svg"), svg::render(&wide.screen()?, (150, 40)))?;
    wide.end()?;
    print_status("wrote docs/top_80x24.svg, docs/top_gpu.svg, docs/top_wide.svg, docs/top.cast");
    Ok(())
}

struct DemoNode {
    folder: PathBuf,
    farrier: PathBuf,
}

impl DemoNode {
    fn create() -> anyhow::Result<Self> {
        let folder = root().join("target/picture");
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        fs::create_dir_all(&folder)?;
        let node = Self { folder, farrier: root().join("target/debug/farrier") };
        let mut make = command(&node.farrier);
        make.args(["simulate", "node"]).arg(node.folder.join("node")).stdout(Stdio::null());
        let count = GPUS.to_string();
        run(make.args(["--sku", "H100-SXM5-80GB", "--gpus", &count]), "farrier simulate node")?;
        Ok(node)
    }

    fn inject(&self, args: &[&str]) -> anyhow::Result<()> {
        let mut inject = command(&self.farrier);
        inject.args(["simulate", "inject"]).arg(self.folder.join("node")).args(args);
        let status = inject.stdout(Stdio::null()).status()?;
        if !status.success() {
            bail!("`farrier simulate inject {}` failed", args.join(" "));
        }
        Ok(())
    }

    /// A training job on six GPUs, one of them at its power limit and one hot, and an inference
    /// server on the seventh. The caller later simulates the loss of the eighth GPU.
    fn prepare(&self) -> anyhow::Result<()> {
        for gpu in 0..6 {
            let (gpu, pid) = (gpu.to_string(), (4000 + gpu).to_string());
            let job = "/system.slice/slurmstepd.scope/job_7411/step_0/user/task_0";
            let process = ["process", &pid, "--memory-mib", "69000", "--sm", "93", "--gpu", &gpu];
            let command = "python3 train.py --config llama-8b.yaml";
            self.inject(&[&process[..], &["--command", command, "--cgroup", job]].concat())?;
        }
        let server = ["process", "5100", "--memory-mib", "61000", "--sm", "22", "--gpu", "6"];
        let service = ["--command", "vllm serve", "--cgroup", "/system.slice/vllm.service"];
        self.inject(&[&server[..], &service].concat())?;
        self.inject(&["throttle", "sw-power-cap", "--gpu", "2"])?;
        self.inject(&["throttle", "sw-thermal", "--gpu", "4"])?;
        self.inject(&["temperature", "86", "--memory", "94", "--gpu", "4"])?;
        fs::write(self.folder.join("node/root/etc/passwd"), "ann:x:0:0::/home/ann:/bin/sh\n")?;
        Ok(())
    }

    /// Varies the load in waves, as a training job does, and records the screen.
    fn simulate_load(&self, time: Duration, cast: &mut Recording) -> anyhow::Result<()> {
        let started = Instant::now();
        while started.elapsed() < time {
            let moment = cast.elapsed().as_secs();
            for gpu in 0..7_u64 {
                let wave = (moment + 3 * gpu) % 11;
                // Occasional pauses, as for checkpoints.
                let idle = wave > 8 || gpu == 6 && wave.is_multiple_of(2);
                let number = gpu.to_string();
                let watts = if idle { 240 } else { 560 + wave * 14 };
                self.inject(&["power", &watts.min(700).to_string(), "--gpu", &number])?;
                let busy = match (gpu, idle) {
                    (6, _) => 30 + wave * 3,
                    (_, true) => 35,
                    (_, false) => 99,
                };
                self.inject(&["utilisation", &busy.to_string(), "--gpu", &number])?;
                let sm = format!("0.{}", if idle { 24 } else { 70 + wave * 3 });
                let links = format!("{}e9", if gpu == 6 { 0 } else { 40 + wave * 18 });
                let host = format!("{}e8", 4 + wave * 6);
                let activity = ["activity", "--sm", &sm, "--tensor", "0.55", "--dram", "0.61"];
                let traffic = ["--nvlink-tx", &links, "--nvlink-rx", &links];
                let bus = ["--pcie-tx", "1e9", "--pcie-rx", &host, "--gpu", &number];
                self.inject(&[&activity[..], &traffic, &bus].concat())?;
            }
            cast.record_output()?;
        }
        Ok(())
    }

    fn show(&self, (width, height): (u16, u16)) -> anyhow::Result<TmuxWindow> {
        let node = self.folder.join("node");
        let line = format!(
            "sleep 1; exec {} top --nvml {}/lib/libnvidia-ml.so.1 --root {}/root",
            self.farrier.display(),
            node.display(),
            node.display()
        );
        let (width, height) = (width.to_string(), height.to_string());
        let mut tmux = tmux();
        tmux.args(["new-session", "-d", "-s", WINDOW, "-x", &width, "-y", &height, &line]);
        // The user's colour settings must not change the pictures.
        tmux.env_remove("NO_COLOR").env("TERM", "xterm-256color");
        run(&mut tmux, "tmux new-session").context("tmux is required: `apt-get install tmux`")?;
        Ok(TmuxWindow { name: WINDOW, output: self.folder.join("output") })
    }
}

fn tmux() -> std::process::Command {
    let mut tmux = command("tmux");
    tmux.args(["-L", SOCKET, "-f", "/dev/null"]);
    tmux
}

struct TmuxWindow {
    name: &'static str,
    output: PathBuf,
}

impl TmuxWindow {
    fn keys(&self, keys: &[&str]) -> anyhow::Result<()> {
        run(tmux().args(["send-keys", "-t", self.name]).args(keys), "tmux send-keys")
    }

    /// The screen content with colours.
    fn screen(&self) -> anyhow::Result<String> {
        let output = tmux().args(["capture-pane", "-e", "-p", "-t", self.name]).output()?;
        Ok(String::from_utf8(output.stdout)?)
    }

    fn end(self) -> anyhow::Result<()> {
        run(tmux().args(["kill-session", "-t", self.name]), "tmux kill-session")
    }
}
