"""Configures torch's CUDA memory allocator before it starts.

Expandable segments map pages into one long address range, so freed memory of any size can be reused
and most fragmentation disappears. But such memory cannot simply be shared by CUDA IPC, or
registered for RDMA or with NCCL. `classic_pool` allocates buffers for these uses in plain
`cudaMalloc` segments, while all other memory stays expandable.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

log = logging.getLogger("farrier.torch")

OLD_NAME, NEW_NAME = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"
#: First torch version that reads the new name. It reads the old name too
#: (c10/core/AllocatorConfig.h).
NEW_NAME_SINCE = (2, 9)


class AllocatorStarted(RuntimeError):
    """CUDA's allocator has already started; memory that it allocated keeps the old settings."""


@dataclass(frozen=True)
class Choice:
    """The chosen settings: variables, reasons, and a warning if existing settings conflict."""

    variables: Mapping[str, str]
    expandable: bool
    reasons: tuple[str, ...]
    warning: str | None = None

    @property
    def value(self) -> str:
        """The settings in torch's syntax."""
        return next(iter(self.variables.values()))

    def __str__(self) -> str:
        names = " and ".join(self.variables)
        warning = f"\nwarning: {self.warning}" if self.warning else ""
        return f"{names}={self.value or '(empty)'}: {'; '.join(self.reasons)}{warning}"


def parse(settings: str) -> dict[str, str]:
    """Parses `key:value,key:[a:1,b:2]` into a dict, in order."""
    found: dict[str, str] = {}
    depth, part = 0, ""
    for letter in settings + ",":
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            key, colon, value = part.strip().partition(":")
            if key and not colon:
                raise ValueError(f"allocator setting {key!r} has no value: write key:value,key:value")
            if key:
                found[key.strip()] = value.strip()
            part = ""
        else:
            part += letter
    if part.strip(", "):
        raise ValueError(f"allocator settings {settings!r} have an unclosed bracket")
    return found


def unparse(settings: Mapping[str, str]) -> str:
    """The inverse of `parse`."""
    return ",".join(f"{key}:{value}" for key, value in settings.items())


def choose(
    environment: Mapping[str, str],
    torch_version: tuple[int, int],
    platform: str,
    *,
    ipc: bool = False,
    rdma: bool = False,
    nccl_registered: bool = False,
) -> Choice:
    """Chooses the settings for a process. The user's own settings take precedence."""
    set_names = [name for name in (OLD_NAME, NEW_NAME) if environment.get(name)]
    settings: dict[str, str] = {}
    for name in set_names:  # The new name overrides the old, as in torch.
        settings.update(parse(environment[name]))
    names = set_names or [NEW_NAME if torch_version >= NEW_NAME_SINCE else OLD_NAME]
    reasons = [f"{name} was already set and is kept" for name in set_names]
    uses = {"CUDA IPC": ipc, "RDMA": rdma, "NCCL registration": nccl_registered}
    incompatible_uses = [name for name, used in uses.items() if used]
    if "expandable_segments" in settings:
        reasons.append(f"expandable_segments:{settings['expandable_segments']} was set by the user or an earlier call")
    elif settings.get("backend", "native") != "native":
        reasons.append(f"backend {settings['backend']} was set by the user and has no expandable segments")
    elif platform != "linux":
        reasons.append(f"expandable segments need Linux, this is {platform}")
    elif incompatible_uses:
        reasons.append(
            f"classic segments for {', '.join(incompatible_uses)}; to use expandable segments for the rest, allocate these "
            "buffers within classic_pool() and omit the flags"
        )
    else:
        settings["expandable_segments"] = "True"
        reasons.append("expandable segments: less fragmentation")
    value = unparse(settings)
    expandable = settings.get("expandable_segments", "False").lower() == "true"
    warning = _conflict(incompatible_uses, names) if expandable and incompatible_uses else None
    return Choice(dict.fromkeys(names, value), expandable, tuple(reasons), warning)


