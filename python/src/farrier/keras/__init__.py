"""Keras 3 on TensorFlow, JAX or torch: reports steps to the node's agent and saves on its request.

    import farrier.keras
    farrier.keras.configure("jax", mixed_bfloat16=True)   # before Keras is imported
    import keras
    ...
    with farrier.keras.reporting():
        model.fit(data, callbacks=[farrier.keras.Callback(tokens=65536, save="ckpt/{step}.keras")])

Keras is imported by `Callback` and not by this module, so that `configure` can come before it.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farrier import settings
from farrier.keras.rank import gpu_name
from farrier.oom import reporting
from farrier.settings import Settings

if TYPE_CHECKING:
    from farrier.keras.callback import Callback

__all__ = ["Callback", "Settings", "configure", "gpu", "reporting"]


def configure(
    backend: str | None = None,
    *,
    mixed_bfloat16: bool = False,
    memory_fraction: float | None = None,
    preallocate: bool | None = None,
    cuda_malloc_async: bool | None = None,
) -> Settings:
    """Configures Keras and its backend; call it before Keras and the backend are imported.

    Variables that are already set are kept. XLA needs no variable: `model.compile(jit_compile=...)`
    controls it, and by default Keras enables it where the model allows.

    Args:
        backend: `tensorflow`, `jax` or `torch`; None for the backend that Keras would use.
        mixed_bfloat16: computes in bfloat16 with float32 weights. Imports Keras.
        memory_fraction: JAX only: XLA_PYTHON_CLIENT_MEM_FRACTION.
        preallocate: JAX only: XLA_PYTHON_CLIENT_PREALLOCATE.
        cuda_malloc_async: TensorFlow only: TF_GPU_ALLOCATOR; on unless False.

    Raises:
        ValueError: the backend has no such setting.
        RuntimeError: Keras is already imported, on another backend.
    """
    name = backend or settings.keras_backend(os.environ, _config())
    requested = settings.keras(name, memory_fraction, preallocate, cuda_malloc_async)
    imported = sys.modules.get("keras")
    if imported is not None and imported.backend.backend() != name:
        current = imported.backend.backend()
        raise RuntimeError(f"Keras is already imported, on {current}: call configure({name!r}) before its first import")
    if backend is not None and os.environ.get("KERAS_BACKEND", name) != name:
        raise RuntimeError(f"KERAS_BACKEND is {os.environ['KERAS_BACKEND']}, but configure was called with {name}")
    settings_applied = settings.apply(requested, os.environ, sys.modules, ("tensorflow", "jax") if name != "torch" else ())
    if mixed_bfloat16:
        keras: Any = importlib.import_module("keras")
        keras.config.set_dtype_policy("mixed_bfloat16")
    return settings_applied


def gpu() -> str | None:
    """Name of the GPU that Keras uses; None if Keras uses no GPU.

    Imports Keras, so call `configure` first.
    """
    keras: Any = importlib.import_module("keras")
    return gpu_name(keras.backend.backend())


def _config() -> str | None:
    home = Path(os.environ.get("KERAS_HOME") or Path.home() / ".keras")
    try:
        return (home / "keras.json").read_text()
    except (OSError, UnicodeDecodeError):
        return None


def __getattr__(name: str) -> Any:
    if name != "Callback":
        raise AttributeError(f"farrier.keras has no `{name}`; it has {', '.join(__all__)}")
    return importlib.import_module("farrier.keras.callback").Callback


def __dir__() -> list[str]:
    """Includes the lazily imported name."""
    return sorted({*globals(), *__all__})
