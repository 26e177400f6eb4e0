"""Batches in pinned host memory: who writes it again must not do so before the GPU has read it."""

from __future__ import annotations

import logging
from typing import Any

from torch.multiprocessing import reductions

from farrier.torch.batch import tensors

log = logging.getLogger("farrier.torch")

#: Holds no memory, and knows whether it was freed. Torch gives it no types.
_WeakRef: Any = reductions.StorageWeakRef


class GivenAgain:
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
        self.found = False
        self._known: dict[int, Any] = {}
        self._most = 64

    def look(self, batch: Any) -> bool:
        """Whether this batch, or one before, came in memory that came before."""
        if self.found:
            return True
        held = [tensor for tensor in tensors(batch).values() if tensor.device.type == "cpu" and tensor.is_pinned()]
        for storage in {storage._cdata: storage for storage in (tensor.untyped_storage() for tensor in held)}.values():
            known = self._known.get(storage._cdata)
            if known is not None and not known.expired():
                self.found = True
            self._known[storage._cdata] = _WeakRef(storage)
        if len(self._known) > self._most:
            self._known = {key: known for key, known in self._known.items() if not known.expired()}
            self._most = max(64, 2 * len(self._known))
        if self.found:
            self._known.clear()
            log.info(
                "batches come in pinned memory that is used again: each call waits until the GPU has read it. Memory of "
                "its own for each batch, as a DataLoader gives it, needs no wait"
            )
        return self.found
