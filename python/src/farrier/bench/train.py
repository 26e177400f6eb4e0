"""One shard of the training benchmark: one model, one step variant, in its own process.

`python -m farrier.bench.train '{"model": "191m", "variant": "ours", ...}'` prints one line of JSON.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import farrier.torch
from farrier.bench import process
from farrier.bench.model import Decoder, build
from farrier.torch.graph_policy import Policy, StepTiming
from farrier.torch.step_timing import profile_step

#: The compared step variants.
VARIANTS = ("eager", "compile", "reduce-overhead", "ours")

Train = Callable[[dict[str, Tensor]], Tensor]


@dataclass(frozen=True)
class Shard:
    """What is measured. The field names are the JSON keys."""

    model: str
    variant: str
    rows: int
    length: int
    repeat: int = 0
    warmups: int = 12
    groups: int = 8
    steps: int = 10
    gain: float = Policy.min_speedup

    def __post_init__(self) -> None:
        if self.variant not in VARIANTS:
            raise ValueError(f"unknown variant `{self.variant}`; expected one of {', '.join(VARIANTS)}")


def train_step(model: Decoder, optimizer: torch.optim.Optimizer, forward: Callable[..., Tensor]) -> Train:
    """A conventional training step."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def train(batch: dict[str, Tensor]) -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = forward(batch["ids"], batch["labels"])
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        return loss.detach()

    return train


def variant_step(shard: Shard, model: Decoder, optimizer: torch.optim.Optimizer) -> Train:
    """The step, run as the shard's variant."""
    if shard.variant == "compile":
        return train_step(model, optimizer, torch.compile(model))
    if shard.variant == "reduce-overhead":
        return train_step(model, optimizer, torch.compile(model, mode="reduce-overhead"))
    train = train_step(model, optimizer, model)
    if shard.variant == "eager":
        return train
    return farrier.torch.step(train, model=model, optimizer=optimizer, compile=True, policy=Policy(min_speedup=shard.gain))


def measure(shard: Shard) -> dict[str, Any]:
    """Runs the shard on the current GPU."""
    imported_s = process.age_s()
    if shard.variant == "ours":
        farrier.torch.configure_allocator()
    model = build(shard.model, longest=shard.length)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=3e-4, fused=True)
    train = variant_step(shard, model, optimizer)
    torch.manual_seed(shard.repeat)
    shape = (shard.rows, shard.length + 1)
    ids = [torch.randint(0, model.shape.vocabulary, shape, device="cuda") for _ in range(4)]
    stream = [{"ids": each[:, :-1].contiguous(), "labels": each[:, 1:].contiguous()} for each in ids]
    for index in range(shard.warmups):
        loss = train(stream[index % len(stream)])
    loss_after_warmups = float(loss)  # Read now, because the graphs of reduce-overhead overwrite it.
    ready_s = process.age_s()
    report = getattr(train, "report", None)
    before = comparisons(report)
    torch.cuda.reset_peak_memory_stats()
    step_s = [timed_group(train, stream, shard.steps) for _ in range(shard.groups)]
    allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    timed_s = process.age_s()
    after = comparisons(report)
    timing = profile_uncompared_step(train, stream[0], statistics.median(step_s))
    return {
        "shard": dataclasses.asdict(shard),
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "farrier": process.build(),
        "step_s": step_s,
        "comparisons": after[0] - before[0],
        "comparisons_s": after[1] - before[1],
        "comparisons_share": comparisons_share(report),
        "tokens": shard.rows * shard.length,
        "flops_causal": model.shape.flops_per_token(shard.length, causal=True),
        "flops_full": model.shape.flops_per_token(shard.length, causal=False),
        "launches": timing.launches,
        "launch_s": timing.launch_s,
        "busy_s": timing.busy_s,
        "allocated_bytes": allocated,
        "reserved_bytes": reserved,
        "ready_s": ready_s,
        "at_s": {"imported": imported_s, "ready": ready_s, "timed": timed_s, "profiled": process.age_s()},
        "loss": loss_after_warmups,
        "report": None if report is None else str(report),
    }


def comparisons(report: Any) -> tuple[int, float]:
    """Number and total seconds of comparisons with the eager step; zero without a report."""
    return (0, 0.0) if report is None else (report.verified, report.verified_s)


def comparisons_share(report: Any) -> float | None:
    """Share of time that comparisons take in the long run.

    0 if graphs were disabled; None if the share is unknown.
    """
    if report is None or report.schedule is None:
        return None
    return (
        0.0
        if report.reason is not None
        else float(report.schedule.cost_share)
        if report.schedule.cost_share is not None
        else None
    )


def profile_uncompared_step(train: Train, batch: dict[str, Tensor], step_s: float) -> StepTiming:
    """Profiles one step.

    A step that included a comparison is discarded, and the next one is profiled.
    """
    report = getattr(train, "report", None)
    while True:
        before = comparisons(report)[0]
        _, timing = profile_step(lambda: train(batch), step_s, step_s)
        if comparisons(report)[0] == before:
            return timing


def timed_group(train: Train, stream: list[dict[str, Tensor]], steps: int) -> float:
    """Seconds per step, over some steps between two GPU synchronisations."""
    torch.cuda.synchronize()
    start_s = time.perf_counter()
    for index in range(steps):
        train(stream[index % len(stream)])
    torch.cuda.synchronize()
    return (time.perf_counter() - start_s) / steps


def main(arguments: list[str]) -> int:
    """Measures the shard described by the argument."""
    print(json.dumps(measure(Shard(**json.loads(arguments[0])))))
    return 0


if __name__ == "__main__":
    process.end(main(sys.argv[1:]))
