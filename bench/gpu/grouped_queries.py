#!/usr/bin/env python3
"""Tests graphs of models with grouped-query attention: their speed, and noise versus real errors.

    grouped_queries.py OUT [--models llama qwen mistral gemma] [--rounds 6] [--steps 20]

For each model (grouped_query_models.py):

- check: one run with a comparison at every fifth step, so that a false rejection of the correct
  graph would show; and two runs whose captured graph scales one gradient by 1.01, a noisy gradient
  in one run and a quiet gradient in the other. All models are checked at the same time, each in its
  own process.
- speed: eager, torch.compile, torch.compile(mode="reduce-overhead") and
  farrier.torch.step(compile=True) with its default policy, all in one process and with no other
  load on the GPU. Each round times a group of steps of every variant, and starts with a different
  variant.

Writes one JSON file for each part and prints a Markdown table. Needs torch, a GPU, and `python/src` of this repository.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python" / "src"))

VARIANTS = ("eager", "compile", "reduce-overhead", "farrier")
#: The gradients that are scaled. The noisy one is in the first layer, where the noise of all layers
#: accumulates. The quiet one precedes all attention in the backward pass.
NOISY, QUIET = "blocks.0.attention.k.weight", "norm.weight"
INJECTED = 1.01
CHECK_STEPS, CHECK_EVERY = 150, 5
WARM_UP_STEPS = 40
GOAL = 0.98


def made(name: str, variant: str, scaled: str | None = None, policy: Any = None) -> tuple[Any, list[Any]]:
    """Returns the step in one variant, and batches. The captured graph scales gradient `scaled`."""
    import grouped_query_models as models
    import torch

    import farrier.torch

    model = models.build(name)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    batches = models.batches(model.shape, 8)
    if variant == "eager":
        return models.training_step(model, optimizer), batches
    if variant in ("compile", "reduce-overhead"):
        mode = None if variant == "compile" else variant
        return models.training_step(model, optimizer, torch.compile(model, mode=mode)), batches
    parameter = None if scaled is None else model.get_parameter(scaled)

    def before_update() -> None:
        if parameter is not None and torch.cuda.is_current_stream_capturing():
            parameter.grad.mul_(INJECTED)

    train = models.training_step(model, optimizer, before_update=before_update)
    return farrier.torch.step(train, model=model, optimizer=optimizer, compile=True, policy=policy), batches


def outcome(step: Any) -> dict[str, Any]:
    """The parts of a step's report that are stored."""
    report, last = step.report, step.report.last_comparison
    return {
        "report": str(report),
        "graphed": step.graphed,
        "code": None if report.reason is None else report.reason.code.value,
        "wrong": [] if last is None else [{"kind": each.kind.value, "name": each.name} for each in last.mismatches],
        "replays": report.replays,
        "verified": report.verified,
        "verified_s": report.verified_s,
        "eager_runs": report.eager_runs,
        "noise": report.noise,
    }


def check(name: str) -> dict[str, Any]:
    """Runs a correct graph with frequent comparisons, and two wrong graphs."""
    import torch

    from farrier.torch.graph_policy import Policy

    found: dict[str, Any] = {"model": name}
    often = Policy(min_speedup=0.0, profile=False, verify_every=CHECK_EVERY)
    for kind, scaled in (("right", None), ("noisy", NOISY), ("quiet", QUIET)):
        torch._dynamo.reset()
        step, batches = made(name, "farrier", scaled, often)
        for i in range(CHECK_STEPS if scaled is None else 8):
            step(batches[i % len(batches)])
        found[kind] = outcome(step) | {"scaled": scaled}
        if scaled is None and step.graphed:
            (graph,) = step._graph_runner._graphs._entries.values()
            found["spread"] = {each: noise.spread for each, noise in (graph.noise_history or {}).items()}
        step.close()
        del step, batches
        torch.cuda.empty_cache()
    # Fill the compile cache for the timed runs.
    step, batches = made(name, "reduce-overhead")
    for i in range(4):
        step(batches[i])
    torch.cuda.synchronize()
    return found


