import itertools

import pytest

from farrier.torch.retry_policy import (
    ActivationMode,
    Plan,
    RetryOptions,
    RetryStep,
    fewer_rows,
    micro_batch_sizes,
    next_attempt,
    worth_retrying,
)


def every_means():
    for rows, floor in itertools.product((1, 2, 3, 7, 8), (1, 2, 4)):
        for split, recompute, offload, reserve in itertools.product((True, False), repeat=4):
            yield RetryOptions(rows, split=split, recompute=recompute, offload=offload, reserve=reserve, floor_rows=floor)


def all_attempts(options, fitting=None):
    """All attempts, starting with the whole batch, if nothing ever fits."""
    plan, steps = Plan(options.rows), []
    while (step := next_attempt(plan, options, retry_same=not steps, expected_fitting_rows=fitting)) is not None:
        steps.append(step)
        plan = step.plan
        assert len(steps) < 50, "the retry policy does not end"
    return steps


@pytest.mark.parametrize("fitting", [None, 0, 1, 3])
def test_every_available_measure_is_tried_once(fitting):
    for options in every_means():
        check_climb(options, fitting)


def check_climb(options, fitting):
    steps = all_attempts(options, fitting)
    plans = [step.plan for step in steps]
    assert steps[0].retry_step is RetryStep.FREE
    assert len(set(plans)) == len(plans), "a plan is tried twice"
    last = plans[-1]
    assert last.rows == (1 if options.split else options.rows)
    assert (last.recompute, last.offload, last.without_reserve) == (options.recompute, options.offload, options.reserve)
    retry_steps = {step.retry_step for step in steps}
    assert (RetryStep.SPLIT in retry_steps) == (options.split and options.rows > 1)
    for before, after in itertools.pairwise(plans):
        assert after.rows <= before.rows
        assert (after.recompute, after.offload) >= (before.recompute, before.offload)


def test_recompute_waits_for_the_floor_and_offload_for_one_row():
    for options in every_means():
        if options.split and options.recompute:
            check_order(options)


def check_order(options):
    for before, step in itertools.pairwise([Plan(options.rows), *(step.plan for step in all_attempts(options)[1:])]):
        if step.recompute and not before.recompute:
            assert before.rows <= options.floor_rows
        if step.offload and not before.offload:
            assert before.rows == 1


def test_the_order_of_a_batch_of_eight():
    steps = all_attempts(RetryOptions(8, reserve=True))
    assert [(step.retry_step.value, step.plan.rows) for step in steps] == [
        ("free", 8),
        ("split", 4),
        ("split", 2),
        ("split", 1),
        ("recompute", 1),
        ("offload", 1),
        ("reserve", 1),
    ]


def test_with_a_floor_recompute_comes_between_splits():
    steps = all_attempts(RetryOptions(8, floor_rows=4))
    assert [(step.retry_step.value, step.plan.rows) for step in steps] == [
        ("free", 8),
        ("split", 4),
        ("recompute", 4),
        ("split", 2),
        ("split", 1),
        ("offload", 1),
    ]


def test_an_expected_size_saves_attempts():
    assert fewer_rows(16, 16, 5) == 4
    assert fewer_rows(16, 16, 15) == 8
    assert fewer_rows(16, 16, None) == 8
    assert fewer_rows(3, 2, None) == 1
    for total, rows in itertools.product(range(2, 40), range(2, 40)):
        if rows <= total:
            for fitting in (None, *range(1, rows + 3)):
                assert 1 <= fewer_rows(total, rows, fitting) < rows


def test_micro_batches_are_even_in_order_and_complete():
    assert micro_batch_sizes(7, 4) == [4, 3]
    assert micro_batch_sizes(10, 4) == [4, 3, 3]
    assert micro_batch_sizes(5, 8) == [5]
    assert micro_batch_sizes(0, 4) == [0]
    for total, rows in itertools.product(range(1, 60), range(1, 60)):
        sizes = micro_batch_sizes(total, rows)
        assert sum(sizes) == total
        assert max(sizes) <= rows
        assert max(sizes) - min(sizes) <= 1


def test_a_true_peak_is_not_retried_but_an_unknown_one_is():
    assert worth_retrying(None, 10, 100, 0)
    assert worth_retrying(5, None, 100, 0)
    assert worth_retrying(5, 10, None, 0)
    assert worth_retrying(5, 90, 100, 0), "enough memory, but fragmented"
    assert not worth_retrying(20, 90, 100, 0)
    assert worth_retrying(20, 90, 100, 20), "as much garbage as requested"
    assert not worth_retrying(20, 90, 100, None)


def test_plan_as_text():
    assert str(Plan(1, recompute=True, offload=True, without_reserve=True)) == (
        "micro-batches of 1 row, recompute, offload, reserve released"
    )
    assert [Plan(2).mode, Plan(2, recompute=True).mode, Plan(2, recompute=True, offload=True).mode] == list(ActivationMode)
