"""One shard of the memory benchmark: random shapes under a memory cap, in its own process.

`python -m farrier.bench.memory '{"model": "1.4b", "variant": "ours", "cap_gib": 30, ...}'` prints
one line of JSON. All variants except `ours` lose a step that runs out of memory, like a loop with
`except OutOfMemoryError: continue`. torch is imported only after its allocator is chosen.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import math
import os
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from farrier.bench import process
from farrier.torch.allocator import NEW_NAME, NEW_NAME_SINCE, OLD_NAME

if TYPE_CHECKING:
    from torch import Tensor

    from farrier.bench.model import Decoder

GIB = 1 << 30
#: Maximum tokens of a step.
TOKENS_MAX = 16_384
#: Allocator settings per variant; `ours` chooses its own.
SETTINGS = {
    "default": "",
    "expandable": "expandable_segments:True",
    "cudaMallocAsync": "backend:cudaMallocAsync",
    "ours": "",
}


@dataclass(frozen=True)
class Shard:
    """What is measured. The field names are the JSON keys."""

    model: str
    variant: str
    cap_gib: float
    seed: int = 0
    steps: int = 60

    def __post_init__(self) -> None:
        if self.variant not in SETTINGS:
            raise ValueError(f"unknown variant `{self.variant}`; expected one of {', '.join(SETTINGS)}")
        if self.cap_gib <= 0:
            raise ValueError(f"cap_gib must be above 0, not {self.cap_gib}")


def shapes(steps: int, seed: int) -> list[tuple[int, int]]:
    """Rows and length of each step, with at most `TOKENS_MAX` tokens; the same for all variants."""
    rng = random.Random(seed)
    result: list[tuple[int, int]] = []
    while len(result) < steps:
        rows, length = rng.choice((1, 2, 3, 4, 6, 8, 12, 16)), rng.randrange(256, 4097, 64)
        if rows * length <= TOKENS_MAX:
            result.append((rows, length))
    return result


def choose_allocator(variant: str) -> str:
    """Sets the variant's allocator, ignoring the environment. Returns a description."""
    for name in (OLD_NAME, NEW_NAME):
        os.environ.pop(name, None)
    if variant == "ours":
        import farrier.torch

        return str(farrier.torch.configure_allocator())
    settings = SETTINGS[variant]
    if settings:
        version = importlib.metadata.version("torch").split(".")
        has_new_name = (int(version[0]), int(version[1])) >= NEW_NAME_SINCE
        os.environ[NEW_NAME if has_new_name else OLD_NAME] = settings
    return settings


def measure(shard: Shard) -> dict[str, Any]:
    """Trains on the steps that the seed determines, under the memory cap, and counts lost steps."""
    allocator = choose_allocator(shard.variant)
    import torch

    from farrier.bench.model import build

    capacity = torch.cuda.mem_get_info()[1]
    if shard.cap_gib * GIB > capacity:
        raise ValueError(f"cap_gib is {shard.cap_gib}, but the GPU has {capacity / GIB:.1f} GiB")
    torch.cuda.set_per_process_memory_fraction(shard.cap_gib * GIB / capacity)
    model = build(shard.model)
    guard, step = train_step(shard, model)
    step(random_batch(model.shape.vocabulary, 1, 256, 999))  # Creates the optimizer's state.
    torch.cuda.synchronize()
    result = run_stream(shard, model, step)
    peak = torch.cuda.max_memory_allocated()
    if guard is not None:
        report = guard.report
        peak = max(peak, report.peak_bytes or 0)
        result["report"] = str(report)
    return result | {
        "shard": dataclasses.asdict(shard),
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "farrier": process.build(),
        "model": shard.model,
        "variant": shard.variant,
        "cap_gib": shard.cap_gib,
        "steps_asked": shard.steps,
        "allocator": allocator,
        "peak_gib": peak / GIB,
    }


def train_step(shard: Shard, model: Decoder) -> tuple[Any, Callable[[tuple[Tensor, Tensor]], Tensor]]:
    """The guard, if the variant uses one, and a whole training step."""
    import torch

    import farrier.torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    guard = farrier.torch.guard(lambda batch: model(*batch), model=model) if shard.variant == "ours" else None

    def step(batch: tuple[Tensor, Tensor]) -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        if guard is not None:
            loss: Tensor = guard(batch)
        else:
            loss = model(*batch)
            loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.detach()

    return guard, step


def run_stream(shard: Shard, model: Decoder, step: Callable[[tuple[Tensor, Tensor]], Tensor]) -> dict[str, Any]:
    """Runs every step of the shard; a step that runs out of memory is lost."""
    import torch

    from farrier.torch.guard_report import DoesNotFit
    from farrier.torch.oom import parse_oom

    lost: list[tuple[int, int]] = []
    losses: list[Tensor] = []
    tokens, reserved = 0, 0
    start_s = time.perf_counter()
    for index, (rows, length) in enumerate(shapes(shard.steps, shard.seed)):
        batch = random_batch(model.shape.vocabulary, rows, length, index)
        failed = False
        try:
            losses.append(step(batch))
        except RuntimeError as error:
            if not isinstance(error, DoesNotFit) and parse_oom(error) is None:
                raise
            failed = True
        if failed:  # Outside `except`, because inside it the error's frames still reference the activations.
            lost.append((rows, length))
            model.zero_grad(set_to_none=True)
            torch.cuda.empty_cache()
        else:
            tokens += rows * length
        reserved = max(reserved, torch.cuda.memory_reserved())
    torch.cuda.synchronize()
    wall_s = time.perf_counter() - start_s
    return {
        "lost": lost,
        "tokens": tokens,
        "wall_s": wall_s,
        "tokens_per_s": tokens / wall_s,
        "finite": all(math.isfinite(loss.item()) for loss in losses),
        "reserved_gib": reserved / GIB,
    }


def random_batch(vocabulary: int, rows: int, length: int, seed: int) -> tuple[Tensor, Tensor]:
    """Random ids and their labels."""
    import torch

    ids = torch.randint(0, vocabulary, (rows, length + 1), generator=torch.Generator().manual_seed(seed)).cuda()
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def main(arguments: list[str]) -> int:
    """Measures the shard described by the argument."""
    print(json.dumps(measure(Shard(**json.loads(arguments[0])))))
    return 0


if __name__ == "__main__":
    process.end(main(sys.argv[1:]))
