import pytest

from farrier.torch.graph_policy import (
    CallAction,
    Policy,
    StepTiming,
    Tolerance,
    VerifySchedule,
    coarsest,
    joint_action,
    may_evict,
    tolerance_for,
    verify_interval,
)


def compared_at(schedule, replays, comparison_s=0.0, step_s=1.0):
    """The numbers of the replays that are compared."""
    found = []
    for replay in range(1, replays + 1):
        if schedule.due(replay):
            found.append(replay)
            schedule.record_comparison(replay, comparison_s, step_s)
    return found


def test_comparisons_are_early_then_at_the_users_interval():
    found = compared_at(VerifySchedule(100), 300, comparison_s=3600.0, step_s=0.001)
    assert found == [1, 2, 4, 8, 16, 32, 64, 100, 200, 300]


EARLY = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]


def test_comparisons_of_short_steps_stay_within_their_share():
    # A model of 191 M weights on an H200: a comparison takes 80 ms, a step 5.4 ms.
    schedule = VerifySchedule(None)
    found = compared_at(schedule, 100_000, 0.080, 0.0054)
    assert found[:12] == [*EARLY, 512 + 4939, 512 + 2 * 4939]
    late = len(found) - len(EARLY)
    assert late * 0.080 / (100_000 * 0.0054) <= 0.003
    assert schedule.cost_share == pytest.approx(0.003, rel=0.01)


def test_comparison_intervals_are_bounded():
    for comparison_s, step_s in [(0.4, 0.131), (4.0, 0.131), (0.0, 0.005), (0.08, 2.0), (1e9, 1.0)]:
        assert verify_interval(comparison_s, step_s) == 1000
        assert compared_at(VerifySchedule(None), 3000, comparison_s, step_s) == [*EARLY, 1512, 2512]
    for step_s in (0.0001, 0.001, 0.01, 0.1):
        assert verify_interval(1e9, step_s) * step_s == pytest.approx(120.0)


def test_a_broken_clock_does_not_prevent_comparisons():
    for comparison_s, step_s in [(1.0, 0.0), (-1.0, 1.0), (float("nan"), 1.0), (1.0, float("nan")), (float("inf"), 1.0)]:
        assert verify_interval(comparison_s, step_s) == 1000
    assert VerifySchedule(None).cost_share is None, "nothing was measured"


def test_the_fastest_replay_counts():
    schedule = VerifySchedule(None)
    schedule.record_comparison(1, 0.080, 3.0)  # The first replay is slow, because it uploads the graph.
    assert schedule.interval == 1000
    schedule.record_comparison(2, 0.080, 0.0054)
    schedule.record_comparison(4, 0.080, 1.0)
    assert schedule.interval == 4939


def test_estimated_speedup():
    assert StepTiming(0.010, 0.010, busy_s=0.004).gain == pytest.approx(2.5)
    assert StepTiming(0.010, 0.002).gain == 1.0
    assert StepTiming(0.010, 0.009).gain is None
    assert "estimated graph speed-up is unknown" in str(StepTiming(0.010, 0.009))
    assert str(StepTiming(0.010, 0.010, busy_s=0.004)).endswith(
        "estimated graph speed-up is about 2.50x, by one profiled step"
    )
    assert str(StepTiming(0.010, 0.002)).endswith("estimated graph speed-up is about 1.00x, by one timed step")
    assert StepTiming(0.010, 0.010, busy_s=0.020).gain == 1.0


def test_invalid_policies_are_rejected():
    with pytest.raises(ValueError, match="verify_every is 0"):
        Policy(verify_every=0)


def test_tolerance_depends_on_dtype_and_rejects_nan():
    assert tolerance_for("bfloat16").relative == pytest.approx(2**-8)
    assert tolerance_for("bfloat16", roundings=8).relative == pytest.approx(2**-5)
    assert tolerance_for("float64").relative < 1e-14
    assert tolerance_for("float32").relative == pytest.approx(2**-11), "TF32"
    assert not Tolerance(1.0).allows(float("nan"), 1.0, 1.0)
    assert Tolerance(0.01).allows(0.0005, 1e-9, 100.0), "a tiny gradient is compared with the norm of all gradients"
    assert not Tolerance(0.01).allows(0.02, 1.0, 1.0)
    with pytest.raises(ValueError, match="int8"):
        tolerance_for("int8")


def test_ranks_take_the_most_conservative_action():
    assert joint_action(CallAction.REPLAY, same_shape=True) is CallAction.REPLAY
    for move in (CallAction.REPLAY, CallAction.VERIFY, CallAction.CAPTURE):
        assert joint_action(move, same_shape=False) is CallAction.EAGER
    assert joint_action(CallAction.WARM_UP, same_shape=False) is CallAction.WARM_UP
    assert joint_action(CallAction.DISABLE, same_shape=False) is CallAction.DISABLE
    assert max(CallAction.REPLAY, CallAction.CAPTURE) is CallAction.CAPTURE
    assert max(CallAction.WARM_UP, CallAction.EAGER, CallAction.CAPTURE) is CallAction.EAGER


def test_a_graph_is_evictable_once_paid_off_or_idle():
    policy = Policy(max_graphs=4, break_even_replays=10)
    assert may_evict(10, 0, policy)
    assert not may_evict(9, 39, policy)
    assert may_evict(0, 40, policy)


def test_the_coarsest_dtype_has_the_fewest_bits():
    assert coarsest(["float32", "bfloat16", "float16"]) == "bfloat16"
    assert coarsest([]) == "float32"