def speed(name: str, rounds: int, count: int) -> dict[str, Any]:
    """Times groups of steps of all variants, alternating."""
    import grouped_query_models as models
    import torch

    steps, ready_s = {}, {}
    for variant in VARIANTS:
        began = time.perf_counter()
        steps[variant], batches = made(name, variant)
        for i in range(WARM_UP_STEPS):
            steps[variant](batches[i % len(batches)])
        torch.cuda.synchronize()
        ready_s[variant] = time.perf_counter() - began
    shape = models.MODELS[name]
    tokens = shape.rows * shape.length * count
    rates: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
    compared: list[int] = []
    for number in range(rounds):
        for variant in VARIANTS[number % 4 :] + VARIANTS[: number % 4]:
            before = steps["farrier"].report.verified
            torch.cuda.synchronize()
            began = time.perf_counter()
            for i in range(count):
                steps[variant](batches[i % len(batches)])
            torch.cuda.synchronize()
            rates[variant].append(tokens / (time.perf_counter() - began))
            if variant == "farrier":
                compared.append(steps["farrier"].report.verified - before)
    schedule = steps["farrier"].report.schedule
    return {
        "model": name,
        "rates": rates,
        "compared": compared,
        "ready_s": ready_s,
        "share": None if schedule is None else schedule.cost_share,
        "interval": None if schedule is None else schedule.interval,
        "farrier": outcome(steps["farrier"]),
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "reserved_gib": torch.cuda.max_memory_reserved() / 2**30,
    }


def ratios(found: dict[str, Any], other: str) -> list[float]:
    """Ratio of Farrier's speed to another variant's, for each round without a comparison."""
    pairs = zip(found["rates"]["farrier"], found["rates"][other], found["compared"], strict=True)
    return [mine / its for mine, its, compared in pairs if not compared]


def spread(values: list[float], digits: int = 0) -> str:
    return f"{statistics.median(values):,.{digits}f} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"


def table(out: Path, models: list[str]) -> None:
    speeds = {name: json.loads((out / f"speed_{name}.json").read_text()) for name in models if (out / f"speed_{name}.json").exists()}
    checks = {name: json.loads((out / f"check_{name}.json").read_text()) for name in models if (out / f"check_{name}.json").exists()}
    print(f"| tokens/s, median (range of rounds) | {' | '.join(VARIANTS)} | farrier / reduce-overhead | comparisons in a long run |")
    print("|---|" + "---|" * (len(VARIANTS) + 2))
    for name, found in speeds.items():
        quiet = [rate for rate, compared in zip(found["rates"]["farrier"], found["compared"], strict=True) if not compared]
        cells = [spread(quiet if variant == "farrier" else found["rates"][variant]) for variant in VARIANTS]
        share = "unknown" if found["share"] is None else f"{100 * found['share']:.2f} % (one in {found['interval']:,})"
        print(f"| {name} | {' | '.join(cells)} | {spread(ratios(found, 'reduce-overhead'), 3)} | {share} |")
    print("\n| model | graph | comparisons passed | eager runs | noise | noise, noisy gradient | noise, quiet gradient | 1 % error, noisy gradient | 1 % error, quiet gradient |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name, found in checks.items():
        right, spreads = found["right"], found.get("spread", {})
        told = []
        for kind, scaled in (("noisy", NOISY), ("quiet", QUIET)):
            names = {each["name"] for each in found[kind]["wrong"]}
            kinds = ", ".join(sorted({each["kind"] for each in found[kind]["wrong"]}))
            told.append(f"found ({kinds})" if names == {scaled} and found[kind]["code"] == "graph-differs" else f"NOT FOUND {names}")
        sizes = [f"{spreads[each]:.1e}" if each in spreads else "0" for each in (NOISY, QUIET)]
        kept = "used" if right["graphed"] else f"refused: {right['code']}"
        print(f"| {name} | {kept} | {right['verified']} | {right['eager_runs']} | {right['noise']:.1e} | {sizes[0]} | {sizes[1]} | {' | '.join(told)} |")
    for name, found in speeds.items():
        print(f"\n{name}, ready after {', '.join(f'{variant} {s:.0f} s' for variant, s in found['ready_s'].items())}\n{found['farrier']['report']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--models", nargs="+", default=["llama", "qwen", "mistral", "gemma"])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--part", choices=["check", "speed"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.part is not None:
        (name,) = args.models
        found = check(name) if args.part == "check" else speed(name, args.rounds, args.steps)
        (args.out / f"{args.part}_{name}.json").write_text(json.dumps(found))
        return
    words = [sys.executable, __file__, str(args.out), "--rounds", str(args.rounds), "--steps", str(args.steps)]
    parts = [subprocess.Popen([*words, "--part", "check", "--models", name]) for name in args.models]
    failed = [part.wait() for part in parts]
    for name in args.models:
        failed.append(subprocess.run([*words, "--part", "speed", "--models", name]).returncode)
    table(args.out, args.models)
    sys.exit(any(failed))


if __name__ == "__main__":
    main()
