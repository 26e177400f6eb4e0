#!/usr/bin/env python3
"""A stream of random shapes under a cap of memory: steps lost, throughput, and whether the gradients are the right ones.

    memory.py run OUT [--caps 30 26] [--steps 60] [--repeats 1]   what is not in OUT yet, each part in its own process
    memory.py table OUT                                           what is in OUT, as a table
    memory.py one OUT --variant V --cap C ...                     one part (called by `run`)

Variants: default, expandable (expandable_segments), async (cudaMallocAsync), ours (farrier.torch.configure_allocator and
farrier.torch.guard). The three others lose a step that runs out of memory, as a loop with `except OutOfMemoryError:
continue` does. Gradients are compared at fixed weights: for every step and parameter the projection u'Gv on random u and v,
ours under the cap against one whole backward without a cap. Beside it stands the same comparison for plain accumulation
over two halves without a cap: what bfloat16 costs anybody who accumulates. Needs torch, a GPU, and `python/src` of this
repository.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python" / "src"))

GIB = 1 << 30
MOST_TOKENS = 16_384
VARIANTS = ("default", "expandable", "async", "ours")
SETTINGS = {"default": "", "expandable": "expandable_segments:True", "async": "backend:cudaMallocAsync", "ours": ""}


def shapes(steps, seed=0):
    """Rows and lengths, at most 16,384 tokens together. The same for every variant."""
    numbers = random.Random(seed)
    found = []
    while len(found) < steps:
        rows, length = numbers.choice((1, 2, 3, 4, 6, 8, 12, 16)), numbers.randrange(256, 4097, 64)
        if rows * length <= MOST_TOKENS:
            found.append((rows, length))
    return found


def batch_of(torch, vocabulary, rows, length, seed):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, vocabulary, (rows, length + 1), generator=generator).cuda()
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def set_cap(torch, cap_gib):
    if cap_gib:
        torch.cuda.set_per_process_memory_fraction(cap_gib * GIB / torch.cuda.mem_get_info()[1])


def start(args):
    """torch with this variant's allocator, and the model."""
    chosen = None
    if args.variant == "ours":
        import farrier.torch

        chosen = str(farrier.torch.configure_allocator())
    import torch

    set_cap(torch, args.cap)
    from farrier.bench.model import build

    return torch, build(args.model, device="cuda", dtype=torch.bfloat16), chosen


def throughput(args):
    """Trains on the stream; counts what is lost."""
    torch, model, chosen = start(args)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    guard = None
    if args.variant == "ours":
        import farrier.torch

        guard = farrier.torch.guard(lambda batch: model(*batch), model=model)

    def step(batch):
        optimizer.zero_grad(set_to_none=True)
        if guard is not None:
            loss = guard(batch)
        else:
            loss = model(*batch)
            loss.backward()
        optimizer.step()
        return loss.detach()

    vocabulary = model.shape.vocabulary
    step(batch_of(torch, vocabulary, 1, 256, 999))  # The optimizer's state is there from here on.
    torch.cuda.synchronize()
    lost, tokens, reserved, losses = [], 0, 0, []
    began = time.perf_counter()
    for place, (rows, length) in enumerate(shapes(args.steps)):
        batch = batch_of(torch, vocabulary, rows, length, place)
        failed = False
        try:
            losses.append(step(batch))
        except (torch.OutOfMemoryError, RuntimeError) as error:
            if "memory" not in str(error):
                raise
            failed = True
        if failed:  # Outside of `except`: the error's frames hold the activations.
            lost.append((rows, length))
            optimizer.zero_grad(set_to_none=True)
            torch.cuda.empty_cache()
        else:
            tokens += rows * length
        reserved = max(reserved, torch.cuda.memory_reserved())
    torch.cuda.synchronize()
    wall_s = time.perf_counter() - began
    finite = all(math.isfinite(loss.item()) for loss in losses)
    found = {"lost": lost, "tokens": tokens, "wall_s": wall_s, "tokens_per_s": tokens / wall_s, "finite": finite}
    found |= {"reserved_gib": reserved / GIB, "allocator": chosen or SETTINGS[args.variant]}
    if guard is not None:
        report = guard.report()
        found |= {"report": str(report), "saved": dict(report.saved), "retry_s": report.retry_s, "ooms": report.ooms}
        found["peak_gib"] = (report.peak_bytes or torch.cuda.max_memory_allocated()) / GIB
    else:
        found["peak_gib"] = torch.cuda.max_memory_allocated() / GIB
    return found


def probe(torch, model):
    """For each parameter: the norm of its gradient, and u'Gv. Both in float32, with the same u and v in every process."""
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


