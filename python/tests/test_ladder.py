import itertools

import pytest

from farrier.torch.ladder import Means, Mode, Plan, Rung, climb, fewer_rows, piece_sizes, worth_retrying


def every_means():
    for rows, floor in itertools.product((1, 2, 3, 7, 8), (1, 2, 4)):
        for split, recompute, offload, ballast in itertools.product((True, False), repeat=4):
            yield Means(rows, split=split, recompute=recompute, offload=offload, ballast=ballast, floor_rows=floor)


def climbed(means, fitting=None):
    """Every step from the whole batch to the end, when nothing ever fits."""
    plan, steps = Plan(means.rows), []
    while (step := climb(plan, means, retry_same=not steps, fitting_rows=fitting)) is not None:
        steps.append(step)
        plan = step.plan
        assert len(steps) < 50, "the ladder has no end"
    return steps


@pytest.mark.parametrize("fitting", [None, 0, 1, 3])
def test_everything_that_can_be_done_is_done_once_and_nothing_else(fitting):
    for means in every_means():
        check_climb(means, fitting)


def check_climb(means, fitting):
    steps = climbed(means, fitting)
    plans = [step.plan for step in steps]
    assert steps[0].rung is Rung.FREE
    assert len(set(plans)) == len(plans), "a plan is tried twice"
    last = plans[-1]
    assert last.rows == (1 if means.split else means.rows)
    assert (last.recompute, last.offload, last.without_ballast) == (means.recompute, means.offload, means.ballast)
    rungs = {step.rung for step in steps}
    assert (Rung.SPLIT in rungs) == (means.split and means.rows > 1)
    for before, after in itertools.pairwise(plans):
        assert after.rows <= before.rows
        assert (after.recompute, after.offload) >= (before.recompute, before.offload)


def test_recompute_waits_for_the_floor_and_offload_for_one_row():
    for means in every_means():
        if means.split and means.recompute:
            check_order(means)


def check_order(means):
    for before, step in itertools.pairwise([Plan(means.rows), *(step.plan for step in climbed(means)[1:])]):
        if step.recompute and not before.recompute:
            assert before.rows <= means.floor_rows
        if step.offload and not before.offload:
            assert before.rows == 1


def test_the_order_of_a_batch_of_eight():
    steps = climbed(Means(8, ballast=True))
    assert [(step.rung.value, step.plan.rows) for step in steps] == [
        ("free", 8),
        ("split", 4),
        ("split", 2),
        ("split", 1),
        ("recompute", 1),
        ("offload", 1),
        ("ballast", 1),
    ]


def test_with_a_floor_recompute_comes_between_splits():
    steps = climbed(Means(8, floor_rows=4))
    assert [(step.rung.value, step.plan.rows) for step in steps] == [
        ("free", 8),
        ("split", 4),
        ("recompute", 4),
        ("split", 2),
        ("split", 1),
        ("offload", 1),
    ]


def test_a_known_size_saves_attempts_and_is_filled_evenly():
    assert fewer_rows(16, 16, 5) == 4
    assert fewer_rows(16, 16, 15) == 8
    assert fewer_rows(16, 16, None) == 8
    assert fewer_rows(3, 2, None) == 1
    for total, rows in itertools.product(range(2, 40), range(2, 40)):
        if rows <= total:
            for fitting in (None, *range(1, rows + 3)):
                assert 1 <= fewer_rows(total, rows, fitting) < rows


def test_pieces_are_even_in_order_and_complete():
    assert piece_sizes(7, 4) == [4, 3]
    assert piece_sizes(10, 4) == [4, 3, 3]
    assert piece_sizes(5, 8) == [5]
    assert piece_sizes(0, 4) == [0]
    for total, rows in itertools.product(range(1, 60), range(1, 60)):
        sizes = piece_sizes(total, rows)
        assert sum(sizes) == total
        assert max(sizes) <= rows
        assert max(sizes) - min(sizes) <= 1


def test_a_true_peak_is_not_tried_again_and_the_unknown_is():
    assert worth_retrying(None, 10, 100, 0)
    assert worth_retrying(5, None, 100, 0)
    assert worth_retrying(5, 10, None, 0)
    assert worth_retrying(5, 90, 100, 0), "room enough, in pieces"
    assert not worth_retrying(20, 90, 100, 0)
    assert worth_retrying(20, 90, 100, 20), "as much garbage as was wanted"
    assert not worth_retrying(20, 90, 100, None)


def test_a_plan_says_what_it_is():
    assert str(Plan(1, recompute=True, offload=True, without_ballast=True)) == (
        "pieces of 1 row, recompute, offload, ballast released"
    )
    assert [Plan(2).mode, Plan(2, recompute=True).mode, Plan(2, recompute=True, offload=True).mode] == list(Mode)
