"""`farrier.check()`: asks the `farrier` binary whether this node can run the job.

    import torch, farrier
    print(farrier.check())            # for the log; never raises
    farrier.check(must="run")         # raises if the job cannot run

What the binary cannot determine is reported as unknown. Without the binary, the whole result is
unknown.
"""

from __future__ import annotations

import importlib.metadata
import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

log = logging.getLogger("farrier.check")

#: From best to worst, in the binary's order.
VERDICTS = ("ok", "caveat", "unknown", "blocked")

#: Explanations of verdicts that are not the node's fault.
_EXPLANATIONS = {
    "no-nvidia-gpu": (
        "expected on a machine without a GPU: CPU code runs here, CUDA code does not. Check again on the node that trains"
    ),
    "no-binary": "unknown means not checked: the node may be fine or not",
    "no-answer": "unknown means the check gave no result: the node may be fine or not",
}

#: Longer than any check takes: the binary itself waits up to ten seconds for NVML.
TIMEOUT_S = 60.0


class CannotRun(RuntimeError):
    """Raised by `check(must="run")` if the job cannot run here, or if that is unknown.

    Attributes:
        result: the check's result.
    """

    def __init__(self, result: CheckResult) -> None:
        super().__init__(str(result))
        self.result = result


@dataclass(frozen=True)
class Finding:
    """One checked item."""

    code: str
    verdict: str
    text: str
    subject: str = ""
    source: str = ""


@dataclass(frozen=True)
class Remedy:
    """What to do about a finding, with a command if there is one."""

    text: str
    command: str | None = None


@dataclass(frozen=True)
class CheckResult:
    """Result of a check. `str()` lists problems and remedies for a log.

    Attributes:
        verdict: the worst verdict of the findings: `ok`, `caveat` (works under a condition),
            `unknown` or `blocked`.
        findings: all checked items, including those that are ok.
        remedies: what to do.
        notices: advisories and known regressions, which do not affect the verdict.
        frameworks: the frameworks that this process has imported, as `torch==2.11.0+cu130`.
    """

    verdict: str
    findings: tuple[Finding, ...]
    remedies: tuple[Remedy, ...] = ()
    notices: tuple[str, ...] = ()
    frameworks: tuple[str, ...] = ()

    @property
    def can_run(self) -> bool:
        """Whether jobs can run here; False also if that is unknown."""
        return self.verdict in ("ok", "caveat")

    def __str__(self) -> str:
        lines = [f"{self.verdict.upper()}: this node for {', '.join(self.frameworks) or 'no framework (none imported)'}"]
        for finding in self.findings:
            if finding.verdict != "ok":
                lines.append(f"{finding.verdict}: {finding.text} [{finding.code}]")
                lines += [f"  {_EXPLANATIONS[finding.code]}"] if finding.code in _EXPLANATIONS else []
        for remedy in self.remedies:
            lines.append(f"- {remedy.text}" + (f": $ {remedy.command}" if remedy.command else ""))
        if self.notices:
            lines.append(f"{len(self.notices)} advisories or known regressions, see `farrier check`")
        return "\n".join(lines)


def check(
    *, must: Literal["run"] | None = None, root: str | os.PathLike[str] | None = None, timeout_s: float = TIMEOUT_S
) -> CheckResult:
    """Checks this node, its driver and the frameworks of this Python.

    A check takes about a second: run it once, on one rank per node.

    Args:
        must: "run" raises `CannotRun` if the verdict is blocked or unknown. With None, a check that
            fails raises nothing and gives a finding with the verdict unknown.
        root: the capture of a node to check instead of this node.
        timeout_s: time limit for the binary.
    """
    if must not in (None, "run"):
        raise ValueError(f"must is {must!r}; it can be 'run' or None")
    frameworks = imported_frameworks(sys.modules)
    target = ["--python", sys.executable or sys.prefix] if root is None else ["--root", os.fspath(root)]
    result = _run_binary(["check", "--output", "json", *target], timeout_s)
    result = with_frameworks(result, frameworks, of_this_python=root is None)
    if must == "run" and not result.can_run:
        raise CannotRun(result)
    return result


def find(environment: Mapping[str, str]) -> str:
    """Finds the binary: FARRIER_BIN, otherwise the first `farrier` on the PATH.

    Raises:
        FileNotFoundError: there is no such program; the message says what to do.
    """
    configured = environment.get("FARRIER_BIN")
    if configured:
        found = shutil.which(configured)
        if found is None:
            raise FileNotFoundError(f"FARRIER_BIN is `{configured}`, which is not an executable program")
        return found
    found = shutil.which("farrier", path=environment.get("PATH"))
    if found is None:
        raise FileNotFoundError("no `farrier` on the PATH: install the binary, or set FARRIER_BIN")
    return found


def parse(text: str) -> CheckResult:
    """Parses the output of `farrier check --output json`.

    Raises:
        ValueError: the text is not the output of a check.
    """
    data = json.loads(text)
    if not isinstance(data, dict):
        raise ValueError("it is not an object")
    # A node check has `items`, a compatibility check has `reasons`.
    found = data.get("items", data.get("reasons"))
    if data.get("verdict") not in VERDICTS or not isinstance(found, list):
        raise ValueError("it has no verdict or no findings")
    return CheckResult(
        verdict=data["verdict"],
        findings=tuple(_finding(finding) for finding in found),
        remedies=tuple(Remedy(str(remedy["text"]), remedy.get("command")) for remedy in _objects(data.get("remedies"))),
        notices=tuple(str(notice["text"]) for notice in _objects(data.get("notices"))),
    )


