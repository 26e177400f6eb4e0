"""A cheap fingerprint of a data file, to check that a run resumes with the same data."""

from __future__ import annotations

import hashlib
import os

#: Bytes that are read at each end of the file. Reading a whole token file would take too long.
END_BYTES = 1 << 20


def fingerprint(path: str | os.PathLike[str]) -> str:
    """File size and a digest of the first and last MiB, independent of the path.

    Does not detect a change in the middle of the file that keeps the size.
    """
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        digest = hashlib.sha256(file.read(END_BYTES))
        file.seek(max(0, size - END_BYTES))
        digest.update(file.read(END_BYTES))
    return f"{size} bytes, sha256 of both ends {digest.hexdigest()[:16]}"
