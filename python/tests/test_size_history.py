import json
import random

import pytest

from farrier.torch.retry_policy import ActivationMode, Plan, RetryOptions
from farrier.torch.size_history import MARGIN, MAX_SHAPES, RETRY_AFTER, BatchShape, MemoryModel, SizeHistory

GIB = 1 << 30


def shape(length, rows):
    return BatchShape(f"int64[*,{length}]", rows, length)


def test_a_size_that_fit_is_never_split():
    learned = SizeHistory()
    learned.record_fit(shape(512, 8), Plan(8), 10 * GIB)
    learned.record_failure(shape(1024, 8), Plan(8), 12 * GIB, fragmented=False)
    learned.record_failure(shape(256, 16), Plan(16), 12 * GIB, fragmented=False)
    assert learned.plan(shape(512, 8), RetryOptions(8), 12 * GIB) == Plan(8)
    assert learned.plan(shape(512, 5), RetryOptions(5), 12 * GIB) == Plan(5)


def test_a_size_that_fit_is_replanned_with_less_memory():
    learned = SizeHistory()
    for rows in (2, 4, 8):
        learned.record_fit(shape(512, rows), Plan(rows), rows * GIB)
    assert learned.plan(shape(512, 8), RetryOptions(8), 8 * GIB) == Plan(8)
    assert learned.plan(shape(512, 8), RetryOptions(8), 5 * GIB).rows == 4


def test_sizes_between_fit_and_failure_are_not_tried():
    learned = SizeHistory()
    learned.record_failure(shape(512, 8), Plan(8), None, fragmented=False)
    learned.record_fit(shape(512, 8), Plan(4), None)
    assert learned.plan(shape(512, 8), RetryOptions(8), None) == Plan(4)
    assert learned.plan(shape(512, 6), RetryOptions(6), None) == Plan(4)
    assert learned.plan(shape(512, 3), RetryOptions(3), None) == Plan(3)


def test_a_larger_shape_is_split_before_it_fails():
    learned = SizeHistory()
    need = lambda elements: 2 * GIB + elements * (GIB >> 10)  # noqa: E731
    for length in (256, 512, 1024):
        learned.record_fit(shape(length, 4), Plan(4), need(4 * length))
    planned = learned.plan(shape(2048, 8), RetryOptions(8), 10 * GIB)
    assert planned.mode is ActivationMode.PLAIN
    assert need(planned.rows * 2048) <= 10 * GIB
    assert need((planned.rows + 1) * 2048) > 10 * GIB * (1 - 2 * MARGIN)


def test_a_row_that_cannot_fit_is_recomputed_at_once():
    learned = SizeHistory()
    for length in (256, 512):
        learned.record_fit(shape(length, 1), Plan(1), length * (GIB >> 8))
    assert learned.plan(shape(4096, 2), RetryOptions(2), 4 * GIB) == Plan(1, recompute=True)
    assert learned.plan(shape(4096, 2), RetryOptions(2, recompute=False), 4 * GIB) == Plan(1, offload=True)


def test_a_row_that_may_just_fit_is_tried():
    learned = SizeHistory()
    learned.record_fit(shape(1000, 1), Plan(1), 1000)
    assert learned.plan(shape(1050, 1), RetryOptions(1), 1000) == Plan(1)
    assert learned.plan(shape(1150, 1), RetryOptions(1), 1000) == Plan(1, recompute=True)


def test_a_failure_limits_other_shapes_only_at_similar_memory():
    learned = SizeHistory()
    learned.record_failure(shape(1024, 4), Plan(4), 10 * GIB, fragmented=False)
    assert learned.plan(shape(2048, 4), RetryOptions(4), 10 * GIB).rows == 1
    assert learned.plan(shape(2048, 4), RetryOptions(4), 11 * GIB).rows == 4
    assert learned.plan(shape(512, 4), RetryOptions(4), 10 * GIB).rows == 4


def test_a_failed_size_is_retried_with_more_memory():
    learned = SizeHistory()
    learned.record_failure(shape(512, 8), Plan(8), 10 * GIB, fragmented=False)
    learned.record_fit(shape(512, 8), Plan(4), None)
    assert learned.plan(shape(512, 8), RetryOptions(8), 10 * GIB) == Plan(4)
    assert learned.plan(shape(512, 8), RetryOptions(8), 11 * GIB) == Plan(8)


def test_only_fragmentation_is_retried_after_many_successes():
    for fragmented, expected in ((True, 8), (False, 4)):
        learned = SizeHistory()
        learned.record_failure(shape(512, 8), Plan(8), 10 * GIB, fragmented=fragmented)
        for good in range(RETRY_AFTER):
            assert learned.plan(shape(512, 8), RetryOptions(8), 10 * GIB) == Plan(4), good
            learned.record_fit(shape(512, 8), Plan(4), None)
        assert learned.plan(shape(512, 8), RetryOptions(8), 10 * GIB) == Plan(expected)


