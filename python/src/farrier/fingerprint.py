"""What a file holds, cheaply: for a checkpoint that must go on with the data that it was made with."""

from __future__ import annotations

import hashlib
import os

#: Read at both ends. A file of tokens is too large to be read whole at each start.
END_BYTES = 1 << 20


def fingerprint(path: str | os.PathLike[str]) -> str:
    """Size and a digest of the first and the last MiB: the same for the same content, wherever it lies.

    A change in the middle that keeps the size is not seen.
    """
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        digest = hashlib.sha256(file.read(END_BYTES))
        file.seek(max(0, size - END_BYTES))
        digest.update(file.read(END_BYTES))
    return f"{size} bytes, sha256 of both ends {digest.hexdigest()[:16]}"
