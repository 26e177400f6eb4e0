from itertools import pairwise

from farrier.cadence import Cadence


def waits(step_s, steps, every_s=5.0):
    """The steps after which `Cadence` syncs if each step takes `step_s` seconds."""
    cadence, found = Cadence(every_s=every_s), []
    cadence.start(0, 0.0)
    for step in range(1, steps + 1):
        if cadence.due(step):
            found.append(step)
            assert abs(cadence.record_sync(step, step * step_s) - step_s) < 1e-9
    return found


def test_slow_steps_sync_each_time():
    assert waits(6.0, 5) == [1, 2, 3, 4, 5]


def test_fast_steps_sync_every_five_seconds():
    found = waits(0.01, 5000)
    assert found[:3] == [1, 11, 111]
    gaps = [after - before for before, after in pairwise(found[3:])]
    assert set(gaps) == {500}


def test_pauses_are_not_counted():
    cadence = Cadence()
    cadence.start(10, 100.0)
    assert cadence.record_sync(10, 105.0) is None
    cadence.start(10, 200.0)
    assert cadence.record_sync(12, 201.0) == 0.5


def test_a_clock_that_stops_or_goes_backwards():
    cadence = Cadence()
    cadence.start(0, 1.0)
    assert cadence.record_sync(1, 1.0) == 0.0
    assert cadence.record_sync(2, 0.5) is None
    for step in range(3, 100_000):
        if cadence.due(step):
            cadence.record_sync(step, 0.5)
    assert cadence._steps_between_syncs == cadence.steps_max