def _objects(value: object) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict) and "text" in item] if isinstance(value, list) else []


def _finding(data: object) -> Finding:
    if not isinstance(data, dict) or data.get("verdict") not in VERDICTS:
        raise ValueError("a finding has no verdict")
    fields = {name: str(data.get(name, "")) for name in ("code", "text", "subject", "source")}
    return Finding(verdict=data["verdict"], **fields)


def with_frameworks(result: CheckResult, frameworks: Sequence[str], *, of_this_python: bool = True) -> CheckResult:
    """Adds the imported frameworks to the result.

    The binary does not judge a framework that was imported from outside the checked environment
    (PYTHONPATH, a source tree), so such a framework makes the verdict unknown. On a blocked node
    the binary may have judged no framework at all. The finding then names only frameworks that were
    judged in another version, and the verdict stays blocked.
    """
    result = replace(result, frameworks=tuple(frameworks))
    if not of_this_python:
        return result
    blocked = result.verdict == "blocked"
    judged_versions = {_name_and_version(finding.subject) for finding in result.findings}
    unjudged = [name for name in frameworks if not name.endswith("+cpu") and _name_and_version(name) not in judged_versions]
    if blocked and not any(finding.code == "framework-none" for finding in result.findings):
        judged_names = {name for name, _ in judged_versions}
        unjudged = [name for name in unjudged if _name_and_version(name)[0] in judged_names]
    if not unjudged or any(finding.verdict == "unknown" for finding in result.findings):
        return result
    text = f"{', '.join(unjudged)} runs here but is not the one installed for {sys.executable}: it was not judged"
    finding = Finding("running-not-judged", "unknown", text, subject=unjudged[0], source="sys.modules")
    return replace(result, verdict="blocked" if blocked else "unknown", findings=(*result.findings, finding))


def _name_and_version(framework: str) -> tuple[str, str]:
    """Name and version without the build tag: `jax[cuda13]==0.8.0` is jax 0.8.0."""
    name, _, version = framework.partition("==")
    return name.partition("[")[0], version.partition("+")[0]


def imported_frameworks(modules: Mapping[str, Any]) -> list[str]:
    """The imported frameworks, in the form that `farrier check --framework` takes.

    It imports and initialises nothing.
    """
    found = []
    for name in ("torch", "tensorflow", "jax"):
        version = str(getattr(modules.get(name), "__version__", ""))
        if version:
            found.append(_framework_spec(name, version, modules[name]))
    return found


def _framework_spec(name: str, version: str, module: Any) -> str:
    if name == "jax":
        return f"jax{_jax_extra()}=={version}"
    if "+" in version:
        return f"{name}=={version}"
    try:
        cuda = module.version.cuda if name == "torch" else module.sysconfig.get_build_info().get("cuda_version")
    except (AttributeError, KeyError):
        return f"{name}=={version}"
    if not cuda:
        return f"{name}=={version}+cpu"
    return f"torch=={version}+cu{str(cuda).replace('.', '')}" if name == "torch" else f"{name}=={version}"


def _jax_extra() -> str:
    for cuda in ("cuda13", "cuda12"):
        try:
            importlib.metadata.version(f"jax-{cuda}-plugin")
        except importlib.metadata.PackageNotFoundError:
            continue
        return f"[{cuda}]"
    return "[cpu]"


def _run_binary(arguments: Sequence[str], timeout_s: float) -> CheckResult:
    """Runs the binary. If that fails, the result is unknown, with the reason."""
    try:
        binary = find(os.environ)
    except FileNotFoundError as err:
        return _unknown_result("no-binary", str(err))
    try:
        completed = subprocess.run(
            [binary, *arguments], stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        return _unknown_result("no-answer", f"`{binary}` did not finish within {timeout_s:g} s")
    except (OSError, ValueError) as err:
        return _unknown_result("no-answer", f"`{binary}` could not be started: {err}")
    stdout, stderr = (output.decode("utf-8", "replace").strip() for output in (completed.stdout, completed.stderr))
    if completed.returncode not in (0, 1):
        outcome = (
            f"ended by signal {-completed.returncode}"
            if completed.returncode < 0
            else f"failed with exit code {completed.returncode}"
        )
        return _unknown_result("no-answer", f"`{binary}` {outcome}: {_short(stderr) or 'no error message'}")
    try:
        return parse(stdout)
    except (ValueError, RecursionError) as err:
        text = f"`{binary}` printed invalid output ({_short(str(err))}): {_short(stdout) or 'nothing'}"
        return _unknown_result("no-answer", text)


def _unknown_result(code: str, text: str) -> CheckResult:
    log.info("%s", text)
    return CheckResult("unknown", (Finding(code, "unknown", text, subject="farrier", source="farrier.check"),))


def _short(text: str, chars: int = 400) -> str:
    return text if len(text) <= chars else f"{text[:chars]}..."
