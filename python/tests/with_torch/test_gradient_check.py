import pytest
import torch

from farrier.torch.gradient_check import CHUNK_ELEMENTS, PADDING_TOLERANCE, GradientComparator, ReferenceGradients
from farrier.torch.noise import MAX_ROUNDS


def measured(expected, found, loss=1.0):
    comparator = GradientComparator(expected)
    comparator.add(found)
    return comparator.finish(loss)


def compare(expected, found, expected_loss=1.0, loss=1.0):
    """Compares a graph with constant replays to eager runs without noise."""
    run = measured(expected, found, loss)
    evidence = run.evidence(expected_loss)
    eager = measured(expected, [(name, reference) for name, reference in expected.tensors.items()], expected_loss)
    for _ in range(MAX_ROUNDS):
        eager.add_to(evidence, eager=True)
        run.add_to(evidence, eager=False)
    return evidence.evaluate(final=True)


def reference_of(**tensors):
    reference = ReferenceGradients()
    reference.add(tensors.items())
    return reference


def test_equal_gradients_pass_and_are_counted():
    a, b = torch.randn(3, 4), torch.randn(5)
    found = compare(reference_of(a=a, b=b), [("a", a), ("b", b)], 1.5, 1.5)
    assert found.passed
    assert found.gradients == 2
    assert found.max_distance == 0.0


def test_one_wrong_element_beyond_the_first_chunk_is_found():
    a = torch.ones(CHUNK_ELEMENTS + 10)
    b = a.clone()
    b[-1] = 100.0
    found = compare(reference_of(a=a), [("a", b)], 1.0, 1.0)
    assert not found.passed
    assert found.max_distance_name == "a"


def test_nan_never_matches():
    a = torch.ones(4)
    assert not compare(reference_of(a=a), [("a", a * float("nan"))], 1.0, 1.0).passed
    assert not compare(reference_of(a=a), [("a", a)], 1.0, float("nan")).passed


def test_a_missing_gradient_is_named_on_either_side():
    a = torch.ones(4)
    assert "a has a gradient in eager mode but not" in str(compare(reference_of(a=a), [], 1.0, 1.0))
    assert "b has a gradient in the graph but not" in str(compare(reference_of(), [("b", a)], 1.0, 1.0))


def test_a_wrong_loss_fails_with_correct_gradients():
    a = torch.ones(4)
    found = compare(reference_of(a=a), [("a", a)], 2.0, 2.5)
    assert "the loss is 2.5, in eager mode 2" in str(found)


def test_rounding_is_allowed_by_dtype():
    a = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    assert compare(reference_of(a=a.bfloat16()), [("a", (a * 1.002).bfloat16())], 1.0, 1.0).passed
    assert not compare(reference_of(a=a.double()), [("a", a.double() * 1.0001)], 1.0, 1.0).passed


def test_equal_overflows_match_and_others_do_not():
    inf, nan = float("inf"), float("nan")
    a = torch.tensor([1.0, inf, -inf, nan, 2.0])
    assert compare(reference_of(a=a), [("a", a.clone())], inf, inf).passed
    for place, value in ((1, -inf), (1, nan), (1, 3.0), (3, inf), (3, 0.0), (0, inf), (0, nan)):
        b = a.clone()
        b[place] = value
        found = compare(reference_of(a=a), [("a", b)])
        assert "a is infinite or NaN in 1 elements" in str(found), (place, value)
    b = a.clone()
    b[0] = 1.5
    assert "differs" in str(compare(reference_of(a=a), [("a", b)])), "the finite rest counts"


def test_gradients_with_overflowing_squares_are_compared():
    a = torch.full((4,), 1e30)
    assert compare(reference_of(a=a), [("a", a.clone())]).passed
    assert not compare(reference_of(a=a), [("a", a * 2)]).passed


def test_tolerances_of_graphs_and_padding():
    a = torch.randn(1000)
    near = [("a", a * (1 + 4e-3))]
    assert not compare(reference_of(a=a), near).passed
    assert measured(reference_of(a=a), near).within_tolerance(PADDING_TOLERANCE, PADDING_TOLERANCE, 1.0).passed
    assert (
        not measured(reference_of(a=a), [("a", a * 1.05)])
        .within_tolerance(PADDING_TOLERANCE, PADDING_TOLERANCE, 1.0)
        .passed
    )


def test_a_second_eager_run_may_differ_by_noise_and_its_loss_by_less():
    a = torch.randn(1000)
    assert measured(reference_of(a=a), [("a", a * 1.05)]).is_same_step(1.0).passed
    assert not measured(reference_of(a=a), [("a", a * 1.07)]).is_same_step(1.0).passed
    assert not measured(reference_of(a=a), [("a", a)], loss=1.005).is_same_step(1.0).passed
    assert not measured(reference_of(a=a), []).is_same_step(1.0).passed


def test_the_projection_shows_a_scale_far_below_the_noise():
    a = torch.randn(100_000, dtype=torch.float64)
    noise = 0.05 * torch.randn(100_000, dtype=torch.float64)
    reading = measured(reference_of(a=a.float()), [("a", (1.01 * a + noise).float())]).readings["a"]
    assert abs(reading.scale - 0.01) < 1e-3
    assert abs(reading.distance / float(a.norm()) - 0.051) < 1e-3


def test_the_gradients_of_several_optimizers_are_one_run():
    a, b = torch.ones(4), torch.ones(5)
    comparator = GradientComparator(reference_of(a=a, b=b))
    comparator.add([("a", a)])
    comparator.add([("b", 2 * b)])
    run = comparator.finish(1.0)
    assert not run.mismatches
    assert [reading.scale for reading in run.readings.values()] == pytest.approx([0.0, 1.0])


def test_a_small_gradient_that_is_missing_is_found():
    whole, small = torch.ones(10_000, dtype=torch.bfloat16), torch.full((4,), 1e-3, dtype=torch.bfloat16)
    found = compare(reference_of(a=whole, b=small), [("a", whole), ("b", small * 0)])
    assert "b differs by" in str(found)


def test_the_loss_tolerance_follows_the_coarsest_dtype():
    a, b = torch.ones(2), torch.ones(2).bfloat16()
    pairs = reference_of(a=a, b=b), [("a", a), ("b", b)]
    assert compare(*pairs, 1.0, 1.003).passed
    assert not compare(*pairs, 1.0, 1.01).passed
