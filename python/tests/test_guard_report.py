from farrier.torch.guard_report import DoesNotFit, GuardReport, gib


def test_the_report_reads_well_in_a_log():
    report = GuardReport(
        calls=60,
        split_calls=17,
        ooms=4,
        lost=0,
        saved={"split": 3, "recompute": 1},
        retry_s=2.345,
        safe_rows={f"int64[*,{n}] (plain)": n for n in range(1, 8)},
        peak_bytes=29 * 2**30,
        notes=["not split: because"],
    )
    lines = str(report).splitlines()
    assert lines[0] == (
        "farrier guard: 60 calls, 4 out-of-memory, 4 steps saved (3 by split, 1 by recompute), 0 lost; 17 ran in pieces; "
        "2.3 s in failed attempts; highest peak 29.00 GiB"
    )
    assert lines[1] == "  most at once so far: 3 rows of int64[*,3] (plain)"
    assert lines[-2:] == ["  and 2 shapes more", "  note: not split: because"]


def test_what_does_not_fit_says_what_was_tried_and_what_to_do():
    error = DoesNotFit(
        ["as planned (pieces of 1 row): CUDA out of memory"],
        shape="1 rows of int64[*,9]",
        wanted_bytes=2**30,
        allocated_bytes=None,
        capacity_bytes=30 * 2**30,
        impossible=["not recomputed: no blocks"],
    )
    text = str(error)
    assert "wanted 1.00 GiB more, unknown in use, 30.00 GiB at most" in text
    assert "tried: as planned (pieces of 1 row): CUDA out of memory" in text
    assert "not tried: not recomputed: no blocks" in text
    assert "\nhint: " in text
    assert error.wanted_bytes == 2**30


def test_unknown_is_said():
    assert gib(None) == "unknown"
    assert gib(0) == "0.0 MiB"
