#!/usr/bin/env python3
"""Compares `farrier diag` with PyTorch on the same GPU, in alternation.

    diag.py FARRIER OUT [--rounds 5]

Each round runs the tests of `farrier diag` and then the same work in torch, in a separate process,
so that neither uses the GPU while the other measures. The table has medians over the rounds; the
ratios are computed per round. It changes no setting of the card.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

TESTS = ["pcie-to-gpu", "pcie-to-host", "hbm-copy", "gemm-bf16", "gemm-fp16", "gemm-tf32", "launch-stream", "launch-graph"]

TORCH = '''
import json, time, torch
GIB = 1 << 30

def timed(work, runs, repeats=9):
    found = []
    for repeat in range(repeats + 1):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(runs):
            work()
        end.record()
        torch.cuda.synchronize()
        if repeat:
            found.append(start.elapsed_time(end) / 1e3 / runs)
    return sorted(found)[len(found) // 2]

told = {}
host, gpu = torch.empty(GIB, dtype=torch.uint8, pin_memory=True), torch.empty(GIB, dtype=torch.uint8, device="cuda")
told["pcie-to-gpu"] = GIB / timed(lambda: gpu.copy_(host, non_blocking=True), 1) / 1e9
told["pcie-to-host"] = GIB / timed(lambda: host.copy_(gpu, non_blocking=True), 1) / 1e9
del host, gpu
a, b = torch.randint(0, 255, (4 * GIB,), dtype=torch.uint8, device="cuda"), torch.empty(4 * GIB, dtype=torch.uint8, device="cuda")
told["hbm-copy"] = 8 * GIB / timed(lambda: b.copy_(a), 8) / 1e9
del a, b
side = 8192
for name, kind in [("gemm-bf16", torch.bfloat16), ("gemm-fp16", torch.float16), ("gemm-tf32", torch.float32)]:
    torch.backends.cuda.matmul.allow_tf32 = True
    a, b = (((torch.rand(side, side, device="cuda") * 1.5 + 0.5) * (torch.randint(0, 2, (side, side), device="cuda") * 2 - 1)).to(kind) for _ in range(2))
    out = torch.empty(side, side, dtype=kind, device="cuda")
    told[name] = 2 * side**3 / timed(lambda: torch.mm(a, b.t(), out=out), 5) / 1e12
    del a, b, out
one = torch.zeros(1, device="cuda")

def launches(work, count):
    found = []
    for repeat in range(10):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        work()
        torch.cuda.synchronize()
        if repeat:
            found.append((time.perf_counter() - begun) / count * 1e6)
    return sorted(found)[len(found) // 2]

def thousand():
    for _ in range(1000):
        one.add_(1)

told["launch-stream"] = launches(thousand, 1000)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    thousand()
told["launch-graph"] = launches(graph.replay, 1000)
print(json.dumps(told))
'''


def diag(farrier, out):
    words = [farrier, "diag", "--level", "2", "--output", "json", "--history", os.path.join(out, "history")]
    for test in TESTS:
        words += ["--only", test]
    ran = subprocess.run(words, capture_output=True, text=True)
    if ran.returncode == 2:
        sys.exit(ran.stderr)
    report = json.loads(ran.stdout)
    return {row["test"]: row["value"] for row in report["gpus"][0]["tests"] if row["value"]}


def torch():
    return json.loads(subprocess.run([sys.executable, "-c", TORCH], capture_output=True, text=True, check=True).stdout)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("farrier")
    parser.add_argument("out")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    rounds = []
    for _ in range(args.rounds):
        rounds.append((diag(args.farrier, args.out), torch()))
    with open(os.path.join(args.out, "diag_beside_torch.json"), "w") as file:
        json.dump(rounds, file, indent=1)
    print("| test | farrier diag | torch | ratio, median (range) |\n|---|---|---|---|")
    for test in TESTS:
        pairs = [(ours[test], theirs[test]) for ours, theirs in rounds if test in ours]
        if not pairs:
            print(f"| {test} | not run | | |")
            continue
        ratios = sorted(ours / theirs for ours, theirs in pairs)
        ours, theirs = (statistics.median(side) for side in zip(*pairs))
        print(f"| {test} | {ours:.4g} | {theirs:.4g} | {statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f}) |")


main()
