#!/usr/bin/env python3
"""Train a decoder with PyTorch: copy this and change the model and the data.

    python examples/train_torch.py --model tiny --steps 50            # anywhere, on the CPU too
    python examples/train_torch.py --model 191m --data tokens.bin     # tokens as unsigned 16-bit integers
    python examples/train_torch.py --model 191m --data tokens.bin     # again after a crash: goes on where it was

bf16 weights, flash attention by SDPA, fused AdamW, the whole step as one verified CUDA graph, a step that memory does not
kill, a cosine schedule per step, checkpoints that resume exactly, and a word to the node's agent, where there is one.

SIGTERM and Ctrl-C save a checkpoint after the step under way and end with 143 and 130; the second one ends at once. A
checkpoint knows its data by size and content: with other data it is refused.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import pickle
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

import farrier
import farrier.torch
from farrier.bench.model import IGNORED, build
from farrier.bench.sizes import SIZES
from farrier.fingerprint import fingerprint
from farrier.peak import peak_flops

log = logging.getLogger("train")


def arguments() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=SIZES, default="tiny")
    parser.add_argument("--data", type=Path, help="tokens as unsigned 16-bit integers; without it random ones")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rows", type=int, default=8, help="sequences of a step")
    parser.add_argument("--length", type=int, default=256, help="tokens of a sequence")
    parser.add_argument("--rate", type=float, default=3e-4, help="highest learning rate")
    parser.add_argument("--warmup", type=int, default=20, help="steps until the highest learning rate")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--checkpoints", type=Path, default=Path("checkpoints"))
    parser.add_argument("--save-every", type=int, default=100)
    parser.add_argument("--log-every", type=int, default=10)
    parser.add_argument("--device", choices=["cuda", "cpu"], default=None, help="cuda where there is one, otherwise cpu")
    parser.add_argument("--no-compile", action="store_true", help="do not compile the model")
    parser.add_argument("--must-check", action="store_true", help="stop where `farrier check` says that this cannot run")
    args = parser.parse_args()
    for name in ("steps", "rows", "length", "save_every", "log_every"):
        if getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be 1 or more")
    if args.warmup < 0 or args.seed < 0:
        parser.error("--warmup and --seed must be 0 or more")
    if not 0 < args.rate < math.inf:
        parser.error("--rate must be a number above 0")
    if args.data is not None and not args.data.is_file():
        parser.error(f"there is no file {args.data}")
    if args.data is not None and args.data.stat().st_size // 2 <= args.length:
        parser.error(f"{args.data} has fewer than the {args.length + 1} tokens of one sequence")
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch sees no GPU here")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        parser.error("this script trains on one GPU: with several ranks each would train alone, on the same checkpoints")
    return args


class Tokens:
    """The data. What a step sees depends on its number alone: a resumed run sees what it would have seen."""

    def __init__(self, path: Path | None, vocabulary: int, seed: int, *, pinned: bool) -> None:
        self.vocabulary, self.seed, self.pinned = vocabulary, seed, pinned
        self.tokens = None
        if path is not None:
            size = path.stat().st_size // 2
            self.tokens = torch.from_file(str(path), size=size, dtype=torch.uint16)

    def batch(self, step: int, rows: int, length: int) -> dict[str, torch.Tensor]:
        """The batch of a step."""
        chance = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        if self.tokens is None:
            ids = torch.randint(0, self.vocabulary, (rows, length + 1), generator=chance)
        else:
            starts = torch.randint(0, len(self.tokens) - length, (rows,), generator=chance).tolist()
            ids = torch.stack([self.tokens[start : start + length + 1] for start in starts]).long()
            if ids.max() >= self.vocabulary:  # On a GPU that would be an error without a place, and the end of the process.
                raise SystemExit(f"the data has token {ids.max()}, and the model has only {self.vocabulary}")
        if self.pinned:
            ids = ids.pin_memory()
        return {"ids": ids[:, :-1], "labels": ids[:, 1:]}


class Checkpoints:
    """Whole or not at all: written beside, brought to disk, renamed. The newest two are kept."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def save(self, step: int, state: dict[str, Any]) -> Path:
        """Keeps the state after a step."""
        path = self.folder / f"step-{step:08d}.pt"
        part = path.with_suffix(".part")
        with part.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        part.rename(path)
        folder = os.open(self.folder, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
        for old in sorted(self.folder.glob("step-*.pt"))[:-2]:
            old.unlink()
        return path

    def latest(self) -> dict[str, Any] | None:
        """The newest that reads, or None where there is none."""
        found = sorted(self.folder.glob("step-*.pt"), reverse=True)
        for path in found:
            try:
                state = torch.load(path, map_location="cpu", weights_only=True)
                log.info("going on after step %d, from %s", state["step"], path)
                return dict(state)
            except (OSError, RuntimeError, EOFError, KeyError, TypeError, pickle.UnpicklingError) as err:
                log.warning("%s does not read as a checkpoint (%s: %s)", path, type(err).__name__, err)
        if found:
            raise SystemExit(f"no checkpoint in {self.folder} reads: give --checkpoints")
        return None


def cosine(step: int, warmup: int, steps: int) -> float:
    """The share of the highest rate: up in a line, down in half a cosine to a tenth."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, (step - warmup) / max(1, steps - warmup))))


class Progress:
    """A line that is written over on a terminal, and a line each time in a file."""

    def __init__(self, steps: int) -> None:
        self.steps, self.wide = steps, sys.stderr.isatty()

    def show(self, step: int, words: str) -> None:
        """How far it is."""
        if not self.wide:
            log.info("step %d of %d: %s", step, self.steps, words)
            return
        done = 30 * step // self.steps
        print(f"\r[{'=' * done}{' ' * (30 - done)}] {step}/{self.steps} {words}\033[K", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Leaves the line."""
        if self.wide:
            print(file=sys.stderr)


class Stop:
    """SIGTERM and Ctrl-C end the run after the step under way, with a checkpoint. The second one ends it at once."""

    def __init__(self) -> None:
        self.number: int | None = None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.asked)

    def asked(self, number: int, _: object) -> None:
        """A signal came."""
        signal.signal(number, signal.SIG_DFL)
        self.number = number

    def code(self) -> int:
        """What a shell says of a program that such a signal ended: 143 and 130."""
        return 128 + (self.number or 0)


