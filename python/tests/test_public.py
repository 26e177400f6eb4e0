"""The names that a module lists."""

import os
import subprocess
import sys

SOURCE = os.path.join(os.path.dirname(__file__), "..", "src")


def parameter_names(module):
    code = f"import sys, {module}; print(*dir({module})); print(*sys.modules); print(*{module}.__all__)"
    ran = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": SOURCE}, capture_output=True, text=True, check=True
    )
    return [set(line.split()) for line in ran.stdout.splitlines()]


def test_lazy_names_are_listed():
    for module in ("farrier.torch", "farrier.keras", "farrier.jax", "farrier"):
        listed, imported, public = parameter_names(module)
        assert public
        assert public <= listed, module
        assert not {"torch", "keras", "jax", "numpy"} & imported, module
