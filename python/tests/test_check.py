"""`farrier.check()` with working and broken binaries."""

import json
import os
import stat
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

import farrier
from farrier import binary

ANSWER = {
    "verdict": "caveat",
    "items": [
        {"code": "gpu-known", "subject": "GPUs", "verdict": "ok", "text": "8 GPUs", "source": "NVML"},
        {"code": "packages-not-held", "subject": "packages", "verdict": "caveat", "text": "not held", "source": "dpkg"},
    ],
    "remedies": [{"text": "hold them", "command": "apt-mark hold x"}, {"text": "or do not", "command": None}],
    "notices": [{"code": "exposed", "id": "CVE-1", "text": "an advisory", "source": "NVIDIA"}],
    "data": {"set": "farrier-2026.11.18", "date": "2026-11-18"},
}


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """Makes FARRIER_BIN a program that runs these shell lines."""

    def make(*lines):
        path = tmp_path / "fake-farrier"
        path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("FARRIER_BIN", str(path))
        return path

    return make


@pytest.fixture
def no_frameworks(monkeypatch):
    for name in ("torch", "tensorflow", "jax"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def printing(result, code=0):
    return f"cat <<'END'\n{json.dumps(result)}\nEND\nexit {code}"


def test_a_result_is_parsed(fake, no_frameworks):
    fake(printing(ANSWER))
    result = farrier.check()
    assert result.verdict == "caveat"
    assert result.can_run
    assert [finding.code for finding in result.findings] == ["gpu-known", "packages-not-held"]
    assert result.remedies[0] == binary.Remedy("hold them", "apt-mark hold x")
    assert result.notices == ("an advisory",)
    text = str(result)
    assert text.startswith("CAVEAT: this node")
    assert "caveat: not held [packages-not-held]" in text
    assert "8 GPUs" not in text, "good findings are not in the log"
    assert "$ apt-mark hold x" in text
    assert "1 advisories" in text
    assert farrier.check(must="run") == result


def test_the_binary_checks_this_python(fake, tmp_path, no_frameworks):
    fake(f'echo "$@" > {tmp_path}/words', printing(ANSWER))
    farrier.check()
    assert (tmp_path / "words").read_text().split() == ["check", "--output", "json", "--python", sys.executable]
    farrier.check(root="/captured")
    assert (tmp_path / "words").read_text().split() == ["check", "--output", "json", "--root", "/captured"]


@pytest.mark.parametrize("verdict", ["blocked", "unknown"])
def test_only_must_run_raises(fake, no_frameworks, verdict):
    item = {"code": "c", "subject": "s", "verdict": verdict, "text": "the driver is too old", "source": "x"}
    fake(printing({"verdict": verdict, "items": [item]}, code=1))
    result = farrier.check()
    assert not result.can_run
    with pytest.raises(farrier.CannotRun, match="the driver is too old") as caught:
        farrier.check(must="run")
    assert caught.value.result == result


def test_a_machine_without_a_gpu_is_blocked_and_explained(fake, no_frameworks):
    item = {"code": "no-nvidia-gpu", "subject": "GPUs", "verdict": "blocked", "text": "no NVIDIA GPU", "source": "x"}
    fake(printing({"verdict": "blocked", "items": [item]}, code=1))
    result = farrier.check()
    assert not result.can_run
    lines = str(result).splitlines()
    assert lines[:2] == ["BLOCKED: this node for no framework (none imported)", "blocked: no NVIDIA GPU [no-nvidia-gpu]"]
    assert "expected on a machine without a GPU" in lines[2]
    with pytest.raises(farrier.CannotRun, match="CUDA code does not"):
        farrier.check(must="run")


def unanswered(code, *parts):
    result = farrier.check()
    assert result.verdict == "unknown"
    assert not result.can_run
    assert result.findings[0].code == code
    assert "the node may be fine or not" in str(result)
    for part in parts:
        assert part in result.findings[0].text
    with pytest.raises(farrier.CannotRun):
        farrier.check(must="run")


def test_no_binary(tmp_path, monkeypatch):
    monkeypatch.delenv("FARRIER_BIN", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    unanswered("no-binary", "PATH", "FARRIER_BIN")


def test_an_invalid_farrier_bin(tmp_path, monkeypatch):
    (tmp_path / "text").write_text("no program")
    for name in ("text", "nowhere"):
        monkeypatch.setenv("FARRIER_BIN", str(tmp_path / name))
        unanswered("no-binary", str(tmp_path / name))


def test_the_binary_is_found_on_the_path(fake, tmp_path, monkeypatch):
    os.rename(fake(printing(ANSWER)), tmp_path / "farrier")
    monkeypatch.delenv("FARRIER_BIN")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert binary.find(os.environ) == str(tmp_path / "farrier")
    assert farrier.check().findings[0].code == "gpu-known"


@pytest.mark.parametrize(
    "garbage",
    [
        "", "hello", "[]", "17", "{}", "[" * 50_000, '{"verdict":"splendid","items":[]}', '{"verdict":"ok","items":{}}',
        '{"verdict":"ok","items":[{"verdict":"fine"}]}', '{"verdict":"ok","items":["x"]}',
    ],
)  # fmt: skip
def test_garbage_output_is_unknown(fake, tmp_path, garbage):
    (tmp_path / "garbage").write_text(garbage)
    fake(f"cat {tmp_path}/garbage")
    unanswered("no-answer", "printed invalid output")
    assert len(str(farrier.check())) < 2000


def test_non_text_output_is_unknown(fake):
    fake(r"printf '\377\376\000'")
    unanswered("no-answer", "printed invalid output")


def test_the_binary_s_error_message_is_passed_on(fake):
    fake("echo 'error: unexpected argument' >&2", "exit 2")
    unanswered("no-answer", "exit code 2", "unexpected argument")


def test_a_crash(fake):
    fake("kill -SEGV $$")
    unanswered("no-answer", "signal 11")


def test_a_program_that_cannot_be_started(fake, tmp_path):
    path = fake("true")
    path.write_bytes(b"\x7fELF no program")
    unanswered("no-answer", "could not be started")


def test_a_hanging_binary_is_killed(fake):
    fake("exec sleep 600")
    began = time.monotonic()
    result = farrier.check(timeout_s=0.2)
    assert time.monotonic() - began < 300, "the check did not wait for the binary to end"
    assert "did not finish within 0.2 s" in str(result)
    assert result.verdict == "unknown"


def test_an_invalid_must_is_rejected():
    with pytest.raises(ValueError, match="'fly'"):
        farrier.check(must="fly")


def torch_like(version, cuda):
    return SimpleNamespace(__version__=version, version=SimpleNamespace(cuda=cuda))


def test_frameworks_are_named_as_the_binary_expects():
    def tensorflow(**info):
        return SimpleNamespace(__version__="2.21.0", sysconfig=SimpleNamespace(get_build_info=lambda: info))

    named = binary.imported_frameworks
    assert named({}) == []
    assert named({"torch": torch_like("2.11.0+cu130", "13.0")}) == ["torch==2.11.0+cu130"]
    assert named({"torch": torch_like("2.11.0", "13.0")}) == ["torch==2.11.0+cu130"]
    assert named({"torch": torch_like("2.11.0", None)}) == ["torch==2.11.0+cpu"]
    assert named({"torch": SimpleNamespace()}) == [], "torch is only half imported"
    assert named({"tensorflow": tensorflow(cuda_version="12.5")}) == ["tensorflow==2.21.0"]
    assert named({"tensorflow": tensorflow()}) == ["tensorflow==2.21.0+cpu"]
    assert named({"jax": SimpleNamespace(__version__="0.8.0")})[0].endswith("==0.8.0")


def judged(*subjects, verdict="ok"):
    return binary.CheckResult(
        "ok", tuple(binary.Finding("cuda-native", verdict, "t", subject=finding) for finding in subjects)
    )


def test_an_unjudged_framework_is_unknown():
    same = binary.with_frameworks(judged("torch==2.11.0"), ["torch==2.11.0+cu130"])
    assert same.verdict == "ok"
    assert "torch==2.11.0+cu130" in str(same)
    other = binary.with_frameworks(judged("torch==2.10.0"), ["torch==2.11.0+cu130"])
    assert other.verdict == "unknown"
    assert other.findings[-1].code == "running-not-judged"
    assert binary.with_frameworks(judged("jax[cuda13]==0.8.0"), ["jax[cuda13]==0.8.0"]).verdict == "ok"
    assert binary.with_frameworks(judged(), ["torch==2.11.0+cpu"]).verdict == "ok", "a CPU build needs no GPU"
    assert binary.with_frameworks(judged(), ["torch==2.11.0"], of_this_python=False).verdict == "ok"


def test_a_blocked_node_names_foreign_imports_and_stays_blocked():
    def blocked(*findings):
        no_gpu = binary.Finding("no-nvidia-gpu", "blocked", "no NVIDIA GPU", subject="GPUs")
        return binary.with_frameworks(binary.CheckResult("blocked", (no_gpu, *findings)), ["torch==2.11.0+cu130"])

    none = blocked(binary.Finding("framework-none", "ok", "it has none", subject="Python"))
    assert (none.verdict, none.findings[-1].code) == ("blocked", "running-not-judged")
    assert "it was not judged [running-not-judged]" in str(none)
    other = blocked(binary.Finding("cuda-native", "ok", "t", subject="torch==2.10.0"))
    assert (other.verdict, other.findings[-1].code) == ("blocked", "running-not-judged")
    assert len(blocked().findings) == 1, "without a GPU no framework is judged, so it may be the right one"


def test_importing_farrier_imports_no_framework():
    source = (
        "import sys, farrier, farrier.agent; print(sorted({'torch','keras','jax','tensorflow','numpy'} & set(sys.modules)))"
    )
    folder = os.path.join(os.path.dirname(__file__), "..", "src")
    ran = subprocess.run(
        [sys.executable, "-c", source], env={**os.environ, "PYTHONPATH": folder}, capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == "[]"
