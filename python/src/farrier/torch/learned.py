"""What was learned about the sizes that fit. Pure: no torch, no clock; survives a restart as JSON.

For each shape (everything of a batch but its rows) and mode: the most rows that fitted and the fewest that did not. For
shapes never seen: a line through the measured needs of all shapes, bytes over elements, so that a bigger batch is planned
to fit and need not fail first. What was seen to fit is not split; what failed is tried again when there is more room, or
after many good steps if it failed of fragmentation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from farrier.torch.ladder import Means, Mode, Plan

VERSION = 1
#: Shapes kept; the one not met for longest goes. A stream of random lengths has some thousand.
MOST_SHAPES = 4096
#: Points of the line, per mode.
MOST_POINTS = 64
#: Kept free above what the line says, and by how much that grows when a planned size failed all the same.
MARGIN, MARGIN_STEP, MOST_MARGIN = 0.03, 0.02, 0.15
#: A failure is forgotten when the room has grown by this factor.
MORE_ROOM = 1.05
#: A failure by fragmentation is tried again after so many good calls of its shape.
RETRY_AFTER = 200


@dataclass(frozen=True)
class Shape:
    """A batch as far as memory goes: `key` is everything but the rows."""

    key: str
    rows: int
    elements_per_row: int


@dataclass
class Seen:
    """One shape in one mode."""

    elements_per_row: int
    safe_rows: int = 0
    need_bytes: int | None = None
    failed_rows: int | None = None
    failed_room_bytes: int | None = None
    fragmented: bool = False
    successes: int = 0


@dataclass
class Line:
    """Bytes needed over elements, from measured points.

    `fixed_bytes` is needed for any size (the gradients): a line that begins lower is not believed.
    """

    points: list[tuple[int, int]] = field(default_factory=list)
    fixed_bytes: int = 0

    def add(self, elements: int, need_bytes: int) -> None:
        """A measured need; the same size twice keeps the larger."""
        same = [need for size, need in self.points if size == elements]
        self.points = [point for point in self.points if point[0] != elements][-(MOST_POINTS - 1) :]
        self.points.append((elements, max([need_bytes, *same])))

    def need(self, elements: int) -> int | None:
        """What so many elements are expected to need; never less than the points say."""
        if not self.points:
            return None
        base, slope = self._fit()
        return int(base + slope * elements)

    def most_elements(self, room_bytes: float) -> int | None:
        """How many elements are expected to fit."""
        if not self.points:
            return None
        base, slope = self._fit()
        if slope <= 0:
            return None
        return max(0, int((room_bytes - base) / slope))

    def _fit(self) -> tuple[float, float]:
        """Base and slope: least squares, raised until no point is above it.

        Where that makes no sense (one size only, a slope downwards, a base below what is fixed) it is the steepest line
        from the fixed need to any point.
        """
        mean_x = sum(size for size, _ in self.points) / len(self.points)
        mean_y = sum(need for _, need in self.points) / len(self.points)
        spread = sum((size - mean_x) ** 2 for size, _ in self.points)
        slope = sum((size - mean_x) * (need - mean_y) for size, need in self.points) / spread if spread else 0.0
        base = max(need - slope * size for size, need in self.points)
        if slope > 0 and base >= self.fixed_bytes:
            return base, slope
        fixed = min(self.fixed_bytes, *(need for _, need in self.points))
        return float(fixed), max((need - fixed) / max(1, size) for size, need in self.points)


class Learned:
    """Sizes that fit, by shape and mode."""

    def __init__(self) -> None:
        self.shapes: dict[tuple[str, Mode], Seen] = {}
        self.lines: dict[Mode, Line] = {mode: Line() for mode in Mode}
        self.margin = MARGIN

    def fix(self, fixed_bytes: int) -> None:
        """Says what any size needs: the bytes of the gradients that a call makes."""
        for line in self.lines.values():
            line.fixed_bytes = fixed_bytes

    def plan(self, shape: Shape, means: Means, room_bytes: int | None) -> Plan:
        """The cheapest plan that is expected to fit. `room_bytes`: what is free for this call, where known."""
        if not means.split:
            return self._whole(shape, means, room_bytes)
        for mode in means.modes():
            rows = self.fitting_rows(shape, mode, room_bytes)
            if mode is not Mode.PLAIN and (shape.key, mode) not in self.shapes and rows >= shape.rows:
                # Nothing is known of this mode: begin where the ladder would have come to it.
                rows = min(shape.rows, max(1, means.floor_rows))
            if rows >= 1:
                return means.plan(mode, rows)
        return means.plan(means.modes()[-1], 1)

    def _whole(self, shape: Shape, means: Means, room_bytes: int | None) -> Plan:
        for mode in means.modes():
            if self.fitting_rows(shape, mode, room_bytes) >= shape.rows:
                return means.plan(mode, shape.rows)
        return means.plan(means.modes()[-1], shape.rows)

    def fitting_rows(self, shape: Shape, mode: Mode, room_bytes: int | None) -> int:
        """How many rows of this shape are expected to fit in that mode, at most the batch's; 0: not even one."""
        seen = self.shapes.get((shape.key, mode))
        safe = self._safe_rows(seen, room_bytes) if seen else 0
        if safe >= shape.rows:
            return shape.rows
        limit = self._limit_by_need(shape, mode, room_bytes)
        if seen is None or seen.failed_rows is None or _forgotten(seen, room_bytes):
            return max(safe, min(shape.rows, limit))
        if safe and safe < seen.failed_rows:
            return safe
        return max(0, min(shape.rows, seen.failed_rows - 1, max(1, seen.failed_rows // 2), limit))

    def _safe_rows(self, seen: Seen, room_bytes: int | None) -> int:
        """Rows that fitted, unless less room is left than they needed."""
        if room_bytes is None or seen.need_bytes is None or seen.need_bytes <= room_bytes:
            return seen.safe_rows
        return 0

    def _limit_by_need(self, shape: Shape, mode: Mode, room_bytes: int | None) -> int:
        """Rows that fit by what other shapes taught; as many as there are where nothing is known."""
        if room_bytes is None:
            return shape.rows
        each = max(1, shape.elements_per_row)
        failed = [
            seen.failed_rows * seen.elements_per_row
            for (key, known_mode), seen in self.shapes.items()
            if known_mode is mode
            and key != shape.key
            and seen.failed_rows
            and not seen.fragmented
            # As much room as now was not enough for so many elements: no use to try more of them.
            and seen.failed_room_bytes is not None
            and seen.failed_room_bytes >= room_bytes
        ]
        limits = [max(0, (elements - 1) // each) for elements in failed]
        line = self.lines[mode]
        most = line.most_elements(room_bytes / (1 + self.margin))
        if most is not None:
            rows = most // each
            # The line may err: a single row is tried unless it is clearly too big.
            need_of_one = line.need(each)
            limits.append(1 if rows == 0 and need_of_one is not None and need_of_one <= room_bytes * 1.1 else rows)
        return min([shape.rows, *limits])

    def fitted(self, shape: Shape, plan: Plan, need_bytes: int | None) -> None:
        """A call ended well. `need_bytes`: its peak above what was there before, where it was measured."""
        seen = self._seen(shape, plan.mode)
        seen.successes += 1
        if seen.failed_rows is not None and plan.rows >= seen.failed_rows:
            seen.failed_rows, seen.failed_room_bytes, seen.fragmented = None, None, False
        if plan.rows > seen.safe_rows:
            seen.safe_rows, seen.need_bytes = plan.rows, need_bytes
        elif plan.rows == seen.safe_rows and need_bytes is not None:
            seen.need_bytes = need_bytes
        if need_bytes is not None:
            self.lines[plan.mode].add(plan.rows * shape.elements_per_row, need_bytes)

    def measured(self, shape: Shape, plan: Plan) -> bool:
        """Whether the need of this shape at this size is known already."""
        seen = self.shapes.get((shape.key, plan.mode))
        return seen is not None and seen.need_bytes is not None and seen.safe_rows >= plan.rows

    def failed(self, shape: Shape, plan: Plan, room_bytes: int | None, *, fragmented: bool) -> None:
        """A plan ran out of memory. The newest failure counts, also against what fitted before."""
        known = (shape.key, plan.mode) in self.shapes
        seen = self._seen(shape, plan.mode)
        if not known and self.lines[plan.mode].points:
            # The line had said that it fits.
            self.margin = min(MOST_MARGIN, self.margin + MARGIN_STEP)
        if seen.failed_rows is None or plan.rows <= seen.failed_rows or _forgotten(seen, room_bytes):
            seen.failed_rows, seen.failed_room_bytes, seen.fragmented = plan.rows, room_bytes, fragmented
        seen.successes = 0
        if seen.safe_rows >= plan.rows:
            seen.safe_rows, seen.need_bytes = 0, None

    def _seen(self, shape: Shape, mode: Mode) -> Seen:
        name = (shape.key, mode)
        # Taken out and put in again: the order of the dict is that of the last meeting.
        seen = self.shapes.pop(name, None) or Seen(shape.elements_per_row)
        self.shapes[name] = seen
        while len(self.shapes) > MOST_SHAPES:
            del self.shapes[next(iter(self.shapes))]
        return seen

    def to_json(self) -> dict[str, Any]:
        """Plain values for a checkpoint."""
        shapes = [{"key": key, "mode": mode.value, **asdict(seen)} for (key, mode), seen in self.shapes.items()]
        lines = {mode.value: [list(point) for point in line.points] for mode, line in self.lines.items()}
        return {"version": VERSION, "margin": self.margin, "shapes": shapes, "lines": lines}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Learned:
        """What `to_json` gave. Another version is refused: sizes misread would cost steps."""
        if value.get("version") != VERSION:
            raise ValueError(f"learned sizes are of version {value.get('version')!r}, this farrier reads {VERSION}")
        learned = cls()
        learned.margin = float(value["margin"])
        for shape in value["shapes"]:
            kept = dict(shape)
            name = kept.pop("key"), Mode(kept.pop("mode"))
            learned.shapes[name] = Seen(**kept)
        for mode, points in value["lines"].items():
            learned.lines[Mode(mode)].points = [(int(size), int(need)) for size, need in points]
        return learned


def _forgotten(seen: Seen, room_bytes: int | None) -> bool:
    """Whether the failure may be tried again."""
    if seen.fragmented and seen.successes >= RETRY_AFTER:
        return True
    if room_bytes is None or seen.failed_room_bytes is None:
        return False
    return room_bytes >= seen.failed_room_bytes * MORE_ROOM
