import torch

from farrier.torch.verify import PIECE, Gradients, compare


def taken(**tensors):
    held = Gradients()
    held.take(tensors.items())
    return held


def test_equal_gradients_are_the_same_and_counted():
    a, b = torch.randn(3, 4), torch.randn(5)
    found = compare(taken(a=a, b=b), [("a", a), ("b", b)], 1.5, 1.5)
    assert found.same
    assert found.gradients == 2
    assert found.worst == 0.0


def test_one_wrong_element_of_many_is_found_beyond_the_first_piece():
    a = torch.ones(PIECE + 10)
    b = a.clone()
    b[-1] = 100.0
    found = compare(taken(a=a), [("a", b)], 1.0, 1.0)
    assert not found.same
    assert found.worst_name == "a"


def test_nan_is_never_the_same():
    a = torch.ones(4)
    assert not compare(taken(a=a), [("a", a * float("nan"))], 1.0, 1.0).same
    assert not compare(taken(a=a), [("a", a)], 1.0, float("nan")).same


def test_a_missing_gradient_is_named_on_either_side():
    a = torch.ones(4)
    assert "a has a gradient eagerly and none" in str(compare(taken(a=a), [], 1.0, 1.0))
    assert "b has a gradient in the graph and none" in str(compare(taken(), [("b", a)], 1.0, 1.0))


def test_a_wrong_loss_is_wrong_with_right_gradients():
    a = torch.ones(4)
    found = compare(taken(a=a), [("a", a)], 2.0, 2.5)
    assert "the loss is 2.5, eagerly 2" in str(found)


def test_rounding_is_allowed_by_type():
    a = torch.randn(1000)
    assert compare(taken(a=a.bfloat16()), [("a", (a * 1.004).bfloat16())], 1.0, 1.0).same
    assert not compare(taken(a=a.double()), [("a", a.double() * 1.0001)], 1.0, 1.0).same
