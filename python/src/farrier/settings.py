"""Settings of Keras, TensorFlow and JAX that exist, set before those are imported.

Only what the frameworks read is set: names that guides pass on and nothing reads (`H100_ASYNC_MEM_POOL`,
`h100_xla_optimizations`, ...) are not. What is in the environment already is the user's, and stays.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass

log = logging.getLogger("farrier.settings")

#: Backends of Keras that train on a GPU.
BACKENDS = ("tensorflow", "jax", "torch")


@dataclass(frozen=True)
class Settings:
    """What became of the settings. `str()` is made for a log.

    Attributes:
        set: what was set here.
        kept: what was there and is another than would have been set.
        late: packages that were imported before; they may have read their settings already.
    """

    set: dict[str, str]
    kept: dict[str, str]
    late: tuple[str, ...] = ()

    def __str__(self) -> str:
        said = [f"{name}={value}" for name, value in self.set.items()]
        said += [f"{name}={value} (was set before, and stays)" for name, value in self.kept.items()]
        if self.late and self.set:
            said.append(f"{', '.join(self.late)} was imported before: what is set counts only if it has used no GPU yet")
        return "; ".join(said) or "nothing had to be set"


def apply(
    wanted: Mapping[str, str], environment: MutableMapping[str, str], imported: Iterable[str], readers: Iterable[str]
) -> Settings:
    """Sets what is not set yet. `readers` are the packages that read it, `imported` those that are there."""
    made = {name: value for name, value in wanted.items() if name not in environment}
    kept = {name: environment[name] for name, value in wanted.items() if environment.get(name, value) != value}
    environment.update(made)
    there = set(imported)
    settings = Settings(made, kept, tuple(name for name in readers if name in there))
    if settings.late and settings.set:
        log.warning("%s", settings)
    else:
        log.info("%s", settings)
    return settings


def keras_backend(environment: Mapping[str, str], config: str | None) -> str:
    """The backend that Keras will take: KERAS_BACKEND, what its `keras.json` says, or TensorFlow."""
    named = environment.get("KERAS_BACKEND")
    if named:
        return named
    try:
        said = json.loads(config) if config is not None else None
    except ValueError:
        said = None
    named = said.get("backend") if isinstance(said, dict) else None
    return named if isinstance(named, str) and named else "tensorflow"


def jax_memory(fraction: float | None, preallocate: bool | None) -> dict[str, str]:
    """JAX's memory: by default it takes 75 % of the GPU at the start (JAX, GPU memory allocation).

    Args:
        fraction: how much of the GPU's memory to take instead.
        preallocate: False: take it as it is needed, which fragments more.
    """
    wanted = {}
    if fraction is not None:
        if not 0.0 < fraction <= 1.0:
            raise ValueError(f"memory_fraction is {fraction}, and must be above 0 and at most 1")
        wanted["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{fraction:.4g}"
    if preallocate is not None:
        wanted["XLA_PYTHON_CLIENT_PREALLOCATE"] = "true" if preallocate else "false"
    return wanted


def keras(backend: str, fraction: float | None, preallocate: bool | None, cuda_malloc_async: bool | None) -> dict[str, str]:
    """What Keras on that backend reads from the environment.

    Raises:
        ValueError: the backend has no such setting, and silence would look as if it had.
    """
    if backend not in BACKENDS:
        raise ValueError(f"`{backend}` does not train on a GPU; Keras does with {', '.join(BACKENDS)}")
    if backend != "jax" and (fraction is not None or preallocate is not None):
        instead = {
            "tensorflow": "tf.config.set_logical_device_configuration with a memory_limit",
            "torch": "torch.cuda.set_per_process_memory_fraction",
        }[backend]
        raise ValueError(f"memory_fraction and preallocate are JAX's; with {backend} use {instead}")
    if backend != "tensorflow" and cuda_malloc_async:
        raise ValueError(f"cuda_malloc_async is TensorFlow's; Keras runs on {backend}")
    wanted = {"KERAS_BACKEND": backend, **jax_memory(fraction, preallocate)}
    # TensorFlow's own advice when memory is lost to fragmentation. Off only when asked for.
    if backend == "tensorflow" and cuda_malloc_async is not False:
        wanted["TF_GPU_ALLOCATOR"] = "cuda_malloc_async"
    return wanted
