"""Cheap fingerprint of a data file, so that a checkpoint resumes only with its own data."""

from __future__ import annotations

import hashlib
import os

#: Bytes read at each end of the file. A token file is too large to be read in full at each start.
END_BYTES = 1 << 20


def fingerprint(path: str | os.PathLike[str]) -> str:
    """File size and a digest of the first and last MiB, independent of the path.

    It does not detect a change in the middle that keeps the size.
    """
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        digest = hashlib.sha256(file.read(END_BYTES))
        file.seek(max(0, size - END_BYTES))
        digest.update(file.read(END_BYTES))
    return f"{size} bytes, sha256 of both ends {digest.hexdigest()[:16]}"
