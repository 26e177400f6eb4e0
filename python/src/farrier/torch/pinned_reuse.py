"""Batches in pinned host memory: who writes it again must not do so before the GPU has read it."""

from __future__ import annotations

import logging
from typing import Any

from torch.multiprocessing import reductions

from farrier.torch.batch import tensors

log = logging.getLogger("farrier.torch")

#: Holds no memory, and knows whether it was freed. Torch gives it no types.
_WeakRef: Any = reductions.StorageWeakRef


class PinnedReuseDetector:
    """Sees whether batches come in pinned memory that came before.

    Pinned memory is copied by the GPU when it comes to it, and the call of a step returns before. Memory that is made for
    each batch (a DataLoader's) is not used again before it was read: torch's allocator sees to that. A staging buffer that
    the user writes himself is; he may have relied on a step that waited for its copy, and cannot see that a graph does not.
    So once memory comes back that was not freed in between, copies are waited for. The first calls run eagerly, with the
    copies of the user's own step, so that a buffer has come back before a graph reads any; where there are so many of them
    that it has not, the wait for the first waits for the copies of all others.

    Attributes:
        found: whether any came back.
    """

    def __init__(self) -> None:
        self.reuse_found = False
        self._storages: dict[int, Any] = {}
        self._prune_above = 64

    def check(self, batch: Any) -> bool:
        """Whether this batch, or one before, came in memory that came before."""
        if self.reuse_found:
            return True
        pinned = [tensor for tensor in tensors(batch).values() if tensor.device.type == "cpu" and tensor.is_pinned()]
        for storage in {storage._cdata: storage for storage in (tensor.untyped_storage() for tensor in pinned)}.values():
            previous = self._storages.get(storage._cdata)
            if previous is not None and not previous.expired():
                self.reuse_found = True
            self._storages[storage._cdata] = _WeakRef(storage)
        if len(self._storages) > self._prune_above:
            self._storages = {key: previous for key, previous in self._storages.items() if not previous.expired()}
            self._prune_above = max(64, 2 * len(self._storages))
        if self.reuse_found:
            self._storages.clear()
            log.info(
                "batches come in pinned memory that is used again: each call waits until the GPU has read it. Memory of "
                "its own for each batch, as a DataLoader gives it, needs no wait"
            )
        return self.reuse_found
