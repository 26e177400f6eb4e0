#!/usr/bin/env python3
"""Measures the agent on a real GPU: its cost, its latency, and its effect on a training step.

    agent.py tiers FARRIER OUT                  CPU time of each tier of the probe, at the agent's intervals
    agent.py eight FARRIER OUT                  CPU time of the agent by thread, with eight simulated GPUs
    agent.py watch FARRIER OUT --seconds 600    cost of agent and probe, idle and under load; latency from
                                                kernel log line to finding; status and metrics
    agent.py step  FARRIER OUT --pairs 30       a training step with and without the agent, alternating
    agent.py quiet FARRIER OUT --seconds 480    the findings that the agent reports on a healthy idle GPU;
                                                --busy trains meanwhile. Exit code 1 if there is a fault

It needs torch, a GPU, and root to write lines to /dev/kmsg, which the agent must detect. It changes
no setting of the card.
"""
import argparse
import fcntl
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

TICKS = os.sysconf("SC_CLK_TCK")
LISTEN = "127.0.0.1:19402"


def processes_of(pid):
    """The agent and its children."""
    found = [pid]
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as file:
                    if int(file.read().rsplit(")", 1)[1].split()[1]) == pid:
                        found.append(int(name))
            except (OSError, IndexError):
                pass
    return found


def cpu_s(pid):
    """CPU time from the scheduler's nanosecond counter, which is more precise than clock ticks."""
    total = 0
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/schedstat") as file:
                total += int(file.read().split()[0])
    except OSError:
        pass
    return total / 1e9


def rss_kib(pid):
    try:
        with open(f"/proc/{pid}/status") as file:
            for line in file:
                if line.startswith("VmRSS"):
                    return int(line.split()[1])
    except OSError:
        pass
    return 0


def by_thread(pid):
    """CPU time of each thread, in seconds."""
    found = {}
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/comm") as name, open(f"/proc/{pid}/task/{task}/schedstat") as file:
            key = name.read().strip()
            found[key] = found.get(key, 0) + int(file.read().split()[0]) / 1e9
    return found


def pss_kib(pid):
    """Memory with shared pages divided among processes, because agent and probe share a binary."""
    with open(f"/proc/{pid}/smaps_rollup") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Pss:"))


def scrape():
    with urllib.request.urlopen(f"http://{LISTEN}/metrics", timeout=5) as answer:
        answer.read()


class Agent:
    """A running agent with its own directory."""

    def __init__(self, farrier, *words):
        self.folder = tempfile.mkdtemp(prefix="farrier-bench-")
        self.sink = os.path.join(self.folder, "sink.jsonl")
        self.socket = os.path.join(self.folder, "agent.sock")
        config = os.path.join(self.folder, "agent.toml")
        with open(config, "w") as file:
            file.write(f'state_dir = "{self.folder}/state"\nlisten = "{LISTEN}"\n[socket]\npath = "{self.socket}"\n[sink]\nfile = "{self.sink}"\n')
        self.log = open(os.path.join(self.folder, "log"), "wb")
        self.process = subprocess.Popen([farrier, "agent", "--config", config, *words], stdout=self.log, stderr=self.log)
        for _ in range(100):
            if os.path.exists(self.socket):
                break
            time.sleep(0.1)
        time.sleep(3)

    def pids(self):
        return processes_of(self.process.pid)

    def cost(self):
        return {pid: cpu_s(pid) for pid in self.pids()}

    def stop(self):
        self.process.terminate()
        self.process.wait(20)


def status(farrier, agent):
    shown = subprocess.run([farrier, "status", "--socket", agent.socket, "--output", "json"], capture_output=True, text=True)
    return json.loads(shown.stdout)


def load(seconds):
    """Keeps the GPU busy as a training step does."""
    return subprocess.Popen(
        [sys.executable, "-c", "import time, torch\n"
         "a = torch.randn(8192, 8192, device='cuda', dtype=torch.bfloat16)\n"
         f"end = time.time() + {seconds}\n"
         "while time.time() < end:\n    for _ in range(100): b = a @ a\n    torch.cuda.synchronize()\n"])


