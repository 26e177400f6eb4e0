"""Rank and device of a Keras process, as its backend knows them."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Mapping
from typing import Any

from farrier import agent


def job_for_backend(backend: str) -> agent.Job:
    """The job of this process. If the environment has no RANK, the backend supplies the rank."""
    if backend == "torch":
        return agent.job(gpu=_torch_gpu())
    if backend == "jax" and "RANK" not in os.environ:
        jax: Any = importlib.import_module("jax")
        if jax.process_count() > 1:
            return agent.job(rank=jax.process_index(), world_size=jax.process_count())
    if backend == "tensorflow" and "RANK" not in os.environ:
        rank, world_size = tensorflow_rank(os.environ)
        return agent.job(rank=rank, world_size=world_size)
    return agent.job()


def tensorflow_rank(environment: Mapping[str, str]) -> tuple[int | None, int | None]:
    """Rank and number of workers by TF_CONFIG, chief first. None if they are not in TF_CONFIG."""
    try:
        config = json.loads(environment.get("TF_CONFIG", ""))
        cluster, task = config["cluster"], config["task"]
        chiefs, workers = len(cluster.get("chief", [])), len(cluster.get("worker", []))
        index = int(task["index"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return None, None
    if task.get("type") == "chief":
        return index, chiefs + workers
    if task.get("type") == "worker":
        return chiefs + index, chiefs + workers
    return None, None


def _torch_gpu() -> str | None:
    torch: Any = importlib.import_module("torch")
    if not torch.cuda.is_available():
        return None
    uuid = getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "uuid", None)
    return None if uuid is None else str(uuid)


def gpu_name(backend: str) -> str | None:
    """The driver's name of the GPU that the backend uses. None if it uses no GPU."""
    if backend == "torch":
        torch: Any = importlib.import_module("torch")
        # Keras's own switch: if set, Keras does not use the GPU.
        if not torch.cuda.is_available() or os.environ.get("KERAS_TORCH_DEVICE", "cuda").partition(":")[0] != "cuda":
            return None
        return str(torch.cuda.get_device_name())
    if backend == "jax":
        jax: Any = importlib.import_module("jax")
        device = jax.local_devices()[0]
        return str(device.device_kind) if device.platform == "gpu" else None
    tensorflow: Any = importlib.import_module("tensorflow")
    gpus = tensorflow.config.get_visible_devices("GPU")
    if not gpus:
        return None
    return str(tensorflow.config.experimental.get_device_details(gpus[0]).get("device_name", "unknown"))
