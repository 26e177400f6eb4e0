"""Makes ranks that reduce gradients together take the same action at the same call.

If a call compares the graph with eager runs, the call executes the step several times. Any other
call executes it once. Every run all-reduces gradients. If one rank compared and another did not,
gradients of different batches would be summed, or the job would hang. So at each call the ranks
exchange the actions that they propose over gloo, and all perform the same action. The exchange
takes a few bytes, while the GPU still runs the previous step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from farrier.torch.explain import Reason
from farrier.torch.graph_policy import CallAction, joint_action

#: The reason that a rank reports if it runs eagerly because another rank disabled graphs.
OTHER_RANK_EAGER = Reason(
    "another rank runs eagerly from here on", "see that rank's report: one rank disables graphs for all"
)


def find_ddp(model: nn.Module) -> DistributedDataParallel | None:
    """Returns the DistributedDataParallel wrapper, also inside a compiled module."""
    return next((module for module in model.modules() if isinstance(module, DistributedDataParallel)), None)


def unsupported_reason(model: nn.Module) -> Reason | None:
    """Returns why the ranks cannot be kept in agreement, or None."""
    sharded = {"FullyShardedDataParallel", "FSDPModule"}
    if any(base.__name__ in sharded for module in model.modules() for base in type(module).__mro__):
        return Reason("the model is sharded (FSDP): its forward all-gathers weights", "use compile without a graph")
    if not distributed.is_available() or not distributed.is_initialized():
        return None
    ranks = distributed.get_world_size()
    if ranks > 1 and find_ddp(model) is None:
        cause = f"{ranks} ranks without DistributedDataParallel: whether the step reduces gradients is unknown"
        return Reason(cause, "wrap the model in DistributedDataParallel and pass the wrapper as model=")
    return None


class RankGroup:
    """The ranks of the model's DistributedDataParallel, or only this rank if there is none."""

    def __init__(self, model: nn.Module) -> None:
        self._ddp = find_ddp(model)
        self._group: Any = None
        self._digests: dict[object, int] = {}
        #: Calls at which the ranks had batches of different shapes.
        self.shape_mismatches = 0
        if self._ddp is not None and distributed.get_world_size(self._ddp.process_group) > 1:
            members = distributed.get_process_group_ranks(self._ddp.process_group)
            self._group = distributed.new_group(members, backend="gloo", use_local_synchronization=True)

    @property
    def is_single(self) -> bool:
        """Whether there is only this rank."""
        return self._group is None

    def agree(self, proposed: CallAction, key: object) -> CallAction:
        """Returns the action that all ranks perform at this call.

        `key` identifies this rank's batch shape.
        """
        if self.is_single:
            return proposed
        digest = self._digests.get(key)
        if digest is None:
            digest = int.from_bytes(hashlib.blake2b(repr(key).encode(), digest_size=7).digest(), "big")
            self._digests = {**self._digests, key: digest} if len(self._digests) < 1000 else {key: digest}
        highest_action, digest_max, negated_digest_min = self._all_reduce_max(proposed, digest, -digest)
        self.shape_mismatches += digest_max != -negated_digest_min
        return joint_action(CallAction(highest_action), same_shape=digest_max == -negated_digest_min)

    def all(self, ok: bool) -> bool:
        """Whether `ok` holds on every rank."""
        return ok if self.is_single else self._all_reduce_max(not ok) == [0]

    @contextmanager
    def no_reduction(self) -> Iterator[None]:
        """Inside the context, DDP neither reduces gradients nor broadcasts buffers.

        One rank may then fail alone. Collectives of the step itself still run.
        """
        if self._ddp is None:
            yield
            return
        was_enabled = self._ddp.require_forward_param_sync
        self._ddp.require_forward_param_sync = False
        try:
            with self._ddp.no_sync():
                yield
        finally:
            self._ddp.require_forward_param_sync = was_enabled

    def reset_reducer(self) -> bool:
        """Resets DDP after a capture failed on some rank, so it stops expecting a backward pass.

        DDP then rebuilds its buckets on all ranks, and existing graphs would write to the old
        buckets. Returns True if graphs can therefore no longer be used.
        """
        reset = getattr(getattr(self._ddp, "reducer", None), "_reset_state", None)
        if reset is not None:
            reset()
        return self._ddp is not None

    def _all_reduce_max(self, *values: int) -> list[int]:
        tensor = torch.tensor(values, dtype=torch.int64)
        distributed.all_reduce(tensor, distributed.ReduceOp.MAX, group=self._group)
        maxima: list[int] = tensor.tolist()
        return maxima
