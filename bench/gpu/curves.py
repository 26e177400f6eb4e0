#!/usr/bin/env python3
"""Compares the loss curves of a graph and of the eager step, from the same weights and batches.

    curves.py OUT [--model 191m] [--steps 300] [--case plain ...]

Each case has three runs: eager, eager again, and as a graph. The second eager run shows how much
two identical runs differ; the graph must not differ more. Cases: plain, dropout, accumulation (four
micro-batches per update), lengths (varying, padded to buckets by the step). In the case lengths,
the second eager run gets padded batches, because padding changes rounding and training amplifies
the difference. That case runs in float32, so that a wrong padding value is visible. The result of
each case is stored in OUT/curves_CASE.json, and a stored case is not run again. Needs torch, a GPU,
and `python/src` of this repository.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python" / "src"))

import torch

import farrier.torch
from farrier.bench.model import IGNORED, build
from farrier.torch import Lengths, Policy
from farrier.torch.batch import pad_batch

CASES = ("plain", "dropout", "accumulation", "lengths")


def batches(case, steps, vocabulary):
    """Tokens with a pattern to learn, so that the curve has a shape."""
    generator = torch.Generator().manual_seed(11)
    for step in range(steps):
        rows = 4 if case == "accumulation" else 1
        length = 129 + (step * 37) % 384 if case == "lengths" else 512
        start = torch.randint(0, vocabulary // 8, (rows, 1), generator=generator)
        noise = torch.randint(0, 3, (rows, length + 1), generator=generator)
        ids = (start + torch.arange(length + 1) + noise) % vocabulary
        yield {"ids": ids[:, :-1].contiguous().cuda(), "labels": ids[:, 1:].contiguous().cuda()}


def step_of(case, model, optimizer):
    def train(batch):
        optimizer.zero_grad(set_to_none=True)
        parts = 4 if case == "accumulation" else 1
        total = torch.zeros((), device="cuda")
        for ids, labels in zip(batch["ids"].chunk(parts), batch["labels"].chunk(parts), strict=True):
            loss = model(ids, labels) / parts
            loss.backward()
            total = total + loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return total

    return train


LENGTHS = Lengths(pad={"ids": 0, "labels": IGNORED})


def run(case, first, steps, *, graph=False, pad=False):
    model = copy.deepcopy(first)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    train = step_of(case, model, optimizer)
    if graph:
        lengths = LENGTHS if case == "lengths" else None
        policy = Policy(min_speedup=0.0, max_graphs=16)
        train = farrier.torch.step(train, model=model, optimizer=optimizer, lengths=lengths, policy=policy)
    torch.manual_seed(5)
    losses = []
    for batch in batches(case, steps, model.shape.vocabulary):
        losses.append(train(pad_batch(batch, LENGTHS) if pad else batch))
        scheduler.step()
    return torch.stack(losses).float().tolist(), getattr(train, "report", None)


def apart(a, b):
    """Returns the relative difference of two loss curves, over all steps."""
    distances = [abs(x - y) / abs(y) for x, y in zip(a, b, strict=True)]
    return {"median": statistics.median(distances), "largest": max(distances)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", default="191m")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--case", nargs="*", choices=CASES, default=CASES)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for case in args.case:
        path = args.out / f"curves_{case}.json"
        if not path.exists():
            dtype = torch.float32 if case == "lengths" else torch.bfloat16
            first = build(args.model, dtype=dtype, dropout=0.1 if case == "dropout" else 0.0)
            eager, _ = run(case, first, args.steps)
            again, _ = run(case, first, args.steps, pad=case == "lengths")
            graph, report = run(case, first, args.steps, graph=True)
            result = {
                "case": case,
                "model": args.model,
                "steps": args.steps,
                "gpu": torch.cuda.get_device_name(),
                "torch": torch.__version__,
                "eager": eager,
                "again": again,
                "dtype": str(dtype),
                "graph": graph,
                "eager_apart": apart(again, eager),
                "graph_apart": apart(graph, eager),
                "graph_and_again_apart": apart(graph, again),
                "replays": report.replays,
                "report": str(report),
            }
            path.write_text(json.dumps(result))
        found = json.loads(path.read_text())
        print(
            f"{case}: loss {found['eager'][0]:.3f} to {found['eager'][-1]:.3f}; graph differs by at most {found['graph_apart']['largest']:.1e}"
            f" (median {found['graph_apart']['median']:.1e}), two eager runs {found['eager_apart']['largest']:.1e}"
            f" (median {found['eager_apart']['median']:.1e}), graph and second eager run {found['graph_and_again_apart']['largest']:.1e};"
            f" {found['replays']} of {found['steps']} steps as a graph"
        )


if __name__ == "__main__":
    main()
