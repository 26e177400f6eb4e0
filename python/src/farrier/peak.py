"""Peak throughput of a GPU, from the facts of the `farrier` binary."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

from farrier.binary import find


def peak_flops(gpu: str, timeout_s: float = 10.0) -> float | None:
    """Dense 16-bit peak of the GPU with that name, in FLOP/s. None if it is unknown."""
    try:
        command = [find(os.environ), "facts", "gpu", gpu, "--output", "json"]
        completed = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=True)
        entries: list[dict[str, Any]] = json.loads(completed.stdout)["gpu"]
        rates = {entry["compute"]["fp16_tflops"] for entry in entries}
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError):
        return None
    rate = rates.pop() if len(rates) == 1 else None
    return None if rate is None else float(rate) * 1e12
