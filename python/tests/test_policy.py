import pytest

from farrier.torch.policy import (
    Boundness,
    Move,
    Policy,
    Tolerance,
    coarsest,
    joint,
    may_go,
    tolerance_for,
    verification_due,
)


def test_comparisons_come_early_and_then_at_the_interval():
    due = [replay for replay in range(1, 301) if verification_due(replay, 100)]
    assert due == [1, 2, 4, 8, 16, 32, 64, 100, 200, 300]


def test_what_a_graph_would_bring():
    assert Boundness(0.010, 0.010, busy_s=0.004).gain == pytest.approx(2.5)
    assert Boundness(0.010, 0.002).gain == 1.0
    assert Boundness(0.010, 0.009).gain is None
    assert "unknown" in str(Boundness(0.010, 0.009))
    assert Boundness(0.010, 0.010, busy_s=0.020).gain == 1.0


def test_a_policy_of_nothing_is_refused():
    with pytest.raises(ValueError, match="verify_every is 0"):
        Policy(verify_every=0)


def test_tolerance_follows_the_type_and_the_noise_and_never_allows_nan():
    assert tolerance_for("bfloat16").relative == pytest.approx(2**-8)
    assert tolerance_for("bfloat16", roundings=8).relative == pytest.approx(2**-5)
    assert tolerance_for("float64").relative < 1e-14
    assert tolerance_for("float32", noise=0.1).relative == pytest.approx(0.4)
    assert not Tolerance(1.0).allows(float("nan"), 1.0, 1.0)
    assert Tolerance(0.01).allows(0.0005, 1e-9, 100.0), "a gradient that is noise is held to the whole"
    assert not Tolerance(0.01).allows(0.02, 1.0, 1.0)
    with pytest.raises(ValueError, match="int8"):
        tolerance_for("int8")


def test_ranks_do_what_the_most_careful_of_them_wants():
    assert joint(Move.REPLAY, one_key=True) is Move.REPLAY
    for move in (Move.REPLAY, Move.VERIFY, Move.MAKE):
        assert joint(move, one_key=False) is Move.EAGER
    assert joint(Move.WARM_UP, one_key=False) is Move.WARM_UP
    assert joint(Move.STOP, one_key=False) is Move.STOP
    assert max(Move.REPLAY, Move.MAKE) is Move.MAKE
    assert max(Move.WARM_UP, Move.EAGER, Move.MAKE) is Move.EAGER


def test_a_graph_goes_when_it_has_paid_or_is_idle():
    policy = Policy(graphs=4, pays=10)
    assert may_go(10, 0, policy)
    assert not may_go(9, 39, policy)
    assert may_go(0, 40, policy)


def test_the_coarsest_type_has_the_fewest_bits():
    assert coarsest(["float32", "bfloat16", "float16"]) == "bfloat16"
    assert coarsest([]) == "float32"
