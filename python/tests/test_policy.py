import pytest

from farrier.torch.policy import Boundness, Policy, Tolerance, tolerance_for, verification_due


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
    assert tolerance_for("bfloat16").relative == pytest.approx(2**-5)
    assert tolerance_for("float64").relative < 1e-14
    assert tolerance_for("float32", noise=0.1).relative == pytest.approx(0.4)
    assert not Tolerance(1.0).allows(float("nan"), 1.0, 1.0)
    assert Tolerance(0.01).allows(0.0005, 1e-9, 100.0), "a gradient that is noise is held to the whole"
    assert not Tolerance(0.01).allows(0.02, 1.0, 1.0)
    with pytest.raises(ValueError, match="int8"):
        tolerance_for("int8")
