#!/usr/bin/env python3
"""Train a decoder with Keras 3, on JAX, TensorFlow or torch.

Copy this script and change the model and the data.

    python examples/train_keras.py --model tiny --steps 50                        # anywhere, on the CPU too
    python examples/train_keras.py --backend jax --model 191m --data tokens.bin   # tokens as unsigned 16-bit integers
    python examples/train_keras.py --backend jax --model 191m --data tokens.bin   # after a crash: resumes

It uses mixed bfloat16 on a GPU, flash attention where Keras supports it (on JAX and torch, not on
TensorFlow), AdamW, a cosine schedule per step, XLA, and checkpoints that resume exactly. It reports
to the node's agent, if there is one. Without --backend Keras chooses the backend: by KERAS_BACKEND,
else by ~/.keras/keras.json, else TensorFlow. The script is written for Keras 3.15.

SIGTERM and Ctrl-C save a checkpoint after the current step and exit with code 143 (SIGTERM) or 130
(Ctrl-C); a second signal exits at once. A checkpoint stores the size and a fingerprint of the data
file, and a resumed run rejects other data.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

import farrier
import farrier.keras
from farrier.bench.sizes import SIZES, Size
from farrier.fingerprint import fingerprint
from farrier.peak import peak_flops

log = logging.getLogger("train")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=["jax", "tensorflow", "torch"], default=None)
    parser.add_argument("--model", choices=SIZES, default="tiny", help="all but tiny need a GPU")
    parser.add_argument("--data", type=Path, help="tokens as unsigned 16-bit integers; random if omitted")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rows", type=int, default=8, help="sequences per step")
    parser.add_argument("--length", type=int, default=256, help="tokens per sequence")
    parser.add_argument("--rate", type=float, default=3e-4, help="peak learning rate")
    parser.add_argument("--warmup", type=int, default=20, help="steps until the peak learning rate")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--checkpoints", type=Path, default=Path("checkpoints"))
    parser.add_argument("--save-every", type=int, default=100)
    parser.add_argument("--log-every", type=int, default=10)
    parser.add_argument("--device", choices=["cuda", "cpu"], default=None, help="default: cuda if available, otherwise cpu")
    parser.add_argument(
        "--compile",
        action=argparse.BooleanOptionalAction,
        help="default: XLA on JAX, and on TensorFlow with a GPU; torch's compiler takes minutes and is opt-in",
    )
    parser.add_argument("--must-check", action="store_true", help="stop unless `farrier check` says that this node can run")
    args = parser.parse_args()
    for name in ("steps", "rows", "length", "save_every", "log_every"):
        if getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be 1 or more")
    if args.warmup < 0 or args.seed < 0:
        parser.error("--warmup and --seed must be 0 or more")
    if not 0 < args.rate < math.inf or not 0 <= args.dropout < 1:
        parser.error("--rate must be above 0, --dropout 0 or more and below 1")
    if args.data is not None and not args.data.is_file():
        parser.error(f"no such file: {args.data}")
    if args.data is not None and args.data.stat().st_size // 2 <= args.length:
        parser.error(f"{args.data} has fewer than the {args.length + 1} tokens of one sequence")
    return args


# The backend is chosen before Keras is imported and cannot change afterwards.
ARGS = arguments()
CLEAR_LINE = "\r\033[K" if sys.stderr.isatty() else ""  # Overwrite the progress bar.
logging.basicConfig(level=logging.INFO, format=f"{CLEAR_LINE}%(asctime)s %(name)s %(message)s")
if ARGS.device == "cpu":
    os.environ.update(CUDA_VISIBLE_DEVICES="", JAX_PLATFORMS="cpu")
farrier.keras.configure(ARGS.backend)  # Logs what it sets.

import keras  # noqa: E402
from keras import layers, ops  # noqa: E402


class Tokens(keras.utils.PyDataset):
    """The data. A batch depends only on the seed and its step number, so a resumed run gets the same batches."""

    def __init__(self, args: argparse.Namespace, vocabulary: int, first: int) -> None:
        super().__init__(workers=1)
        self.args, self.vocabulary, self.first = args, vocabulary, first
        self.tokens = None
        if args.data is not None:
            self.tokens = np.memmap(args.data, dtype=np.uint16, mode="r", shape=(args.data.stat().st_size // 2,))

    def __len__(self) -> int:
        return self.args.steps - self.first

    def __getitem__(self, at: int) -> tuple[np.ndarray, np.ndarray]:
        rows, length = self.args.rows, self.args.length
        rng = np.random.default_rng([self.args.seed, self.first + at])
        if self.tokens is None:
            ids = rng.integers(0, self.vocabulary, (rows, length + 1), dtype=np.int32)
        else:
            starts = rng.integers(0, len(self.tokens) - length, rows)
            ids = np.stack([self.tokens[start : start + length + 1] for start in starts]).astype(np.int32)
            if ids.max() >= self.vocabulary:  # An embedding on a GPU does not report an invalid token.
                raise ValueError(f"the data contains token {ids.max()}, but the model has only {self.vocabulary}")
        return ids[:, :-1], ids[:, 1:]


class Positions(layers.Layer):
    """Cosine and sine of the rotary positions, computed once for all blocks."""

    def __init__(self, half: int, **kwargs) -> None:
        super().__init__(**kwargs)
        self.half = half

    def call(self, x):
        positions = ops.arange(x.shape[1], dtype="float32")
        rates = 10_000.0 ** (-ops.arange(self.half, dtype="float32") / self.half)
        angles = ops.expand_dims(positions[:, None] * rates[None, :], 1)  # Broadcast over heads.
        return ops.cast(ops.cos(angles), self.compute_dtype), ops.cast(ops.sin(angles), self.compute_dtype)


class Attention(layers.Layer):
    """Causal multi-head attention with rotary positions.

    `keras.layers.MultiHeadAttention` has no rotary positions. This layer passes `is_causal` and no
    mask, because torch's flash attention takes no mask.
    """

    def __init__(self, heads: int, flash: bool, **kwargs) -> None:
        super().__init__(**kwargs)
        self.heads, self.flash = heads, flash

    def call(self, q, k, v, cosine, sine):
        def split(x):
            return ops.reshape(x, (-1, x.shape[1], self.heads, x.shape[2] // self.heads))

        def rotate(x):
            a, b = ops.split(x, 2, axis=-1)
            return ops.concatenate((a * cosine - b * sine, b * cosine + a * sine), axis=-1)

        y = ops.dot_product_attention(
            rotate(split(q)), rotate(split(k)), split(v), is_causal=True, flash_attention=self.flash
        )
        return ops.reshape(y, (-1, q.shape[1], q.shape[2]))


def build(shape: Size, length: int, dropout: float, flash: bool) -> keras.Model:
    """A Llama-style decoder. Every layer with weights has a name, because checkpoints use the names."""

    def initializer():
        return keras.initializers.RandomNormal(
            stddev=0.02
        )  # One per layer: a shared initializer would give the same numbers.

    def dense(x, name: str, width: int):
        return layers.Dense(width, use_bias=False, kernel_initializer=initializer(), name=name)(x)

    def norm(x, name: str):
        return layers.RMSNormalization(epsilon=1e-5, name=name)(x)

    ids = keras.Input((length,), dtype="int32")
    x = layers.Embedding(shape.vocabulary, shape.width, embeddings_initializer=initializer(), name="embedding")(ids)
    cosine, sine = Positions(shape.width // shape.heads // 2, name="positions")(x)
    for at in range(shape.layers):
        y = norm(x, f"norm_attention_{at}")
        q, k, v = (dense(y, f"{part}_{at}", shape.width) for part in ("query", "key", "value"))
        y = dense(Attention(shape.heads, flash, name=f"attention_{at}")(q, k, v, cosine, sine), f"out_{at}", shape.width)
        x = x + layers.Dropout(dropout, name=f"drop_attention_{at}")(y)
        y = norm(x, f"norm_mixing_{at}")
        y = ops.silu(dense(y, f"gate_{at}", shape.hidden)) * dense(y, f"into_{at}", shape.hidden)
        x = x + layers.Dropout(dropout, name=f"drop_mixing_{at}")(dense(y, f"back_{at}", shape.width))
    model = keras.Model(ids, dense(norm(x, "last_norm"), "head", shape.vocabulary))
    if shape.lora_rank:
        for layer in model.layers:
            if layer.name.startswith(("query_", "value_")):
                layer.enable_lora(shape.lora_rank)  # This also freezes its kernel.
            else:
                layer.trainable = False
    return model


class Cosine(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up, then half a cosine down to a tenth.

    Keras's own CosineDecay branches on the step. On torch such a branch waits for the GPU at each step.
    """

    def __init__(self, highest: float, warmup: int, steps: int) -> None:
        self.highest, self.warmup, self.steps = highest, warmup, steps

    def __call__(self, step):
        step = ops.cast(step, "float32")
        done = ops.clip((step - self.warmup) / max(1, self.steps - self.warmup), 0.0, 1.0)
        down = 0.1 + 0.45 * (1.0 + ops.cos(math.pi * done))
        return self.highest * ops.where(step < self.warmup, (step + 1.0) / max(1, self.warmup), down)


