import pytest

from farrier.formatting import count_of, format_percent
from farrier.torch.guard_report import DoesNotFit, GuardReport, describe_recovery, gib
from farrier.torch.retry_policy import Plan, RetryStep


def test_the_report_as_text():
    report = GuardReport(
        calls=60,
        split_calls=17,
        ooms=4,
        lost=0,
        recovered={"split": 3, "recompute": 1},
        retry_s=2.345,
        safe_rows={f"int64[*,{n}] (plain)": n for n in range(1, 8)},
        peak_bytes=29 * 2**30,
        notes=["not split: because"],
    )
    lines = str(report).splitlines()
    assert lines[0] == (
        "farrier guard: 60 calls, 4 out-of-memory, 4 steps recovered (3 by split, 1 by recompute), 0 lost; "
        "17 ran in micro-batches; 2.3 s in failed attempts; highest peak 29.00 GiB"
    )
    assert lines[1] == "  most at once so far: 3 rows of int64[*,3] (plain)"
    assert lines[-2:] == ["  and 2 shapes more", "  note: not split: because"]


def test_does_not_fit_lists_attempts_and_a_hint():
    error = DoesNotFit(
        ["as planned (micro-batches of 1 row): CUDA out of memory"],
        shape="1 rows of int64[*,9]",
        requested_bytes=2**30,
        allocated_bytes=None,
        capacity_bytes=30 * 2**30,
        not_tried=["not recomputed: no blocks"],
    )
    text = str(error)
    assert "requested 1.00 GiB more, unknown in use, 30.00 GiB at most" in text
    assert "tried: as planned (micro-batches of 1 row): CUDA out of memory" in text
    assert "not tried: not recomputed: no blocks" in text
    assert "\nhint: " in text
    assert error.requested_bytes == 2**30


def test_unknown_values_are_shown():
    assert gib(None) == "unknown"
    assert gib(0) == "0.0 MiB"


def test_plurals_and_percentages():
    report = GuardReport(1, 0, 1, 0, {"split": 1}, 0.0, {"int64[*] (plain)": 1}, None, [])
    assert "1 call, 1 out-of-memory, 1 step recovered (1 by split)" in str(report)
    assert "1 row of int64[*]" in str(report)
    assert [count_of(n, "row") for n in (0, 1, 2, 1000)] == ["0 rows", "1 row", "2 rows", "1,000 rows"]
    assert [format_percent(share) for share in (0, 0.003, 0.0994, 0.0996, 0.79, 1.0, 12.0)] == [
        "0 %", "0.3 %", "9.9 %", "10 %", "79 %", "100 %", "1200 %"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("retry_step", "plan", "micro_batches", "expected"),
    [
        (RetryStep.SPLIT, Plan(2), 4, "out of memory at 8 rows: from here on 4 micro-batches of 2 rows for float32[*,16]"),
        (
            RetryStep.RECOMPUTE,
            Plan(1, recompute=True),
            8,
            "from here on 8 micro-batches of 1 row, recomputed for float32[*,16]",
        ),
        (
            RetryStep.OFFLOAD,
            Plan(8, offload=True),
            1,
            "from here on all rows at once, offloaded to the host for float32[*,16]",
        ),
        (RetryStep.FREE, Plan(8), 1, "8 rows of float32[*,16]: they ran after cached memory was freed"),
        (RetryStep.RESERVE, Plan(8, without_reserve=True), 1, "all rows at once ran, with the reserve released"),
    ],
)
def test_describe_recovery(retry_step, plan, micro_batches, expected):
    assert describe_recovery(8, "float32[*,16]", retry_step, plan, micro_batches).endswith(expected)
