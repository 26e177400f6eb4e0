"""Where torch's memory comes from, chosen before it starts.

Expandable segments map pages behind one long address, so that freed memory of any size can be used again; most of what is
lost to fragmentation comes back. Memory of that kind cannot be shared by CUDA IPC without further ado, registered for RDMA
or with NCCL; `classic_pool` gives such buffers plain `cudaMalloc` segments while all else stays expandable.
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
#: The first version that reads the new name (c10/core/AllocatorConfig.h: the old one is read too).
NEW_NAME_SINCE = (2, 9)


class AllocatorStarted(RuntimeError):
    """CUDA's allocator is at work already: what it took is of the kind it was."""


@dataclass(frozen=True)
class Choice:
    """What was chosen: the variables to set, and why; and what is wrong with it, where what was set before stays."""

    variables: Mapping[str, str]
    expandable: bool
    reasons: tuple[str, ...]
    warning: str | None = None

    @property
    def value(self) -> str:
        """The settings, as torch reads them."""
        return next(iter(self.variables.values()))

    def __str__(self) -> str:
        names = " and ".join(self.variables)
        warning = f"\nwarning: {self.warning}" if self.warning else ""
        return f"{names}={self.value or '(empty)'}: {'; '.join(self.reasons)}{warning}"


def parse(settings: str) -> dict[str, str]:
    """`key:value,key:[a:1,b:2]` as a dict, in order."""
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
        raise ValueError(f"allocator settings {settings!r} have a bracket that is not closed")
    return found


def unparse(settings: Mapping[str, str]) -> str:
    """The reverse of `parse`."""
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
    """The settings for a process. What the user has set stays, whatever we would choose."""
    set_names = [name for name in (OLD_NAME, NEW_NAME) if environment.get(name)]
    settings: dict[str, str] = {}
    for name in set_names:  # The new name has the last word, as in torch.
        settings.update(parse(environment[name]))
    names = set_names or [NEW_NAME if torch_version >= NEW_NAME_SINCE else OLD_NAME]
    reasons = [f"{name} was set and stays" for name in set_names]
    uses = {"CUDA IPC": ipc, "RDMA": rdma, "NCCL registration": nccl_registered}
    incompatible_uses = [name for name, used in uses.items() if used]
    if "expandable_segments" in settings:
        reasons.append(f"expandable_segments:{settings['expandable_segments']} is the user's, or of an earlier call")
    elif settings.get("backend", "native") != "native":
        reasons.append(f"backend {settings['backend']} is the user's and has no expandable segments")
    elif platform != "linux":
        reasons.append(f"expandable segments need Linux, this is {platform}")
    elif incompatible_uses:
        reasons.append(
            f"classic segments for {', '.join(incompatible_uses)}; with these buffers made within classic_pool(), leave the flags "
            "out and have expandable segments for the rest"
        )
    else:
        settings["expandable_segments"] = "True"
        reasons.append("expandable segments: less is lost to fragmentation")
    value = unparse(settings)
    expandable = settings.get("expandable_segments", "False").lower() == "true"
    warning = _conflict(incompatible_uses, names) if expandable and incompatible_uses else None
    return Choice(dict.fromkeys(names, value), expandable, tuple(reasons), warning)


def _conflict(incompatible_uses: Sequence[str], names: Sequence[str]) -> str:
    """Expandable segments were on before, and what they do not go with is asked for."""
    return (
        f"expandable segments are on already (by {' and '.join(names)}, or an earlier configure_allocator()) and stay on, "
        f"though {', '.join(incompatible_uses)} was asked for: memory of such segments cannot be shared or registered without "
        "further ado, so those calls may fail\n"
        "hint: make these buffers within farrier.torch.classic_pool(), or start the process with expandable_segments:False "
        f"in {names[-1]}, or call configure_allocator() once, with all flags"
    )


def configure_allocator(*, ipc: bool = False, rdma: bool = False, nccl_registered: bool = False) -> Choice:
    """Chooses the allocator's settings for this process and its children. Call it once, before anything is on the GPU.

    What is set already stays. Where that is expandable segments and a flag asks for memory that they cannot give, it is
    logged as a warning, and in the choice's `warning`.

    Args:
        ipc: CUDA tensors are sent to other processes (torch.multiprocessing) and not made within `classic_pool`.
        rdma: tensors are registered with a NIC (NIXL, UCX, GPUDirect) and not made within `classic_pool`.
        nccl_registered: buffers are registered with NCCL (user buffer registration) and not made within `classic_pool`.
    """
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        raise AllocatorStarted(
            "CUDA has started in this process: its allocator's settings would hold for part of the memory only\n"
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
        # The environment may have been read when torch was imported.
        _apply(torch, choice.value)
    return choice


def _apply(torch: Any, settings: str) -> None:
    """Sets them in a running torch. The private call has the name of 2.9 and later, or that of before."""
    set_settings = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
    if set_settings is not None:
        set_settings(settings)
    else:
        torch.cuda.memory._set_allocator_settings(settings)


class _ExpandableSwitch:
    """Expandable segments off, as long as anyone in the process wants them off."""

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
        """Gives what was in force, or None where there was nothing to turn off."""
        snapshot = torch.cuda.memory._snapshot().get("allocator_settings", {})
        if not snapshot.get("expandable_segments"):
            return None
        # All settings are given each time: before 2.9 those left out fell back to their defaults.
        text = snapshot.get(NEW_NAME) or snapshot.get(OLD_NAME) or ""
        settings = parse(text)
        _apply(torch, unparse({**settings, "expandable_segments": "False"}))
        return unparse({**settings, "expandable_segments": "True"})


_EXPANDABLE = _ExpandableSwitch()
_POOLS: dict[int, Any] = {}


@contextlib.contextmanager
def classic_pool(device: int | None = None) -> Iterator[Any]:
    """Within, this thread's CUDA tensors come from plain `cudaMalloc` segments of a pool of their own.

    For buffers that are shared by IPC or registered for RDMA or with NCCL. The pool is kept for the life of the process, so
    that small buffers share segments and no other tensor moves in. Expandable segments are off in the whole process for as
    long as the context lasts: other threads get plain segments too, which does no harm. Gives the `torch.cuda.MemPool`.
    """
    import torch

    start: Any = torch.cuda.init
    start()
    index = torch.cuda.current_device() if device is None else device
    if index not in _POOLS:
        _POOLS[index] = torch.cuda.MemPool()
    with _EXPANDABLE.off(torch), torch.cuda.use_mem_pool(_POOLS[index], device=index):
        yield _POOLS[index]
