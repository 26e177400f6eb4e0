"""`farrier.check()` with the real binary, which FARRIER_BIN names."""

from pathlib import Path

import pytest

import farrier

CAPTURED = Path(__file__).parents[3] / "docs/tour/node"


def test_a_broken_captured_node_is_blocked():
    result = farrier.check(root=CAPTURED)
    assert result.verdict == "blocked"
    blocked = {finding.code for finding in result.findings if finding.verdict == "blocked"}
    assert "driver-library-mismatch" in blocked
    assert any(remedy.command for remedy in result.remedies)
    assert "driver-library-mismatch" in str(result)
    with pytest.raises(farrier.CannotRun, match="driver-library-mismatch"):
        farrier.check(root=CAPTURED, must="run")


def test_this_node_has_a_result():
    result = farrier.check()
    assert result.findings
    assert not {"no-answer", "no-binary", "python-unknown"} & {finding.code for finding in result.findings}


def test_a_missing_node_is_unknown_with_the_binary_s_message(tmp_path):
    result = farrier.check(root=tmp_path / "nowhere")
    assert result.verdict == "unknown"
    assert "nowhere" in str(result)