def main() -> int:
    """Checks, then trains."""
    args = arguments()
    over = "\r\033[K" if sys.stderr.isatty() else ""  # Over the bar, and not behind it.
    logging.basicConfig(level=logging.INFO, format=f"{over}%(asctime)s %(name)s %(message)s")
    log.info("%s", farrier.torch.configure_allocator())  # Before CUDA starts.
    try:
        log.info("%s", farrier.check(must="run" if args.must_check else None))
    except farrier.CannotRun as err:
        raise SystemExit(f"--must-check: {err}") from None
    device = torch.device(args.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if device.type == "cpu" and args.model != "tiny":
        raise SystemExit(f"{args.model} needs a GPU; --model tiny runs on the CPU")
    return train(args, device)


#: What a resumed run must have in common with the one that it goes on from, and what changes its schedule.
SAME, MAY_CHANGE = ("model", "rows", "length", "seed", "data"), ("steps", "rate", "warmup")


class Run:
    """Everything that trains, and that a checkpoint keeps."""

    def __init__(self, args: argparse.Namespace, device: torch.device) -> None:
        self.device = device
        self.checkpoints = Checkpoints(args.checkpoints)
        self.words = {name: str(getattr(args, name)) for name in (*SAME, *MAY_CHANGE)}
        self.words["data"] = "random" if args.data is None else fingerprint(args.data)
        self.found = self.checkpoints.latest()
        self.kept = self.found["step"] if self.found else 0
        self.compare()
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self.model = build(args.model, device=device, dtype=dtype, longest=args.length, seed=args.seed)
        self.trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(self.trained, lr=args.rate, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
        self.forward_backward = farrier.torch.guard(
            lambda batch: self.model(batch["ids"], batch["labels"]),
            model=self.model,
            count=lambda batch: (batch["labels"] != IGNORED).sum(),
            learned=self.found.get("learned") if self.found else None,
        )
        self.step = farrier.torch.step(  # It tells the node's agent of steps, too.
            self.whole_step,
            model=self.model,
            optimizer=self.optimizer,
            compile=device.type == "cuda" and not args.no_compile,
            tokens=args.rows * args.length,
            first_step=self.found["step"] if self.found else 0,
        )
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda at: cosine(at, args.warmup, args.steps))
        torch.manual_seed(args.seed)

    def compare(self) -> None:
        """Refuses the checkpoints of another run, and says where the rest of this one will be another."""
        before = self.words if self.found is None else self.found["words"]
        pairs = {name: (before.get(name), now) for name, now in self.words.items() if before.get(name) != now}
        other = {name: f"--{name} {old}, now {now}" for name, (old, now) in pairs.items()}
        refused = ", ".join(words for name, words in other.items() if name in SAME)
        if refused:
            raise SystemExit(f"{self.checkpoints.folder} is of a run with {refused}: give --checkpoints")
        for words in other.values():
            log.warning("the checkpoint is of a run with %s: the rest has another schedule", words)

    def whole_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Forward, backward, clipping and the optimizer: what becomes one graph."""
        self.optimizer.zero_grad(set_to_none=True)
        batch = {name: tensor.to(self.device, non_blocking=True) for name, tensor in batch.items()}
        loss = self.forward_backward(batch)
        torch.nn.utils.clip_grad_norm_(self.trained, 1.0)
        self.optimizer.step()
        return loss

    def keep(self, done: int) -> None:
        """Saves, and tells the node's agent what came of it. Without a checkpoint the training goes on all the same."""
        job = self.step.job
        job.phase("checkpoint")
        try:
            self.save(done)
        except Exception as err:
            log.exception("no checkpoint of step %d", done)
            job.checkpoint_failed(f"{type(err).__name__}: {err}")
        else:
            job.checkpoint_done(done)
            self.kept = done
        job.phase("train")

    def save(self, done: int) -> None:
        """Keeps all that the rest of the run depends on."""
        random = [torch.get_rng_state(), *([torch.cuda.get_rng_state()] if self.device.type == "cuda" else [])]
        state = {
            "step": done,
            "words": self.words,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "learned": self.forward_backward.learned_sizes(),
            "random": random,
        }
        log.info("saved %s", self.checkpoints.save(done, state))

    def restore(self) -> int:
        """Puts everything back as it was, random numbers too; gives the step to go on with."""
        state, self.found = self.found, None
        if state is None:
            return 0
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        torch.set_rng_state(state["random"][0])
        if len(state["random"]) > 1:
            torch.cuda.set_rng_state(state["random"][1])
        return int(state["step"])


def train(args: argparse.Namespace, device: torch.device) -> int:
    """Trains, from the newest checkpoint if there is one."""
    stop = Stop()
    run = Run(args, device)
    data = Tokens(args.data, run.model.shape.vocabulary, args.seed, pinned=device.type == "cuda")
    first = run.restore()
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    peak, progress = (peak_flops(gpu) if gpu else None), Progress(args.steps)
    job = run.step.job  # The one that the guard speaks through, too.
    tokens, began, since, done = args.rows * args.length, time.perf_counter(), first, first
    for at in range(first, args.steps):
        if stop.number is not None:
            break
        loss = run.step(data.batch(at, args.rows, args.length))
        run.scheduler.step()
        done = at + 1
        if done % args.log_every == 0 or done == args.steps:
            value = float(loss)  # Waits for the GPU: not at each step.
            rate = tokens * (done - since) / (time.perf_counter() - began)
            began, since = time.perf_counter(), done
            flops = rate * run.model.shape.flops_per_token(args.length, causal=True)
            mfu = "unknown" if peak is None else f"{flops / peak:.3f}"
            progress.show(done, f"loss {value:.6f}, {rate:,.0f} tokens/s, MFU {mfu}")
        if done % args.save_every == 0 or done == args.steps or job.checkpoint_wanted:
            run.keep(done)
    progress.end()
    if run.kept != done and stop.number is not None:
        run.keep(done)
    run.step.close()
    if first >= args.steps:
        log.info("all of %d steps were done before", args.steps)
    if stop.number is not None:
        log.warning("asked to stop: ended after step %d of %d", done, args.steps)
    log.info("graph: %s", run.step.report)
    log.info("memory: %s", run.forward_backward.report)
    if run.kept != done:
        log.error("the last step, %d, is not on disk", done)
        return 1
    return 0 if stop.number is None or done == args.steps else stop.code()


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except KeyboardInterrupt:  # Before the training began: there is nothing to save.
        raise SystemExit(130) from None
