from farrier.fingerprint import END_BYTES, fingerprint


def test_depends_on_content_and_not_on_path(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    content = bytes(range(256)) * (END_BYTES // 64)  # Four MiB.
    one.write_bytes(content)
    other.write_bytes(content)
    assert fingerprint(one) == fingerprint(other)
    assert fingerprint(one).startswith(f"{4 * END_BYTES} bytes, sha256 of both ends ")
    for changed in (b"x" + content[1:], content[:-1] + b"x", content + b"x", content[:-256]):
        other.write_bytes(changed)
        assert fingerprint(other) != fingerprint(one)


def test_small_and_empty_files(tmp_path):
    empty, small = tmp_path / "empty", tmp_path / "small"
    empty.write_bytes(b"")
    small.write_bytes(b"ab")
    assert fingerprint(empty).startswith("0 bytes")
    assert fingerprint(small) != fingerprint(empty)