class Checkpoints(keras.callbacks.Callback):
    """Writes checkpoints atomically (temporary file, fsync, rename) and keeps the newest two.

    A checkpoint stores everything that the next step depends on: the weights; the optimizer with
    its step count, which selects learning rate and batch; the seeds of layers that draw random
    numbers; and on torch the state of torch's own RNG, which Keras's dropout uses. It omits the
    frozen weights of low-rank training, because a resumed run initialises them from the same seed.
    It does not use `model.save`, which merges the low-rank weights into the frozen ones and
    reinitialises them, and does not store torch's RNG state.
    """

    def __init__(self, args: argparse.Namespace, model: keras.Model) -> None:
        super().__init__()
        self.folder = args.checkpoints
        self.random: list[tuple] = []
        self.settings = {name: str(getattr(args, name)) for name in ("model", "rows", "length", "seed", "dropout")}
        self.settings["data"] = "random" if args.data is None else fingerprint(args.data)
        frozen = {id(variable) for variable in model.non_trainable_weights} if SIZES[args.model].lora_rank else set()
        saved = [variable for variable in model.variables if id(variable) not in frozen] + model.optimizer.variables
        self.variables = {f"{at} {variable.path}": variable for at, variable in enumerate(saved)}
        self.folder.mkdir(parents=True, exist_ok=True)

    def save(self, model: keras.Model, step: int) -> None:
        """Saves the state after a step.

        `farrier.keras.Callback` calls this. On JAX it first syncs the state to the variables.
        """
        path = self.folder / f"step-{step:08d}.npz"
        temporary = path.with_suffix(".part")
        state = {name: ops.convert_to_numpy(variable.value) for name, variable in self.variables.items()}
        state.update({f"random {at}": generator.get_state().numpy() for at, generator in enumerate(torch_generators())})
        with temporary.open("wb") as file:
            np.savez(file, **state, of=json.dumps({"step": step, "words": self.settings}))
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
        folder = os.open(self.folder, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
        for old in sorted(self.folder.glob("step-*.npz"))[:-2]:
            old.unlink()
        log.info("saved %s", path)

    def restore(self) -> int:
        """Restores everything, including RNG state. Returns the number of completed steps."""
        found = sorted(self.folder.glob("step-*.npz"))
        if not found:
            return 0
        with np.load(found[-1]) as state:
            metadata = json.loads(str(state["of"]))
            before = metadata.get("words", {})
            differences = [
                f"--{name} {before.get(name)}, now {now}" for name, now in self.settings.items() if before.get(name) != now
            ]
            if differences:
                raise SystemExit(f"{self.folder} is from a run with {', '.join(differences)}: pass another --checkpoints")
            random = {f"random {at}": generator for at, generator in enumerate(torch_generators())}
            if {*state.files} != {*self.variables, *random, "of"}:
                raise SystemExit(f"{found[-1]} is from another model, backend or device: pass another --checkpoints")
            for name, variable in self.variables.items():
                variable.assign(state[name])
            self.random = [(generator, generator.get_state().new_tensor(state[name])) for name, generator in random.items()]
        log.info("resuming from %s", found[-1])
        return int(metadata["step"])

    def on_train_batch_begin(self, batch, logs=None):
        """Restores torch's RNG state only here, because `fit` draws from that RNG before the first batch."""
        while self.random:
            generator, state = self.random.pop()
            generator.set_state(state)


def torch_generators() -> list:
    """torch's own RNGs, which belong to no layer. Empty on the other backends."""
    if keras.backend.backend() != "torch":
        return []
    import torch

    has_gpu = farrier.keras.gpu() is not None
    return [torch.default_generator, *([torch.cuda.default_generators[torch.cuda.current_device()]] if has_gpu else [])]


class Log(keras.callbacks.Callback):
    """Shows loss, tokens/s and MFU every `--log-every` steps: in Keras's bar on a terminal, or as log lines.

    It does not read the loss at each step, because that waits for the GPU.
    """

    def __init__(self, args: argparse.Namespace, first: int, gpu: str | None) -> None:
        super().__init__()
        self.args, self.first, self.done = args, first, first
        self.peak = peak_flops(gpu) if gpu else None
        self.flops = SIZES[args.model].flops_per_token(args.length, causal=True)
        names = ["loss", "tokens/s", "MFU"]
        self.bar = keras.utils.Progbar(args.steps - first, stateful_metrics=names) if sys.stdout.isatty() else None

    def on_epoch_begin(self, epoch, logs=None):
        self.began = time.perf_counter()

    def on_train_batch_begin(self, batch, logs=None):
        if batch and (self.first + batch) % self.args.log_every == 0:
            self.show(self.first + batch)
            self.model.reset_metrics()  # So that the loss is the mean since the last line, not since the start.

    def on_epoch_end(self, epoch, logs=None):
        self.show(int(self.model.optimizer.iterations))

    def show(self, done: int) -> None:
        loss = float(self.model.get_metrics_result()["loss"])
        now, steps = time.perf_counter(), done - self.done
        rate = self.args.rows * self.args.length * steps / (now - self.began)
        mfu = None if self.peak is None else rate * self.flops / self.peak
        self.began, self.done = now, done
        if self.bar is None:
            mfu_text = "unknown" if mfu is None else f"{mfu:.3f}"
            log.info("step %d of %d: loss %.6f, %s tokens/s, MFU %s", done, self.args.steps, loss, f"{rate:,.0f}", mfu_text)
        else:
            shown = [("loss", loss), ("tokens/s", rate), *([] if mfu is None else [("MFU", mfu)])]
            self.bar.update(done - self.first, shown)


class StopSignal:
    """SIGTERM and Ctrl-C end the run after the current step, with a checkpoint.

    A second signal ends the run at once.
    """

    def __init__(self, callback: farrier.keras.Callback) -> None:
        self.callback, self.number = callback, None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.handle)

    def handle(self, number, _):
        signal.signal(number, signal.SIG_DFL)
        self.number = number
        self.callback.request_stop("asked to stop")


