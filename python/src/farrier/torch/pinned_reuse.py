"""Detects batches that reuse pinned host memory, which the GPU may still have to read."""

from __future__ import annotations

import logging
from typing import Any

from torch.multiprocessing import reductions

from farrier.torch.batch import tensors

log = logging.getLogger("farrier.torch")

#: Weak reference that knows whether the storage was freed. `Any`, because torch has no type
#: annotations for it.
_WeakRef: Any = reductions.StorageWeakRef


class PinnedReuseDetector:
    """Detects batches in pinned memory that was used by an earlier batch.

    The GPU copies pinned memory asynchronously, after the call of the step has returned. If memory
    is allocated for each batch, as by a DataLoader, torch's allocator does not reuse this memory
    before the GPU has read it. But a user may also write every batch into the same staging buffer.
    In eager mode that is safe if the user's own copy to the GPU blocks. A graph's copy does not
    block, and the user cannot see that. So as soon as a batch uses a storage that an earlier batch
    used and that has not been freed since, every replay waits until its batch is copied. The first
    calls run eagerly with the user's own copies, so a buffer is usually reused before a graph reads
    one. If there are so many buffers that reuse is found only later, the first replay that waits
    also waits for all earlier copies.

    Attributes:
        reuse_found: whether a batch reused the memory of an earlier one.
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
