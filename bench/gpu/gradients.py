#!/usr/bin/env python3
"""Compares the guard's gradients under a memory cap with one full backward pass without a cap.

    gradients.py OUT [--caps 30 26] [--steps 60] [--model 1.4b]

The shapes are those of the memory shards of `farrier bench train` (seed 0). The weights do not
change. For every step and parameter, the gradient G is projected on random vectors u and v. The
projection u'Gv under the cap is compared with that of one full backward pass without a cap. For
reference, the same is done for plain accumulation over two halves without a cap, which shows the
inherent error of accumulation in bfloat16. Each part runs in its own process, and is skipped if OUT
already has its result. Needs torch, a GPU, and `python/src` of this repository.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python" / "src"))

from farrier.bench.memory import GIB, choose_allocator, random_batch, shapes


def probe(torch, model):
    """Returns the norm of each parameter's gradient, and its projection u'Gv, in float32.

    All processes use the same u and v.
    """
    generator = torch.Generator(device="cuda").manual_seed(5)
    norms, projections = [], []
    for parameter in model.parameters():
        gradient = parameter.grad.float().reshape(parameter.shape[0], -1)
        u = torch.randn(gradient.shape[0], generator=generator, device="cuda")
        v = torch.randn(gradient.shape[1], generator=generator, device="cuda")
        norms.append(gradient.norm())
        projections.append(u @ (gradient @ v))
        del gradient
    return torch.stack(norms).tolist(), torch.stack(projections).tolist()


def whole(torch, model, steps):
    """Loss and gradients of each step without a cap, in one backward and in two halves."""
    for place, (rows, length) in enumerate(shapes(steps, 0)):
        batch = random_batch(model.shape.vocabulary, rows, length, place)
        model.zero_grad(set_to_none=True)
        loss = model(*batch)
        loss.backward()
        entry = {"loss": loss.item(), "probe": probe(torch, model)}
        del loss
        if rows > 1:
            model.zero_grad(set_to_none=True)
            for first, last in ((0, rows // 2), (rows // 2, rows)):
                (model(*(tensor[first:last] for tensor in batch)) * ((last - first) / rows)).backward()
            entry["halves"] = probe(torch, model)
        yield entry


def guarded(torch, model, steps, guard):
    """Loss and gradients of each step with the guard.

    As much memory is occupied as the optimizer's state takes in training.
    """
    size = sum(parameter.nbytes for parameter in model.parameters())
    held = torch.empty(2 * size, dtype=torch.uint8, device="cuda")
    for place, (rows, length) in enumerate(shapes(steps, 0)):
        batch = random_batch(model.shape.vocabulary, rows, length, place)
        model.zero_grad(set_to_none=True)
        loss = guard(batch)
        yield {"loss": loss.item(), "probe": probe(torch, model)}
    del held


def part(out, cap, steps, name):
    """Runs one part, without a cap if `cap` is 0. The result file is written atomically."""
    choose_allocator("ours" if cap else "default")
    import torch

    import farrier.torch
    from farrier.bench.model import build

    if cap:
        torch.cuda.set_per_process_memory_fraction(cap * GIB / torch.cuda.mem_get_info()[1])
    model = build(name)
    if cap:
        guard = farrier.torch.guard(lambda batch: model(*batch), model=model)
        found = {"steps": list(guarded(torch, model, steps, guard))}
        report = guard.report
        found |= {"report": str(report), "split_calls": report.split_calls, "lost": report.lost}
    else:
        found = {"steps": list(whole(torch, model, steps))}
    found |= {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "cap_gib": cap, "model": name}
    path = path_of(out, cap)
    path.with_suffix(".part").write_text(json.dumps(found))
    path.with_suffix(".part").rename(path)


def path_of(out, cap):
    return out / f"gradients_{cap}.json"


def errors_of(reference, other, key="probe"):
    """Relative error of each step: the RMS over parameters of |difference of u'Gv| / |G|."""
    found = []
    for base, made in zip(reference, other, strict=True):
        if key in made:
            norms, projections = base["probe"]
            triples = zip(norms, projections, made[key][1], strict=True)
            squares = (((theirs - ours) / norm) ** 2 if norm else 0.0 for norm, theirs, ours in triples)
            found.append(math.sqrt(statistics.fmean(squares)))
    return found


def table(out, caps):
    reference = json.loads(path_of(out, 0).read_text())["steps"]
    noise = errors_of(reference, reference, "halves")
    print("| gradients against one full backward pass without a cap | median | largest | steps as micro-batches | lost | largest loss error |")
    print("|---|---|---|---|---|---|")
    print(f"| plain accumulation over two halves, no cap | {statistics.median(noise):.1e} | {max(noise):.1e} | {len(noise)} | 0 | |")
    for cap in caps:
        made = json.loads(path_of(out, cap).read_text())
        errors = errors_of(reference, made["steps"])
        pairs = zip(reference, made["steps"], strict=True)
        loss = max(abs(base["loss"] - step["loss"]) / abs(base["loss"]) for base, step in pairs)
        print(
            f"| guard at {cap} GiB | {statistics.median(errors):.1e} | {max(errors):.1e} | {made['split_calls']} of {len(errors)} |"
            f" {made['lost']} | {loss:.1e} |"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--caps", type=int, nargs="+", default=[30, 26])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--model", default="1.4b")
    parser.add_argument("--part", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.part is not None:
        part(args.out, args.part, args.steps, args.model)
        return
    for cap in (0, *args.caps):
        if not path_of(args.out, cap).exists():
            words = [str(args.out), "--part", str(cap), "--steps", str(args.steps), "--model", args.model]
            subprocess.run([sys.executable, __file__, *words], check=True)
    table(args.out, args.caps)


if __name__ == "__main__":
    main()