def main(args: argparse.Namespace) -> int:
    try:
        log.info("%s", farrier.check(must="run" if args.must_check else None))
    except farrier.CannotRun as err:
        raise SystemExit(f"--must-check: {err}") from None
    gpu = farrier.keras.gpu()
    if args.device == "cuda" and gpu is None:
        raise SystemExit(f"--device cuda, but Keras on {keras.backend.backend()} sees no GPU")
    if gpu is None and args.model != "tiny":
        raise SystemExit(f"{args.model} needs a GPU; --model tiny runs on the CPU")
    if gpu is not None:
        keras.config.set_dtype_policy("mixed_bfloat16")
    keras.utils.set_random_seed(args.seed)
    return train(args, gpu)


def train(args: argparse.Namespace, gpu: str | None) -> int:
    shape, backend = SIZES[args.model], keras.backend.backend()
    model = build(shape, args.length, args.dropout, flash=gpu is not None and backend != "tensorflow")
    optimizer = keras.optimizers.AdamW(
        Cosine(args.rate, args.warmup, args.steps), beta_2=0.95, weight_decay=0.1, global_clipnorm=1.0
    )
    model.compile(
        optimizer,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),  # Computed in float32: Keras casts the logits.
        jit_compile="auto" if args.compile is None else args.compile,
    )
    optimizer.build(model.trainable_variables)  # This creates its state, so that a checkpoint can restore it.
    checkpoints = Checkpoints(args, model)
    first = checkpoints.restore()
    if first >= args.steps:
        log.info("all %d steps are already done", args.steps)
        return 0
    tokens = args.rows * args.length
    callback = farrier.keras.Callback(tokens=tokens, save=checkpoints.save, save_every=args.save_every)
    stop = StopSignal(callback)
    with farrier.keras.reporting():
        model.fit(
            Tokens(args, shape.vocabulary, first),
            shuffle=False,  # Keras shuffles the order of a PyDataset too.
            verbose=0,  # `Log` shows the bar.
            callbacks=[checkpoints, Log(args, first, gpu), callback],
        )
    if callback.last_saved_step != callback.step:
        log.error("the last step, %d, is not on disk", callback.step)
        return 1
    if stop.number is None or callback.step >= args.steps:
        return 0
    log.warning("asked to stop: ended after step %d of %d", callback.step, args.steps)
    return 128 + stop.number  # Exit code of a program ended by the signal, as in a shell: 143 or 130.


if __name__ == "__main__":
    try:
        raise SystemExit(main(ARGS))
    except KeyboardInterrupt:  # Before training began: nothing to save.
        raise SystemExit(130) from None