def _conflict(incompatible_uses: Sequence[str], names: Sequence[str]) -> str:
    """The warning if expandable segments are already on and an incompatible use is requested."""
    return (
        f"expandable segments are already on (by {' and '.join(names)}, or an earlier configure_allocator()) and stay on, "
        f"although {', '.join(incompatible_uses)} was requested: memory in such segments cannot simply be shared or "
        "registered, so those calls may fail\n"
        "hint: allocate these buffers within farrier.torch.classic_pool(), or start the process with "
        f"expandable_segments:False in {names[-1]}, or call configure_allocator() once, with all flags"
    )


def configure_allocator(*, ipc: bool = False, rdma: bool = False, nccl_registered: bool = False) -> Choice:
    """Chooses the allocator's settings for this process and its children.

    Call it once, before CUDA starts.

    Existing settings are kept. If they enable expandable segments, and a flag below needs memory
    outside such segments, a warning is logged and stored in the choice's `warning`.

    Args:
        ipc: CUDA tensors are sent to other processes (torch.multiprocessing) and not allocated
            within `classic_pool`.
        rdma: tensors are registered with a NIC (NIXL, UCX, GPUDirect) and not allocated within
            `classic_pool`.
        nccl_registered: buffers are registered with NCCL (user buffer registration) and not
            allocated within `classic_pool`.
    """
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        raise AllocatorStarted(
            "CUDA has already started in this process: the settings would apply to part of the memory only\n"
            "hint: call farrier.torch.configure_allocator() before the first tensor goes to the GPU, or set "
            f"{NEW_NAME} in the environment"
        )
    version = importlib.metadata.version("torch").split(".")
    choice = choose(
        os.environ,
        (int(version[0]), int(version[1])),
        sys.platform,
        ipc=ipc,
        rdma=rdma,
        nccl_registered=nccl_registered,
    )
    if choice.warning is not None:
        log.warning("%s", choice.warning)
    if not choice.value:
        return choice
    os.environ.update(choice.variables)
    if torch is not None and "expandable_segments" in parse(choice.value):
        # torch may have read the environment when it was imported.
        _apply(torch, choice.value)
    return choice


def _apply(torch: Any, settings: str) -> None:
    """Applies settings to a torch that is already imported.

    The private function for this has another name since torch 2.9.
    """
    set_settings = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
    if set_settings is not None:
        set_settings(settings)
    else:
        torch.cuda.memory._set_allocator_settings(settings)


class _ExpandableSwitch:
    """Turns expandable segments off while any thread of the process needs them off."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._before: str | None = None

    @contextlib.contextmanager
    def off(self, torch: Any) -> Iterator[None]:
        with self._lock:
            if self._users == 0:
                self._before = self._turn_off(torch)
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if self._users == 0 and self._before is not None:
                    _apply(torch, self._before)
                    self._before = None

    @staticmethod
    def _turn_off(torch: Any) -> str | None:
        """Returns the settings to restore, or None if expandable segments were off."""
        snapshot = torch.cuda.memory._snapshot().get("allocator_settings", {})
        if not snapshot.get("expandable_segments"):
            return None
        # Pass all settings each time: before torch 2.9, omitted settings got their default values.
        text = snapshot.get(NEW_NAME) or snapshot.get(OLD_NAME) or ""
        settings = parse(text)
        _apply(torch, unparse({**settings, "expandable_segments": "False"}))
        return unparse({**settings, "expandable_segments": "True"})


_EXPANDABLE = _ExpandableSwitch()
_POOLS: dict[int, Any] = {}


@contextlib.contextmanager
def classic_pool(device: int | None = None) -> Iterator[Any]:
    """Allocates this thread's CUDA tensors in plain `cudaMalloc` segments of a separate pool.

    Use it for buffers that are shared by IPC, or registered for RDMA or with NCCL. The pool lives as
    long as the process, so small buffers share segments. No other tensor uses these segments.
    Inside the context, expandable segments are off in the whole process. Other threads then get
    plain segments too, which is harmless. Yields the `torch.cuda.MemPool`.
    """
    import torch

    start: Any = torch.cuda.init
    start()
    index = torch.cuda.current_device() if device is None else device
    if index not in _POOLS:
        _POOLS[index] = torch.cuda.MemPool()
    with _EXPANDABLE.off(torch), torch.cuda.use_mem_pool(_POOLS[index], device=index):
        yield _POOLS[index]