def measure(agent, seconds):
    """Returns CPU milliseconds per second of agent and probe, with a scrape every 15 s."""
    main = agent.process.pid
    before, threads, start = agent.cost(), by_thread(main), time.monotonic()
    while (left := start + seconds - time.monotonic()) > 0:
        time.sleep(min(left, 15))
        scrape()
    after, ended, elapsed = agent.cost(), by_thread(main), time.monotonic() - start
    of = lambda pids: 1000 * sum(after.get(pid, 0) - before.get(pid, 0) for pid in pids) / elapsed
    children = [pid for pid in after if pid != main]
    return {"seconds": round(elapsed, 1), "agent_ms_per_s": of([main]), "probe_ms_per_s": of(children),
            "threads_ms_per_s": {name: 1000 * (value - threads.get(name, 0)) / elapsed for name, value in ended.items()},
            "pss_kib": sum(pss_kib(pid) for pid in after), "agent_rss_kib": rss_kib(main), "probe_rss_kib": sum(rss_kib(pid) for pid in children)}


def latency(agent, trials, address):
    """Measures the time from writing a kernel log line until its finding is in the sink.

    The agent writes the sink after the journal's fsync.
    """
    times = []
    for trial in range(trials):
        size = os.path.getsize(agent.sink) if os.path.exists(agent.sink) else 0
        # Each line has a different, undefined Xid, so that each opens its own finding.
        line = f"NVRM: Xid (PCI:{address}): {900 + trial}, pid=1, name=bench, written by bench/gpu/agent.py\n"
        start = time.monotonic()
        with open("/dev/kmsg", "w") as file:
            file.write(line)
        while time.monotonic() < start + 5:
            if os.path.exists(agent.sink) and os.path.getsize(agent.sink) > size:
                times.append(1000 * (time.monotonic() - start))
                break
            time.sleep(0.0005)
        time.sleep(0.05)
    times.sort()
    if not times:
        return {"trials": trials, "found": 0}
    return {"trials": trials, "found": len(times), "p50_ms": times[len(times) // 2],
            "p99_ms": times[min(len(times) - 1, int(len(times) * 0.99))], "max_ms": times[-1]}


def gpu_address():
    text = subprocess.run(["nvidia-smi", "--query-gpu=pci.bus_id", "--format=csv,noheader"], capture_output=True, text=True).stdout
    return text.splitlines()[0].strip()[4:].lower().split(".")[0]


class Probe:
    """The agent's probe process, run directly. Its responses contain the CPU time that it used."""

    def __init__(self, farrier, first):
        # The probe writes the name of each call here, as under the agent
        # (`crates/hardware/src/nvml/watch/current_call.rs`).
        note = os.memfd_create("probe-call", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.truncate(note, 64 + 4096)
        fcntl.fcntl(note, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
        self.process = subprocess.Popen([farrier, "probe", "watch"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=note, text=True)
        self.costs, self.memory = {}, {}
        self.ask(first, "first inventory")

    def ask(self, request, kind=None):
        self.process.stdin.write(request + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        self.costs.setdefault(kind or request, []).append(answer["cpu_us"])
        with open(f"/proc/{self.process.pid}/maps") as file:
            self.memory[kind or request] = {"rss_kib": rss_kib(self.process.pid), "libcuda": "libcuda" in file.read()}


def tiers(args):
    """Measures the CPU time of each tier of the probe, at the agent's intervals.

    A second probe runs at the same times without GPU calls. Its time (waking up, polling for
    events, responding) is the fixed part, which does not depend on the number of GPUs.
    """
    probe, bare = Probe(args.farrier, "inventory"), Probe(args.farrier, 'inventory {"avoided": [0]}')
    for tier in ("fast", "medium", "slow", "rare"):
        probe.ask(tier, "first " + tier)
        bare.ask(tier, "first " + tier)

    def ask(tier, kind=None):
        probe.ask(tier, kind)
        bare.ask(tier, kind)

    start = time.monotonic()
    for second in range(1, 122):
        ask("fast")
        if second % 10 == 0:
            ask("medium", "medium, with GPM and held times" if second % 30 == 0 else "medium")
        if second % 60 == 0:
            ask("slow")
        time.sleep(max(0, start + second - time.monotonic()))
    ask("rare")
    # Every fifth slow read after the first also reads the energy. Here that is the sixth.
    for kind in ("slow at once", "slow at once", "slow, with the energy"):
        ask("slow", kind)
    result = {"began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "cpu_us": probe.costs, "bare_cpu_us": bare.costs, "memory": probe.memory}
    with open(os.path.join(args.out, "tiers.json"), "w") as file:
        json.dump(result, file, indent=1)
    for kind, values in probe.costs.items():
        one, once = statistics.median(values), statistics.median(bare.costs[kind])
        print(f"{kind}: median {one} us of {len(values)}, {once} us of them once, {once + 8 * max(0, one - once)} us for eight; {probe.memory[kind]}")
    for each in (probe, bare):
        each.process.stdin.close()


def eight(args):
    """Measures the agent with eight simulated GPUs.

    The cost of the health monitor depends on the number of GPUs, not on the driver.
    """
    folder = tempfile.mkdtemp(prefix="farrier-eight-")
    subprocess.run([args.farrier, "simulate", "node", folder + "/node", "--sku", "H200-SXM5-141GB", "--gpus", "8"], check=True)
    agent = Agent(args.farrier, "--root", folder + "/node/root", "--nvml", folder + "/node/lib/libnvidia-ml.so.1")
    time.sleep(5)
    result = measure(agent, 61)
    agent.stop()
    with open(os.path.join(args.out, "eight.json"), "w") as file:
        json.dump(result, file, indent=1)
    print(json.dumps(result, indent=1))


def watch(args):
    agent = Agent(args.farrier)
    result = {"began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "machine": os.uname().release}
    third = args.seconds / 3
    time.sleep(5)
    result["idle"] = measure(agent, third)
    worker = load(third + 40)
    time.sleep(20)
    result["loaded"] = measure(agent, third)
    for name, path in (("metrics.txt", "/metrics"), ("healthz.txt", "/healthz")):
        try:
            with urllib.request.urlopen(f"http://{LISTEN}{path}", timeout=5) as answer:
                text = answer.read()
        except urllib.error.HTTPError as err:
            text = f"{err.code}\n".encode() + err.read()
        with open(os.path.join(args.out, name), "wb") as file:
            file.write(text)
    for name, words in (("status.txt", []), ("status.json", ["--output", "json"])):
        shown = subprocess.run([args.farrier, "status", "--socket", agent.socket, *words], capture_output=True)
        with open(os.path.join(args.out, name), "wb") as file:
            file.write(shown.stdout + shown.stderr)
    worker.wait()
    result["latency"] = latency(agent, 200, gpu_address())
    left = args.seconds - third * 2 - 90
    if left > 0:
        time.sleep(left)
    result["end"] = measure(agent, 10)
    result["ended"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    agent.stop()
    for name in ("log", "sink.jsonl"):
        path = os.path.join(agent.folder, name)
        if os.path.exists(path):
            with open(path, "rb") as source, open(os.path.join(args.out, name), "wb") as copy:
                copy.write(source.read())
    with open(os.path.join(args.out, "watch.json"), "w") as file:
        json.dump(result, file, indent=1)
    print(json.dumps(result, indent=1))


def step(args):
    """Times blocks of training steps with the agent running, and with agent and probe stopped.

    SIGSTOP stops them. The order within a pair of blocks alternates.
    """
    import torch

    torch.manual_seed(0)
    width, layers, batch = 2048, 8, 8
    layer = torch.nn.TransformerEncoderLayer(width, 16, 4 * width, batch_first=True, device="cuda", dtype=torch.bfloat16)
    model = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).cuda().to(torch.bfloat16)
    optimiser = torch.optim.AdamW(model.parameters(), fused=True)
    data = torch.randn(batch, 1024, width, device="cuda", dtype=torch.bfloat16)

    def steps(seconds):
        times, end = [], time.monotonic() + seconds
        while time.monotonic() < end:
            start = time.perf_counter()
            for _ in range(4):
                optimiser.zero_grad(set_to_none=True)
                model(data).float().square().mean().backward()
                optimiser.step()
            torch.cuda.synchronize()
            times.append((time.perf_counter() - start) / 4)
        return statistics.fmean(times)

    steps(20)
    agent = Agent(args.farrier)
    steps(5)
    send = lambda what: [os.kill(pid, what) for pid in agent.pids()]
    ratios, with_agent, without = [], [], []
    for pair in range(args.pairs):
        took = {}
        for running in ((True, False) if pair % 2 else (False, True)):
            send(signal.SIGCONT if running else signal.SIGSTOP)
            time.sleep(0.2)
            took[running] = steps(args.block_s)
        send(signal.SIGCONT)
        ratios.append(took[True] / took[False])
        with_agent.append(took[True])
        without.append(took[False])
    agent.stop()
    ratios.sort()
    spread = statistics.stdev(ratios) / len(ratios) ** 0.5
    result = {"began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "pairs": args.pairs, "block_s": args.block_s,
              "step_ms_with": 1000 * statistics.median(with_agent), "step_ms_without": 1000 * statistics.median(without),
              "ratio_median": statistics.median(ratios), "ratio_mean": statistics.fmean(ratios), "standard_error": spread,
              "ratios": ratios}
    with open(os.path.join(args.out, "step.json"), "w") as file:
        json.dump(result, file, indent=1)
    print(json.dumps({key: value for key, value in result.items() if key != "ratios"}, indent=1))


def quiet(args):
    """Watches a healthy GPU and lists what the agent reports. A fault here is a false alarm."""
    agent = Agent(args.farrier)
    worker = load(args.seconds) if args.busy else None
    verdicts, readings = [], {}
    start = time.monotonic()
    while (left := start + args.seconds - time.monotonic()) > 0:
        time.sleep(min(left, 10))
        shown = status(args.farrier, agent)
        verdicts.append(shown["verdict"])
        query = subprocess.run(["nvidia-smi", "--query-gpu=utilization.gpu,power.draw,temperature.gpu", "--format=csv,noheader,nounits"],
                               capture_output=True, text=True).stdout.splitlines()[0]
        for name, value in zip(("utilisation_percent", "power_w", "temperature_c"), query.split(",")):
            readings.setdefault(name, []).append(float(value))
    final = status(args.farrier, agent)
    if worker:
        worker.kill()
    agent.stop()
    opened = []
    if os.path.exists(agent.sink):
        with open(agent.sink) as file:
            changes = [json.loads(line).get("change", {}) for line in file]
        opened = [change["opened"] for change in changes if "opened" in change]
    faults = [finding for finding in opened if finding["kind"] == "fault"]
    result = {"began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - args.seconds)), "seconds": args.seconds,
              "busy": args.busy, "verdicts": {verdict: verdicts.count(verdict) for verdict in set(verdicts)},
              "gpu": {name: [min(values), statistics.median(values), max(values)] for name, values in readings.items()},
              "findings": opened, "status": final}
    name = "quiet_busy.json" if args.busy else "quiet_idle.json"
    with open(os.path.join(args.out, name), "w") as file:
        json.dump(result, file, indent=1)
    print(json.dumps({key: value for key, value in result.items() if key != "status"}, indent=1))
    return 1 if faults else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("tiers", "eight", "watch", "step", "quiet"))
    parser.add_argument("farrier")
    parser.add_argument("out")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("--block-s", type=float, default=4)
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    sys.exit({"tiers": tiers, "eight": eight, "watch": watch, "step": step, "quiet": quiet}[args.what](args))


if __name__ == "__main__":
    main()