def test_a_repeated_failure_is_recorded_again():
    learned = SizeHistory()
    learned.record_failure(shape(512, 8), Plan(8), 10 * GIB, fragmented=True)
    for _ in range(RETRY_AFTER):
        learned.record_fit(shape(512, 8), Plan(4), None)
    learned.record_failure(shape(512, 8), Plan(8), 10 * GIB, fragmented=True)
    assert learned.plan(shape(512, 8), RetryOptions(8), 10 * GIB) == Plan(4)


def test_the_newest_failure_overrides_earlier_fits():
    learned = SizeHistory()
    learned.record_fit(shape(512, 8), Plan(8), None)
    learned.record_failure(shape(512, 8), Plan(8), 3 * GIB, fragmented=False)
    assert learned.plan(shape(512, 8), RetryOptions(8), 3 * GIB).rows < 8


def test_without_splitting_the_mode_changes():
    learned = SizeHistory()
    learned.record_failure(shape(512, 8), Plan(8), None, fragmented=False)
    assert learned.plan(shape(512, 8), RetryOptions(8, split=False), None) == Plan(8, recompute=True)
    learned.record_failure(shape(512, 8), Plan(8, recompute=True), None, fragmented=False)
    assert learned.plan(shape(512, 8), RetryOptions(8, split=False), None) == Plan(8, recompute=True, offload=True)


def test_the_last_mode_is_planned_if_all_failed():
    learned = SizeHistory()
    for plan in (Plan(1), Plan(1, recompute=True), Plan(1, recompute=True, offload=True)):
        learned.record_failure(shape(512, 1), plan, None, fragmented=False)
    assert learned.plan(shape(512, 1), RetryOptions(1), None) == Plan(1, recompute=True, offload=True)


def test_a_wrong_prediction_widens_the_margin():
    learned = SizeHistory()
    learned.record_fit(shape(512, 8), Plan(8), 10 * GIB)
    before = learned.margin
    learned.record_failure(shape(600, 8), Plan(8), 12 * GIB, fragmented=False)
    assert learned.margin > before
    for length in range(700, 730):
        learned.record_failure(shape(length, 8), Plan(8), 12 * GIB, fragmented=False)
    assert learned.margin <= 0.15


def test_history_round_trips_through_json():
    numbers = random.Random(7)
    learned = SizeHistory()
    for _ in range(300):
        seen = shape(numbers.choice((128, 512, 2048)), numbers.randint(1, 16))
        plan = Plan(numbers.randint(1, seen.rows), recompute=numbers.random() < 0.3)
        if numbers.random() < 0.3:
            learned.record_failure(seen, plan, numbers.randint(1, 20) * GIB, fragmented=numbers.random() < 0.5)
        else:
            learned.record_fit(seen, plan, numbers.randint(1, 20) * GIB)
    again = SizeHistory.from_json(json.loads(json.dumps(learned.to_json())))
    for length in (64, 128, 512, 700, 2048, 5000):
        for rows in range(1, 20):
            for room in (None, GIB, 8 * GIB, 30 * GIB):
                asked = (shape(length, rows), RetryOptions(rows), room)
                plan = learned.plan(*asked)
                assert again.plan(*asked) == plan
                assert 1 <= plan.rows <= rows
    with pytest.raises(ValueError, match="version 0"):
        SizeHistory.from_json({"version": 0})


def test_shapes_are_bounded_and_the_oldest_is_evicted():
    learned = SizeHistory()
    for length in range(MAX_SHAPES + 10):
        learned.record_fit(shape(length, 1), Plan(1), None)
    assert len(learned.shapes) == MAX_SHAPES
    assert ("int64[*,0]", ActivationMode.PLAIN) not in learned.shapes
    assert (f"int64[*,{MAX_SHAPES + 9}]", ActivationMode.PLAIN) in learned.shapes


def test_the_model_is_never_below_its_points():
    numbers = random.Random(3)
    line = MemoryModel()
    assert line.need(5) is None
    assert line.max_elements(1e9) is None
    for _ in range(200):
        line.add(numbers.randint(1, 10_000), numbers.randint(0, 5_000) + 1000)
        for size, need in line.points:
            expected = line.need(size)
            assert expected is not None
            assert expected >= need - 1
    assert len(line.points) <= 64


def test_one_point_gives_a_line_from_the_fixed_bytes():
    line = MemoryModel()
    line.add(100, 1000)
    assert line.need(200) == 2000
    assert line.max_elements(500) == 50
    line.fixed_bytes = 900
    assert line.need(200) == 1100
    assert line.max_elements(1400) == 500


def test_an_intercept_below_the_fixed_bytes_is_rejected():
    line = MemoryModel(fixed_bytes=500)
    line.add(100, 600)
    line.add(101, 700)  # Noise: the line through both points has slope 100 and a negative intercept.
    assert line.need(200) == int(500 + 200 * 200 / 101)


def test_gradients_do_not_inflate_a_small_first_batch():
    learned = SizeHistory()
    learned.set_fixed_bytes(int(2.7 * GIB))
    learned.record_fit(shape(256, 1), Plan(1), 3 * GIB)
    assert learned.plan(shape(384, 12), RetryOptions(12), 22 * GIB) == Plan(12)
