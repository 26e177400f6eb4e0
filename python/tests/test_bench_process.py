import os
import subprocess
import sys
import time
from pathlib import Path

import farrier
from farrier.bench import process

#: A child finds the package that is tested.
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(farrier.__file__).parent.parent)}


def test_build_is_version_and_source_digest():
    version, mark = process.build().split("+")
    assert version == farrier.__version__
    assert len(mark) == 8
    assert process.build() == process.build()


def test_any_change_alters_the_digest():
    files = [("a.py", b"one"), ("b.py", b"two")]
    others = [
        [("a.py", b"one"), ("b.py", b"twO")],
        [("a.py", b"one"), ("c.py", b"two")],
        [("a.py", b"one")],
        [("a.py", b"oneb.py"), ("", b"two")],
    ]
    assert all(process.digest(files) != process.digest(other) for other in others)


def test_process_age():
    output = subprocess.run(
        [sys.executable, "-c", "import time; time.sleep(0.3); from farrier.bench.process import age_s; print(age_s())"],
        env=ENVIRONMENT,
        check=True,
        capture_output=True,
        text=True,
    )
    assert 0.29 <= float(output.stdout) < 600
    before = process.age_s()
    time.sleep(0.05)
    assert 0.02 <= process.age_s() - before < 600


def test_output_is_flushed_before_exit():
    code = (
        "import atexit; from farrier.bench import process; atexit.register(print, 'late'); print('result'); process.end(3)"
    )
    ended = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (3, "result\n")
