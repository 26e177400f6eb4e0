import pytest

from farrier.torch.explain import explain_error, user_frame
from farrier.torch.guard_report import NotCapturable


def raised(message):
    try:
        raise RuntimeError(message)
    except RuntimeError as err:
        return err


@pytest.mark.parametrize(
    ("message", "word"),
    [
        ("called a synchronizing CUDA operation", "waits for the GPU"),
        ("CUDA error: operation not permitted when stream is capturing", "a capture forbids"),
        ("capturing stream has unjoined work", "another stream"),
        ("CUDA out of memory. Tried to allocate 2 GiB", "not enough memory"),
        ("something new", "something new"),
    ],
)
def test_a_message_is_explained_with_its_line(message, word):
    found = explain_error(raised(message))
    assert word in found.cause
    assert found.remedy
    assert found.location.startswith("test_explain.py:")
    assert "raise RuntimeError(message)" in str(found)


def test_no_line_if_unknown():
    assert user_frame(None) is None
    assert explain_error(RuntimeError()).location is None


def test_a_split_batch_does_not_disable_other_shapes():
    found = explain_error(NotCapturable("8 rows of ids[*,512]", "micro-batches of 4 rows"))
    assert found.shape_specific
    assert "the guard runs 8 rows" in found.cause
    assert not explain_error(RuntimeError("CUDA out of memory")).shape_specific
