"""Environment variables for Keras, TensorFlow and JAX, set before these are imported.

Only variables that the frameworks read are set. Some guides also recommend variables that nothing
reads (`H100_ASYNC_MEM_POOL`, `h100_xla_optimizations`, ...). A variable that is already in the
environment keeps its value.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass

log = logging.getLogger("farrier.settings")

#: Keras backends that train on a GPU.
BACKENDS = ("tensorflow", "jax", "torch")


@dataclass(frozen=True)
class Settings:
    """Which settings were applied. `str()` is made for a log.

    Attributes:
        set: variables that were set.
        unchanged: variables that already had another value, which was kept.
        late: packages that were already imported, and may have read their settings before.
    """

    set: dict[str, str]
    unchanged: dict[str, str]
    late: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = [f"{name}={value}" for name, value in self.set.items()]
        parts += [f"{name}={value} (already set, kept)" for name, value in self.unchanged.items()]
        if self.late and self.set:
            parts.append(
                f"{', '.join(self.late)} was already imported: the settings apply only if it has not used a GPU yet"
            )
        return "; ".join(parts) or "nothing to set"


def apply(
    requested: Mapping[str, str], environment: MutableMapping[str, str], imported: Iterable[str], readers: Iterable[str]
) -> Settings:
    """Sets the requested variables that the environment lacks.

    `readers` are the packages that read these variables.
    """
    applied = {name: value for name, value in requested.items() if name not in environment}
    unchanged = {name: environment[name] for name, value in requested.items() if environment.get(name, value) != value}
    environment.update(applied)
    imported_names = set(imported)
    settings = Settings(applied, unchanged, tuple(name for name in readers if name in imported_names))
    if settings.late and settings.set:
        log.warning("%s", settings)
    else:
        log.info("%s", settings)
    return settings


def keras_backend(environment: Mapping[str, str], config: str | None) -> str:
    """The backend that Keras will use: by KERAS_BACKEND, else by `keras.json`, else TensorFlow."""
    configured = environment.get("KERAS_BACKEND")
    if configured:
        return configured
    try:
        parts = json.loads(config) if config is not None else None
    except ValueError:
        parts = None
    configured = parts.get("backend") if isinstance(parts, dict) else None
    return configured if isinstance(configured, str) and configured else "tensorflow"


def jax_memory(fraction: float | None, preallocate: bool | None) -> dict[str, str]:
    """JAX's memory settings.

    By default JAX allocates 75 % of the GPU's memory at start (JAX docs, GPU memory allocation).

    Args:
        fraction: fraction of the GPU's memory to allocate instead.
        preallocate: False allocates memory on demand, which fragments it more.
    """
    requested = {}
    if fraction is not None:
        if not 0.0 < fraction <= 1.0:
            raise ValueError(f"memory_fraction is {fraction}; it must be above 0 and at most 1")
        requested["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{fraction:.4g}"
    if preallocate is not None:
        requested["XLA_PYTHON_CLIENT_PREALLOCATE"] = "true" if preallocate else "false"
    return requested


def keras(backend: str, fraction: float | None, preallocate: bool | None, cuda_malloc_async: bool | None) -> dict[str, str]:
    """The variables that Keras and its backend read, with the requested values.

    Raises:
        ValueError: the backend has no such setting.
    """
    if backend not in BACKENDS:
        raise ValueError(f"`{backend}` does not train on a GPU; Keras does with {', '.join(BACKENDS)}")
    if backend != "jax" and (fraction is not None or preallocate is not None):
        alternative = {
            "tensorflow": "tf.config.set_logical_device_configuration with a memory_limit",
            "torch": "torch.cuda.set_per_process_memory_fraction",
        }[backend]
        raise ValueError(f"memory_fraction and preallocate are JAX settings; with {backend} use {alternative}")
    if backend != "tensorflow" and cuda_malloc_async:
        raise ValueError(f"cuda_malloc_async is a TensorFlow setting; Keras runs on {backend}")
    requested = {"KERAS_BACKEND": backend, **jax_memory(fraction, preallocate)}
    # TensorFlow recommends this allocator against fragmentation, so Farrier disables it only on
    # request.
    if backend == "tensorflow" and cuda_malloc_async is not False:
        requested["TF_GPU_ALLOCATOR"] = "cuda_malloc_async"
    return requested