def gradients(args):
    """Loss and probes of every step at fixed weights. Memory of the optimizer's state is held, as in training."""
    torch, model, _ = start(args)
    size = sum(parameter.nbytes for parameter in model.parameters())
    held = torch.empty(2 * size, dtype=torch.uint8, device="cuda")
    vocabulary, made = model.shape.vocabulary, []
    guard = None
    if args.variant == "ours":
        import farrier.torch

        guard = farrier.torch.guard(lambda batch: model(*batch), model=model)
    for place, (rows, length) in enumerate(shapes(args.steps)):
        batch = batch_of(torch, vocabulary, rows, length, place)
        model.zero_grad(set_to_none=True)
        if guard is not None:
            loss = guard(batch)
            made.append({"loss": loss.item(), "probe": probe(torch, model)})
            continue
        loss = model(*batch)
        loss.backward()
        entry = {"loss": loss.item(), "probe": probe(torch, model)}
        del loss
        if rows > 1:
            model.zero_grad(set_to_none=True)
            for start_row, end_row in ((0, rows // 2), (rows // 2, rows)):
                part = tuple(tensor[start_row:end_row] for tensor in batch)
                (model(*part) * ((end_row - start_row) / rows)).backward()
            entry["halves"] = probe(torch, model)
        made.append(entry)
    del held
    found = {"steps": made}
    if guard is not None:
        report = guard.report()
        found |= {"report": str(report), "split_calls": report.split_calls, "lost": report.lost}
    return found


def one(args):
    found = throughput(args) if args.what == "throughput" else gradients(args)
    found |= {"variant": args.variant, "cap_gib": args.cap, "steps_asked": args.steps, "model": args.model}
    path = Path(args.out) / name_of(args.what, args.variant, args.cap, args.repeat)
    path.with_suffix(".part").write_text(json.dumps(found))
    path.with_suffix(".part").rename(path)


def name_of(what, variant, cap, repeat):
    return f"{what}_{variant}_{cap}_{repeat}.json"


def run(args):
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    parts = [("gradients", "default", 0, 0)]
    parts += [("gradients", "ours", cap, 0) for cap in args.caps]
    for repeat in range(args.repeats):  # Interleaved: a slow spell of the machine meets all variants.
        parts += [("throughput", variant, cap, repeat) for cap in args.caps for variant in VARIANTS]
    for what, variant, cap, repeat in parts:
        if (out / name_of(what, variant, cap, repeat)).exists():
            continue
        environment = {name: value for name, value in os.environ.items() if "ALLOC_CONF" not in name}
        if SETTINGS[variant]:
            environment["PYTORCH_ALLOC_CONF"] = SETTINGS[variant]
        words = ["one", args.out, "--what", what, "--variant", variant, "--cap", str(cap), "--repeat", str(repeat)]
        words += ["--steps", str(args.steps), "--model", args.model]
        began = time.perf_counter()
        done = subprocess.run([sys.executable, __file__, *words], env=environment, check=False)
        print(
            f"{what} {variant} {cap} GiB: {'ok' if done.returncode == 0 else 'FAILED'}, {time.perf_counter() - began:.0f} s"
        )
    table(args)


def read(out):
    return [json.loads(path.read_text()) | {"file": path.name} for path in sorted(Path(out).glob("*.json"))]


def errors_of(reference, other, key="probe"):
    """Relative gradient error by step: root mean square over parameters of |difference of u'Gv| over |G|."""
    found = []
    for base, made in zip(reference, other, strict=True):
        if key not in made:
            continue
        norms, projections = base["probe"]
        differences = [
            (theirs - ours) / norm if norm else 0.0
            for norm, theirs, ours in zip(norms, projections, made[key][1], strict=True)
        ]
        found.append(math.sqrt(statistics.fmean(difference**2 for difference in differences)))
    return found


def table(args):
    found = read(args.out)
    runs = [part for part in found if part["file"].startswith("throughput")]
    print("\n| cap | variant | steps lost | tokens/s | tokens trained | peak allocated GiB | highest reserved GiB |")
    print("|---|---|---|---|---|---|---|")
    for cap in sorted({part["cap_gib"] for part in runs}, reverse=True):
        for variant in VARIANTS:
            same = [part for part in runs if part["cap_gib"] == cap and part["variant"] == variant]
            if not same:
                continue
            speeds = sorted(part["tokens_per_s"] for part in same)
            spread = f" ({speeds[0]:,.0f} to {speeds[-1]:,.0f})" if len(speeds) > 1 else ""
            lost = ", ".join(str(len(part["lost"])) for part in same)
            last = same[-1]
            print(
                f"| {cap} GiB | {variant} | {lost} of {last['steps_asked']} | {statistics.median(speeds):,.0f}{spread} | "
                f"{last['tokens']:,} | {last['peak_gib']:.1f} | {last['reserved_gib']:.1f} |"
            )
    for part in runs:
        if part["variant"] == "ours" and part["file"].endswith("_0.json"):
            print(f"\n{part['cap_gib']} GiB, {part['allocator']}\n{part['report']}")
    reference = next((part for part in found if part["file"] == name_of("gradients", "default", 0, 0)), None)
    if reference is None:
        return
    noise = errors_of(reference["steps"], reference["steps"], "halves")
    print(
        "\n| gradients against one whole backward without a cap | median | largest | steps in pieces | largest loss error |"
    )
    print("|---|---|---|---|---|")
    print(f"| plain accumulation over two halves, no cap | {statistics.median(noise):.1e} | {max(noise):.1e} | all | |")
    for part in found:
        if part["file"].startswith("gradients_ours"):
            errors = errors_of(reference["steps"], part["steps"])
            losses = zip(reference["steps"], part["steps"], strict=True)
            loss = max(abs(base["loss"] - made["loss"]) / abs(base["loss"]) for base, made in losses)
            print(
                f"| ours at {part['cap_gib']} GiB | {statistics.median(errors):.1e} | {max(errors):.1e} | "
                f"{part['split_calls']} of {len(errors)}, {part['lost']} lost | {loss:.1e} |"
            )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, what in (("run", run), ("table", table), ("one", one)):
        command = commands.add_parser(name)
        command.add_argument("out")
        command.add_argument("--steps", type=int, default=60)
        command.add_argument("--model", default="1.4b")
        command.set_defaults(call=what)
        if name == "run":
            command.add_argument("--caps", type=int, nargs="+", default=[30, 26])
            command.add_argument("--repeats", type=int, default=1)
        if name == "one":
            command.add_argument("--what", choices=("throughput", "gradients"), required=True)
            command.add_argument("--variant", choices=VARIANTS, required=True)
            command.add_argument("--cap", type=int, default=0)
            command.add_argument("--repeat", type=int, default=0)
    args = parser.parse_args()
    args.call(args)


if __name__ == "__main__":
    main()
