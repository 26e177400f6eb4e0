"""The stream of shapes and the choice of an allocator, without torch."""

from __future__ import annotations

import importlib.metadata
import os

import pytest

from farrier.bench.memory import SETTINGS, TOKENS_MAX, Shard, choose_allocator, shapes
from farrier.torch.allocator import NEW_NAME, OLD_NAME


def test_a_stream_is_deterministic_and_bounded() -> None:
    first = shapes(60, 0)
    assert first == shapes(60, 0)
    assert first != shapes(60, 1)
    assert len(first) == 60
    assert all(rows * length <= TOKENS_MAX for rows, length in first)
    assert max(rows * length for rows, length in first) > TOKENS_MAX // 2


def test_invalid_shards_are_rejected() -> None:
    with pytest.raises(ValueError, match="unknown variant `async`; expected one of default"):
        Shard("1.4b", "async", 30)
    with pytest.raises(ValueError, match="cap_gib must be above 0"):
        Shard("1.4b", "ours", 0)


@pytest.mark.parametrize(("version", "name"), [("2.8.0", OLD_NAME), ("2.11.0+cu130", NEW_NAME)])
def test_allocator_settings_of_the_environment_are_ignored(
    monkeypatch: pytest.MonkeyPatch, version: str, name: str
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _: version)
    for variant, settings in SETTINGS.items():
        if variant == "ours":
            continue
        monkeypatch.setenv(OLD_NAME, "max_split_size_mb:128")
        monkeypatch.setenv(NEW_NAME, "garbage_collection_threshold:0.8")
        assert choose_allocator(variant) == settings
        found = {key: os.environ[key] for key in (OLD_NAME, NEW_NAME) if key in os.environ}
        assert found == ({name: settings} if settings else {})
