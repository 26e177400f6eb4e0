"""Detects reuse of pinned host memory, which must not be overwritten before the GPU has read it."""

from __future__ import annotations

import logging
from typing import Any

from torch.multiprocessing import reductions

from farrier.torch.batch import tensors

log = logging.getLogger("farrier.torch")

#: Weak reference that knows whether the storage was freed. Untyped in torch.
_WeakRef: Any = reductions.StorageWeakRef


class PinnedReuseDetector:
    """Detects batches in pinned memory that was used by an earlier batch.

    The GPU copies pinned memory asynchronously, after the step's call has returned. Memory
    allocated per batch (a DataLoader's) is not reused before it was read; torch's allocator ensures
    that. A staging buffer that the user rewrites is reused. The user may have relied on a step that
    waited for its copy, and cannot see that a graph does not. So once live memory comes back,
    copies are waited for. The first calls run eagerly with the user's own copies, so a buffer
    usually comes back before a graph reads any; with so many buffers that it has not, waiting for
    the first also waits for the copies of all others.

    Attributes:
        reuse_found: whether memory was reused.
    """

    def __init__(self) -> None:
        self.reuse_found = False
        self._storages: dict[int, Any] = {}
        self._prune_above = 64

    def check(self, batch: Any) -> bool:
        """Returns whether this batch, or an earlier one, reused pinned memory."""
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
                "batches reuse pinned memory: each call waits until the GPU has read it. Separate memory for each batch, "
                "as from a DataLoader, needs no wait"
            )
        return self.reuse_found
