import os
import sys
from types import SimpleNamespace

import pytest

import farrier.jax
import farrier.keras
from farrier import settings


def test_user_settings_are_kept():
    environment = {"A": "theirs", "C": "same"}
    made = settings.apply({"A": "ours", "B": "ours", "C": "same"}, environment, [], ["tensorflow"])
    assert environment == {"A": "theirs", "B": "ours", "C": "same"}
    assert (made.set, made.unchanged, made.late) == ({"B": "ours"}, {"A": "theirs"}, ())
    assert str(made) == "B=ours; A=theirs (already set, kept)"
    assert str(settings.apply({}, {}, [], [])) == "nothing to set"


def test_late_settings_are_warned_about(caplog):
    made = settings.apply({"A": "1"}, {}, ["tensorflow", "os"], ["tensorflow", "jax"])
    assert made.late == ("tensorflow",)
    assert "tensorflow was already imported" in caplog.text


@pytest.mark.parametrize(
    ("environment", "config", "backend"),
    [
        ({}, None, "tensorflow"),
        ({}, '{"backend": "jax"}', "jax"),
        ({}, "{", "tensorflow"),
        ({}, "[]", "tensorflow"),
        ({}, '{"backend": 5}', "tensorflow"),
        ({"KERAS_BACKEND": "torch"}, '{"backend": "jax"}', "torch"),
        ({"KERAS_BACKEND": ""}, None, "tensorflow"),
    ],
)
def test_keras_backend_selection(environment, config, backend):
    assert settings.keras_backend(environment, config) == backend


def test_each_backend_gets_only_variables_it_reads():
    assert settings.keras("tensorflow", None, None, None) == {
        "KERAS_BACKEND": "tensorflow",
        "TF_GPU_ALLOCATOR": "cuda_malloc_async",
    }
    assert settings.keras("tensorflow", None, None, False) == {"KERAS_BACKEND": "tensorflow"}
    assert settings.keras("jax", 0.9, False, None) == {
        "KERAS_BACKEND": "jax",
        "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.9",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }
    assert settings.keras("torch", None, None, None) == {"KERAS_BACKEND": "torch"}


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("numpy", None, None, None), "does not train"),
        (("tensorflow", 0.9, None, None), "set_logical_device_configuration"),
        (("torch", None, False, None), "set_per_process_memory_fraction"),
        (("jax", None, None, True), "a TensorFlow setting"),
        (("jax", 0.0, None, None), "above 0"),
        (("jax", 1.5, None, None), "at most 1"),
        (("jax", float("nan"), None, None), "above 0"),
    ],
)
def test_unsupported_settings_are_rejected(words, complaint):
    with pytest.raises(ValueError, match=complaint):
        settings.keras(*words)


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """An environment without settings and without imported frameworks."""
    for name in ("KERAS_BACKEND", "TF_GPU_ALLOCATOR", "XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_PREALLOCATE"):
        monkeypatch.setenv(name, "x")  # So that monkeypatch removes what the test sets.
        monkeypatch.delenv(name)
    for name in ("keras", "tensorflow", "jax"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    return tmp_path


def test_keras_is_configured_before_it_is_imported(bare):
    (bare / "keras.json").write_text('{"backend": "jax"}')
    made = farrier.keras.configure(memory_fraction=0.5)
    assert os.environ["KERAS_BACKEND"] == "jax"
    assert os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.5"
    assert not made.late
    assert "keras" not in sys.modules


def test_switching_the_running_backend_is_rejected(bare, monkeypatch):
    imported = SimpleNamespace(backend=SimpleNamespace(backend=lambda: "tensorflow"))
    monkeypatch.setitem(sys.modules, "keras", imported)
    with pytest.raises(RuntimeError, match="already imported, on tensorflow"):
        farrier.keras.configure("jax")
    assert "KERAS_BACKEND" not in os.environ


def test_a_backend_conflicting_with_the_environment_is_rejected(bare, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    with pytest.raises(RuntimeError, match="KERAS_BACKEND is torch"):
        farrier.keras.configure("jax")


def test_jax(bare):
    assert farrier.jax.configure(memory_fraction=0.9).set == {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.9"}
    assert farrier.jax.configure(memory_fraction=0.8).unchanged == {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.9"}
    assert farrier.jax.configure().set == {}


def test_unknown_attributes():
    with pytest.raises(AttributeError, match="it has Callback"):
        _ = farrier.keras.Nothing


TF_CONFIG = '{"cluster": {"chief": ["a"], "worker": ["b", "c"]}, "task": {"type": "%s", "index": %d}}'


@pytest.mark.parametrize(
    ("config", "rank"),
    [
        (TF_CONFIG % ("worker", 1), (2, 3)),
        (TF_CONFIG % ("chief", 0), (0, 3)),
        (TF_CONFIG % ("ps", 0), (None, None)),
        ("", (None, None)),
        ("[]", (None, None)),
        ('{"cluster": 5, "task": {}}', (None, None)),
    ],
)
def test_the_rank_of_a_tensorflow_worker(config, rank):
    from farrier.keras.rank import tensorflow_rank

    assert tensorflow_rank({"TF_CONFIG": config}) == rank
