import torch

from farrier.torch.verify import AGAIN, PADDED, PIECE, Gradients, Measured, Rule


def compare(expected, found, expected_loss=1.0, loss=1.0, rule=AGAIN):
    return Measured.of(expected, found, expected_loss, loss).judge(rule)


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


def test_what_overflows_alike_is_the_same_and_elsewhere_is_not():
    inf, nan = float("inf"), float("nan")
    a = torch.tensor([1.0, inf, -inf, nan, 2.0])
    assert compare(taken(a=a), [("a", a.clone())], inf, inf).same
    for place, value in ((1, -inf), (1, nan), (1, 3.0), (3, inf), (3, 0.0), (0, inf), (0, nan)):
        b = a.clone()
        b[place] = value
        found = compare(taken(a=a), [("a", b)])
        assert "a is infinite or no number in 1 places" in str(found), (place, value)
    b = a.clone()
    b[0] = 1.5
    assert "away" in str(compare(taken(a=a), [("a", b)])), "the finite rest counts"


def test_gradients_whose_square_is_too_large_are_still_compared():
    a = torch.full((4,), 1e30)
    assert compare(taken(a=a), [("a", a.clone())]).same
    assert not compare(taken(a=a), [("a", a * 2)]).same


def test_noise_loosens_what_gradients_may_differ_by_and_not_the_loss():
    a = torch.ones(64)
    near = [("a", a * 1.003)]
    assert compare(taken(a=a), near, rule=Rule.of_noise(1e-6)).same
    assert not compare(taken(a=a), near, rule=Rule.of_noise(0.0)).same
    assert not compare(taken(a=a), [("a", a * 1.005)], rule=Rule.of_noise(1e-6)).same
    assert not compare(taken(a=a), near, loss=1.003, rule=Rule.of_noise(1e-6)).same


def test_a_graph_is_held_to_one_rounding_or_to_the_noise_and_padding_to_the_coarsest_type():
    a = torch.randn(1000)
    near = [("a", a * (1 + 4e-3))]
    assert not compare(taken(a=a), near, rule=Rule()).same
    assert compare(taken(a=a), near, rule=Rule(noise=1.1e-3)).same
    assert compare(taken(a=a), near, rule=PADDED).same
    assert not compare(taken(a=a), [("a", a * 1.05)], rule=PADDED).same


def test_a_small_gradient_that_is_missing_is_found():
    whole, small = torch.ones(10_000, dtype=torch.bfloat16), torch.full((4,), 1e-3, dtype=torch.bfloat16)
    found = compare(taken(a=whole, b=small), [("a", whole), ("b", small * 0)], rule=Rule())
    assert "b is" in str(found)


def test_the_loss_is_held_to_the_coarsest_of_the_types():
    a, b = torch.ones(2), torch.ones(2).bfloat16()
    pairs = taken(a=a, b=b), [("a", a), ("b", b)]
    assert compare(*pairs, 1.0, 1.003, rule=Rule()).same
    assert not compare(*pairs, 1.0, 1.01, rule=Rule()).same
