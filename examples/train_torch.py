#!/usr/bin/env python3
"""Train a decoder with PyTorch. Copy this script and change the model and the data.

    python examples/train_torch.py --model tiny --steps 50            # anywhere, on the CPU too
    python examples/train_torch.py --model 191m --data tokens.bin     # tokens as unsigned 16-bit integers
    python examples/train_torch.py --model 191m --data tokens.bin     # again after a crash: resumes

It uses bf16 weights, flash attention through SDPA, fused AdamW, the whole step as one verified CUDA
graph, recovery from out-of-memory errors, a cosine schedule per step, and checkpoints that resume
exactly. It reports to the node's agent, if there is one.

SIGTERM and Ctrl-C save a checkpoint after the current step and exit with code 143 (SIGTERM) or 130
(Ctrl-C); a second signal exits at once. A checkpoint stores the size and a fingerprint of the data
file, and a resumed run rejects other data.
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
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=SIZES, default="tiny")
    parser.add_argument("--data", type=Path, help="tokens as unsigned 16-bit integers; random if omitted")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rows", type=int, default=8, help="sequences per step")
    parser.add_argument("--length", type=int, default=256, help="tokens per sequence")
    parser.add_argument("--rate", type=float, default=3e-4, help="peak learning rate")
    parser.add_argument("--warmup", type=int, default=20, help="steps until the peak learning rate")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--checkpoints", type=Path, default=Path("checkpoints"))
    parser.add_argument("--save-every", type=int, default=100)
    parser.add_argument("--log-every", type=int, default=10)
    parser.add_argument("--device", choices=["cuda", "cpu"], default=None, help="default: cuda if available, otherwise cpu")
    parser.add_argument("--no-compile", action="store_true", help="do not compile the model")
    parser.add_argument("--must-check", action="store_true", help="stop unless `farrier check` says that this node can run")
    args = parser.parse_args()
    for name in ("steps", "rows", "length", "save_every", "log_every"):
        if getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be 1 or more")
    if args.warmup < 0 or args.seed < 0:
        parser.error("--warmup and --seed must be 0 or more")
    if not 0 < args.rate < math.inf:
        parser.error("--rate must be a number above 0")
    if args.data is not None and not args.data.is_file():
        parser.error(f"no such file: {args.data}")
    if args.data is not None and args.data.stat().st_size // 2 <= args.length:
        parser.error(f"{args.data} has fewer than the {args.length + 1} tokens of one sequence")
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch sees no GPU here")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        parser.error("this script trains on one GPU: several ranks would each train alone on the same checkpoints")
    return args


class Tokens:
    """The data. A batch depends only on the seed and its step number, so a resumed run gets the same batches."""

    def __init__(self, path: Path | None, vocabulary: int, seed: int, *, pinned: bool) -> None:
        self.vocabulary, self.seed, self.pinned = vocabulary, seed, pinned
        self.tokens = None
        if path is not None:
            size = path.stat().st_size // 2
            self.tokens = torch.from_file(str(path), size=size, dtype=torch.uint16)

    def batch(self, step: int, rows: int, length: int) -> dict[str, torch.Tensor]:
        """Returns the batch of a step."""
        rng = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        if self.tokens is None:
            ids = torch.randint(0, self.vocabulary, (rows, length + 1), generator=rng)
        else:
            starts = torch.randint(0, len(self.tokens) - length, (rows,), generator=rng).tolist()
            ids = torch.stack([self.tokens[start : start + length + 1] for start in starts]).long()
            if ids.max() >= self.vocabulary:  # On a GPU this would be an asynchronous error that kills the process.
                raise SystemExit(f"the data contains token {ids.max()}, but the model has only {self.vocabulary}")
        if self.pinned:
            ids = ids.pin_memory()
        return {"ids": ids[:, :-1], "labels": ids[:, 1:]}


class Checkpoints:
    """Writes checkpoints atomically (temporary file, fsync, rename) and keeps the newest two."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def save(self, step: int, state: dict[str, Any]) -> Path:
        """Saves the state after a step."""
        path = self.folder / f"step-{step:08d}.pt"
        temporary = path.with_suffix(".part")
        with temporary.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
        folder = os.open(self.folder, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
        for old in sorted(self.folder.glob("step-*.pt"))[:-2]:
            old.unlink()
        return path

    def latest(self) -> dict[str, Any] | None:
        """Returns the newest readable checkpoint, or None if there is none."""
        paths = sorted(self.folder.glob("step-*.pt"), reverse=True)
        for path in paths:
            try:
                state = torch.load(path, map_location="cpu", weights_only=True)
                log.info("resuming after step %d, from %s", state["step"], path)
                return dict(state)
            except (OSError, RuntimeError, EOFError, KeyError, TypeError, pickle.UnpicklingError) as err:
                log.warning("cannot read checkpoint %s (%s: %s)", path, type(err).__name__, err)
        if paths:
            raise SystemExit(f"no readable checkpoint in {self.folder}: pass another --checkpoints")
        return None


def cosine(step: int, warmup: int, steps: int) -> float:
    """Fraction of the peak learning rate: linear warm-up, then half a cosine down to a tenth."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, (step - warmup) / max(1, steps - warmup))))


class Progress:
    """A progress line, overwritten on a terminal and appended in a file."""

    def __init__(self, steps: int) -> None:
        self.steps, self.is_terminal = steps, sys.stderr.isatty()

    def show(self, step: int, text: str) -> None:
        """Shows a step number and a text."""
        if not self.is_terminal:
            log.info("step %d of %d: %s", step, self.steps, text)
            return
        done = 30 * step // self.steps
        print(f"\r[{'=' * done}{' ' * (30 - done)}] {step}/{self.steps} {text}\033[K", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Moves to a new line on a terminal."""
        if self.is_terminal:
            print(file=sys.stderr)


class StopSignal:
    """SIGTERM and Ctrl-C end the run after the current step, with a checkpoint.

    A second signal ends the run at once.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.handle)

    def handle(self, number: int, _: object) -> None:
        """Records the signal; a second one has its default action."""
        signal.signal(number, signal.SIG_DFL)
        self.number = number

    def code(self) -> int:
        """Exit code of a program ended by the signal, as in a shell: 143 or 130."""
        return 128 + (self.number or 0)


def main() -> int:
    """Checks the node, then trains."""
    args = arguments()
    clear_line = "\r\033[K" if sys.stderr.isatty() else ""  # Overwrite the progress bar.
    logging.basicConfig(level=logging.INFO, format=f"{clear_line}%(asctime)s %(name)s %(message)s")
    log.info("%s", farrier.torch.configure_allocator())  # Before CUDA starts.
    try:
        log.info("%s", farrier.check(must="run" if args.must_check else None))
    except farrier.CannotRun as err:
        raise SystemExit(f"--must-check: {err}") from None
    device = torch.device(args.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if device.type == "cpu" and args.model != "tiny":
        raise SystemExit(f"{args.model} needs a GPU; --model tiny runs on the CPU")
    return train(args, device)


#: Arguments that must be equal in a resumed run, and arguments that may differ but change the schedule.
SAME, MAY_CHANGE = ("model", "rows", "length", "seed", "data"), ("steps", "rate", "warmup")


class Run:
    """The model, the optimizer and all other state that a checkpoint stores."""

    def __init__(self, args: argparse.Namespace, device: torch.device) -> None:
        self.device = device
        self.checkpoints = Checkpoints(args.checkpoints)
        self.settings = {name: str(getattr(args, name)) for name in (*SAME, *MAY_CHANGE)}
        self.settings["data"] = "random" if args.data is None else fingerprint(args.data)
        self.checkpoint = self.checkpoints.latest()
        self.last_saved_step = self.checkpoint["step"] if self.checkpoint else 0
        self.compare()
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self.model = build(args.model, device=device, dtype=dtype, longest=args.length, seed=args.seed)
        self.trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(self.trained, lr=args.rate, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
        self.forward_backward = farrier.torch.guard(
            lambda batch: self.model(batch["ids"], batch["labels"]),
            model=self.model,
            count=lambda batch: (batch["labels"] != IGNORED).sum(),
            learned=self.checkpoint.get("learned") if self.checkpoint else None,
        )
        self.step = farrier.torch.step(  # Also reports steps to the node's agent.
            self.whole_step,
            model=self.model,
            optimizer=self.optimizer,
            compile=device.type == "cuda" and not args.no_compile,
            tokens=args.rows * args.length,
            first_step=self.checkpoint["step"] if self.checkpoint else 0,
        )
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: cosine(step, args.warmup, args.steps)
        )
        torch.manual_seed(args.seed)

    def compare(self) -> None:
        """Rejects a checkpoint of a run with other arguments, and warns if the schedule changes."""
        before = self.settings if self.checkpoint is None else self.checkpoint["words"]
        pairs = {name: (before.get(name), now) for name, now in self.settings.items() if before.get(name) != now}
        differences = {name: f"--{name} {old}, now {now}" for name, (old, now) in pairs.items()}
        incompatible = ", ".join(text for name, text in differences.items() if name in SAME)
        if incompatible:
            raise SystemExit(f"{self.checkpoints.folder} is from a run with {incompatible}: pass another --checkpoints")
        for text in differences.values():
            log.warning("the checkpoint is from a run with %s: the remaining schedule differs", text)

    def whole_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Forward, backward, clipping and optimizer. `farrier.torch.step` captures it as one graph."""
        self.optimizer.zero_grad(set_to_none=True)
        batch = {name: tensor.to(self.device, non_blocking=True) for name, tensor in batch.items()}
        loss = self.forward_backward(batch)
        torch.nn.utils.clip_grad_norm_(self.trained, 1.0)
        self.optimizer.step()
        return loss

    def save_checkpoint(self, done: int) -> None:
        """Saves a checkpoint and reports the outcome to the node's agent. If it fails, training continues."""
        job = self.step.job
        job.phase("checkpoint")
        try:
            self.save(done)
        except Exception as err:
            log.exception("failed to save checkpoint of step %d", done)
            job.checkpoint_failed(f"{type(err).__name__}: {err}")
        else:
            job.checkpoint_done(done)
            self.last_saved_step = done
        job.phase("train")

    def save(self, done: int) -> None:
        """Saves everything that the rest of the run depends on."""
        random = [torch.get_rng_state(), *([torch.cuda.get_rng_state()] if self.device.type == "cuda" else [])]
        state = {
            "step": done,
            "words": self.settings,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "learned": self.forward_backward.learned_sizes(),
            "random": random,
        }
        log.info("saved %s", self.checkpoints.save(done, state))

    def restore(self) -> int:
        """Restores everything, including RNG state. Returns the number of completed steps."""
        state, self.checkpoint = self.checkpoint, None
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
    stop = StopSignal()
    run = Run(args, device)
    data = Tokens(args.data, run.model.shape.vocabulary, args.seed, pinned=device.type == "cuda")
    first = run.restore()
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    peak, progress = (peak_flops(gpu) if gpu else None), Progress(args.steps)
    job = run.step.job  # The guard reports to the same job.
    tokens, logged_s, logged_step, done = args.rows * args.length, time.perf_counter(), first, first
    for index in range(first, args.steps):
        if stop.number is not None:
            break
        loss = run.step(data.batch(index, args.rows, args.length))
        run.scheduler.step()
        done = index + 1
        if done % args.log_every == 0 or done == args.steps:
            loss_value = float(loss)  # This waits for the GPU, so it is not done at each step.
            rate = tokens * (done - logged_step) / (time.perf_counter() - logged_s)
            logged_s, logged_step = time.perf_counter(), done
            flops = rate * run.model.shape.flops_per_token(args.length, causal=True)
            mfu = "unknown" if peak is None else f"{flops / peak:.3f}"
            progress.show(done, f"loss {loss_value:.6f}, {rate:,.0f} tokens/s, MFU {mfu}")
        if done % args.save_every == 0 or done == args.steps or job.checkpoint_wanted:
            run.save_checkpoint(done)
    progress.end()
    if run.last_saved_step != done and stop.number is not None:
        run.save_checkpoint(done)
    run.step.close()
    if first >= args.steps:
        log.info("all %d steps were already done", args.steps)
    if stop.number is not None:
        log.warning("asked to stop: ended after step %d of %d", done, args.steps)
    log.info("graph: %s", run.step.report)
    log.info("memory: %s", run.forward_backward.report)
    if run.last_saved_step != done:
        log.error("the last step, %d, is not on disk", done)
        return 1
    return 0 if stop.number is None or done == args.steps else stop.code()


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except KeyboardInterrupt:  # Before training began: nothing to save.
        raise SystemExit(130) from None
