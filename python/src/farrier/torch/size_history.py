"""Records which sizes fit into memory.

Pure: no torch, no clock. The record is stored as JSON, to survive restarts.

For each mode and each shape (everything of a batch except the number of its rows) it stores the
most rows that fit and the fewest that failed. For new shapes, a linear model of bytes over
elements, fitted to all measured shapes, predicts the need, so that a larger batch is split in
advance and does not fail first. A size that fit is not split. A size that failed is tried again
when more memory is free, or after many successful calls if the cause was fragmentation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from farrier.torch.retry_policy import ActivationMode, Plan, RetryOptions

VERSION = 1
#: Maximum number of shapes; the least recently used is evicted. Batches of random lengths have some
#: thousand shapes.
MAX_SHAPES = 4096
#: Maximum number of data points of the linear model, per mode.
MAX_POINTS = 64
#: Safety margin above the model's prediction, its increase after a wrong prediction, and its
#: maximum.
MARGIN, MARGIN_STEP, MAX_MARGIN = 0.03, 0.02, 0.15
#: A failed size is retried when free memory has grown by this factor.
RETRY_ROOM_FACTOR = 1.05
#: A size that failed by fragmentation is retried after this many successful calls of its shape.
RETRY_AFTER = 200


@dataclass(frozen=True)
class BatchShape:
    """The properties that determine a batch's memory need. `key` has all except the rows."""

    key: str
    rows: int
    elements_per_row: int


@dataclass
class ShapeRecord:
    """History of one shape in one mode. The field names are part of the JSON format."""

    elements_per_row: int
    safe_rows: int = 0
    need_bytes: int | None = None
    failed_rows: int | None = None
    failed_room_bytes: int | None = None
    fragmented: bool = False
    successes: int = 0


@dataclass
class MemoryModel:
    """Linear model of bytes needed over elements, from measured points.

    `fixed_bytes` is needed at any size (the gradients). A fit with a smaller intercept is rejected.
    """

    points: list[tuple[int, int]] = field(default_factory=list)
    fixed_bytes: int = 0

    def add(self, elements: int, need_bytes: int) -> None:
        """Adds a measurement. Of two measurements of the same size, the larger is kept."""
        same = [need for size, need in self.points if size == elements]
        self.points = [point for point in self.points if point[0] != elements][-(MAX_POINTS - 1) :]
        self.points.append((elements, max([need_bytes, *same])))

    def need(self, elements: int) -> int | None:
        """Expected bytes for that many elements; never below the measured points."""
        if not self.points:
            return None
        base, slope = self._fit()
        return int(base + slope * elements)

    def max_elements(self, room_bytes: float) -> int | None:
        """Expected number of elements that fit."""
        if not self.points:
            return None
        base, slope = self._fit()
        if slope <= 0:
            return None
        return max(0, int((room_bytes - base) / slope))

    def _fit(self) -> tuple[float, float]:
        """Returns intercept and slope: a least-squares line, raised until no point lies above it.

        If that line is meaningless (a single size, a negative slope, an intercept below the fixed
        bytes), returns the steepest line from the fixed bytes to any point.
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


class SizeHistory:
    """Sizes that fit, by shape and mode."""

    def __init__(self) -> None:
        self.shapes: dict[tuple[str, ActivationMode], ShapeRecord] = {}
        self.models: dict[ActivationMode, MemoryModel] = {mode: MemoryModel() for mode in ActivationMode}
        self.margin = MARGIN

    def set_fixed_bytes(self, fixed_bytes: int) -> None:
        """Sets the bytes needed at any size: the gradients of a call."""
        for model in self.models.values():
            model.fixed_bytes = fixed_bytes

    def plan(self, shape: BatchShape, options: RetryOptions, room_bytes: int | None) -> Plan:
        """Returns the cheapest plan that is expected to fit.

        `room_bytes` is the free memory for this call, if known.
        """
        if not options.split:
            return self._plan_unsplit(shape, options, room_bytes)
        for mode in options.modes():
            rows = self.expected_fitting_rows(shape, mode, room_bytes)
            if mode is not ActivationMode.PLAIN and (shape.key, mode) not in self.shapes and rows >= shape.rows:
                # There is no data for this mode, so start with the size at which the retry policy
                # would switch to it.
                rows = min(shape.rows, max(1, options.floor_rows))
            if rows >= 1:
                return options.plan(mode, rows)
        return options.plan(options.modes()[-1], 1)

    def _plan_unsplit(self, shape: BatchShape, options: RetryOptions, room_bytes: int | None) -> Plan:
        for mode in options.modes():
            if self.expected_fitting_rows(shape, mode, room_bytes) >= shape.rows:
                return options.plan(mode, shape.rows)
        return options.plan(options.modes()[-1], shape.rows)

    def expected_fitting_rows(self, shape: BatchShape, mode: ActivationMode, room_bytes: int | None) -> int:
        """Expected number of rows that fit in that mode, at most the batch's; 0 if none."""
        record = self.shapes.get((shape.key, mode))
        safe = self._safe_rows(record, room_bytes) if record else 0
        if safe >= shape.rows:
            return shape.rows
        limit = self._row_limit(shape, mode, room_bytes)
        if record is None or record.failed_rows is None or _may_retry(record, room_bytes):
            return max(safe, min(shape.rows, limit))
        if safe and safe < record.failed_rows:
            return safe
        return max(0, min(shape.rows, record.failed_rows - 1, max(1, record.failed_rows // 2), limit))

    def _safe_rows(self, record: ShapeRecord, room_bytes: int | None) -> int:
        """The number of rows that fit earlier; 0 if less memory is free now than they needed."""
        if room_bytes is None or record.need_bytes is None or record.need_bytes <= room_bytes:
            return record.safe_rows
        return 0

    def _row_limit(self, shape: BatchShape, mode: ActivationMode, room_bytes: int | None) -> int:
        """Row limit inferred from other shapes; all rows if nothing is known."""
        if room_bytes is None:
            return shape.rows
        each = max(1, shape.elements_per_row)
        failed = [
            record.failed_rows * record.elements_per_row
            for (key, record_mode), record in self.shapes.items()
            if record_mode is mode
            and key != shape.key
            and record.failed_rows
            and not record.fragmented
            # That many elements did not fit although at least as much memory was free as now.
            and record.failed_room_bytes is not None
            and record.failed_room_bytes >= room_bytes
        ]
        limits = [max(0, (elements - 1) // each) for elements in failed]
        model = self.models[mode]
        most = model.max_elements(room_bytes / (1 + self.margin))
        if most is not None:
            rows = most // each
            # The model may be wrong, so try a single row unless its need is clearly too large.
            need_of_one_row = model.need(each)
            limits.append(1 if rows == 0 and need_of_one_row is not None and need_of_one_row <= room_bytes * 1.1 else rows)
        return min([shape.rows, *limits])

    def record_fit(self, shape: BatchShape, plan: Plan, need_bytes: int | None) -> None:
        """Records a successful call.

        `need_bytes` is its peak above the memory used before, if measured.
        """
        record = self._record(shape, plan.mode)
        record.successes += 1
        if record.failed_rows is not None and plan.rows >= record.failed_rows:
            record.failed_rows, record.failed_room_bytes, record.fragmented = None, None, False
        if plan.rows > record.safe_rows:
            record.safe_rows, record.need_bytes = plan.rows, need_bytes
        elif plan.rows == record.safe_rows and need_bytes is not None:
            record.need_bytes = need_bytes
        if need_bytes is not None:
            self.models[plan.mode].add(plan.rows * shape.elements_per_row, need_bytes)

    def is_measured(self, shape: BatchShape, plan: Plan) -> bool:
        """Whether the need of this shape at this size is known."""
        record = self.shapes.get((shape.key, plan.mode))
        return record is not None and record.need_bytes is not None and record.safe_rows >= plan.rows

    def record_failure(self, shape: BatchShape, plan: Plan, room_bytes: int | None, *, fragmented: bool) -> None:
        """Records that a size ran out of memory. This overrides earlier successes."""
        was_known = (shape.key, plan.mode) in self.shapes
        record = self._record(shape, plan.mode)
        if not was_known and self.models[plan.mode].points:
            # The model had predicted that the rows fit.
            self.margin = min(MAX_MARGIN, self.margin + MARGIN_STEP)
        if record.failed_rows is None or plan.rows <= record.failed_rows or _may_retry(record, room_bytes):
            record.failed_rows, record.failed_room_bytes, record.fragmented = plan.rows, room_bytes, fragmented
        record.successes = 0
        if record.safe_rows >= plan.rows:
            record.safe_rows, record.need_bytes = 0, None

    def _record(self, shape: BatchShape, mode: ActivationMode) -> ShapeRecord:
        name = (shape.key, mode)
        # Insert the record again, so that the least recently used shape comes first in the dict.
        record = self.shapes.pop(name, None) or ShapeRecord(shape.elements_per_row)
        self.shapes[name] = record
        while len(self.shapes) > MAX_SHAPES:
            del self.shapes[next(iter(self.shapes))]
        return record

    def to_json(self) -> dict[str, Any]:
        """Plain values for a checkpoint."""
        shapes = [{"key": key, "mode": mode.value, **asdict(record)} for (key, mode), record in self.shapes.items()]
        models = {mode.value: [list(point) for point in model.points] for mode, model in self.models.items()}
        return {"version": VERSION, "margin": self.margin, "shapes": shapes, "lines": models}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> SizeHistory:
        """Reads the output of `to_json`.

        Rejects other versions, because wrong sizes would make steps fail.
        """
        if value.get("version") != VERSION:
            raise ValueError(f"learned sizes have version {value.get('version')!r}, this farrier reads {VERSION}")
        history = cls()
        history.margin = float(value["margin"])
        for shape in value["shapes"]:
            fields = dict(shape)
            name = fields.pop("key"), ActivationMode(fields.pop("mode"))
            history.shapes[name] = ShapeRecord(**fields)
        for mode, points in value["lines"].items():
            history.models[ActivationMode(mode)].points = [(int(size), int(need)) for size, need in points]
        return history


def _may_retry(record: ShapeRecord, room_bytes: int | None) -> bool:
    """Whether the failed size may be tried again."""
    if record.fragmented and record.successes >= RETRY_AFTER:
        return True
    if room_bytes is None or record.failed_room_bytes is None:
        return False
    return room_bytes >= record.failed_room_bytes * RETRY_ROOM_FACTOR
