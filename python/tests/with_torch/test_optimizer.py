import copy

import pytest
import torch
from torch import nn

from farrier.torch.explain import GraphsDisabled
from farrier.torch.optimizer import (
    LearningRates,
    OptimizerHooks,
    UnsupportedOptimizer,
    captured_constants,
    has_gate,
    make_capturable,
)


def trained(kind=torch.optim.AdamW, **more):
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    return model, kind(model.parameters(), lr=1e-2, **more)


def backward(model):
    model(torch.ones(2, 4)).square().sum().backward()


def everything(model, optimizer):
    return copy.deepcopy((model.state_dict(), optimizer.state_dict()["state"]))


def assert_same(a, b):
    for key in a[0]:
        assert torch.equal(a[0][key], b[0][key])
    assert a[1].keys() == b[1].keys()
    for place, state in a[1].items():
        for key, value in state.items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(b[1][place][key])), key


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD])
def test_a_closed_gate_changes_nothing_and_an_open_one_trains(kind):
    model, optimizer = trained(kind)
    make_capturable(optimizer)
    assert has_gate(optimizer)
    hooks = OptimizerHooks([optimizer], {p: name for name, p in model.named_parameters()})
    hooks.init_state([optimizer])
    before = everything(model, optimizer)
    backward(model)
    hooks.set_gate(True)
    shown = []
    with hooks.observing(lambda gradients: shown.extend(name for name, _ in gradients)):
        optimizer.step()
    assert shown == ["weight", "bias"]
    assert_same(before, everything(model, optimizer))
    assert not hasattr(optimizer, "found_inf")
    hooks.set_gate(False)
    with hooks.observing(None):
        optimizer.step()
    assert not torch.equal(before[0]["weight"], model.weight)


def test_initial_state_equals_that_of_a_first_step():
    model, optimizer = trained()
    twin, twins = trained()
    make_capturable(optimizer)
    hooks = OptimizerHooks([optimizer], {p: name for name, p in model.named_parameters()})
    hooks.init_state([optimizer])
    assert hooks.calls == 0, "none of them is a training step"
    for each, its in ((model, optimizer), (twin, twins)):
        backward(each)
        its.step()
    torch.testing.assert_close(model.weight, twin.weight)
    assert float(optimizer.state[model.weight]["step"]) == 1.0


def test_rates_stay_the_users_and_are_copied_to_the_device():
    _, optimizer = trained()
    make_capturable(optimizer)
    rates, group = LearningRates([optimizer]), optimizer.param_groups[0]
    with rates.on_device():
        held = group["lr"]
        assert float(held) == pytest.approx(1e-2)
    assert group["lr"] == 1e-2
    for rate in (0.125, torch.tensor(0.25)):
        group["lr"] = rate
        rates.refresh()
        assert float(held) == float(rate)
        assert group["lr"] is rate
    group["lr"].fill_(0.5)
    rates.refresh()
    assert float(held) == 0.5


@pytest.mark.parametrize("how", [lambda group: group["lr"].fill_(1.0), lambda group: group.update(lr=1.0)])
def test_a_step_that_sets_its_rate_is_rejected(how):
    _, optimizer = trained()
    rates, group = LearningRates([optimizer]), optimizer.param_groups[0]
    with pytest.raises(GraphsDisabled, match="sets the learning rate itself"), rates.on_device():
        how(group)
    assert group["lr"] == 1e-2
    with rates.on_device():
        assert float(group["lr"]) == pytest.approx(1e-2)


def test_changed_constants_are_detected():
    _, optimizer = trained()
    make_capturable(optimizer)
    before = captured_constants([optimizer])
    optimizer.param_groups[0]["lr"] = torch.tensor(3.0)
    assert captured_constants([optimizer]) == before, "the rate is on the device"
    optimizer.param_groups[0]["weight_decay"] = 0.3
    assert captured_constants([optimizer]) != before


def test_an_optimizer_that_counts_on_the_host_is_rejected():
    _, optimizer = trained(torch.optim.Adagrad)
    with pytest.raises(UnsupportedOptimizer, match="Adagrad has no `capturable`"):
        make_capturable(optimizer)


def test_a_scalers_flag_is_combined_with_the_gate():
    model, optimizer = trained()
    make_capturable(optimizer)
    hooks = OptimizerHooks([optimizer], {p: name for name, p in model.named_parameters()})
    hooks.init_state([optimizer])
    before = everything(model, optimizer)
    backward(model)
    for scalers, gate, trains in ((1.0, False, False), (0.0, True, False), (0.0, False, True)):
        optimizer.found_inf, optimizer.grad_scale = torch.tensor(scalers), None
        hooks.set_gate(gate)
        with hooks.observing(None):
            optimizer.step()
        del optimizer.found_inf, optimizer.grad_scale
        assert torch.equal(before[0]["weight"], model.weight) != trains


@pytest.mark.parametrize("more", [{"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}])
def test_sgd_momenta_start_at_zero(more):
    junk = [torch.full((3, 4), 1e3) for _ in range(50)] + [torch.full((3,), 1e3) for _ in range(50)]
    del junk
    model, optimizer = trained(torch.optim.SGD, **more)
    twin, twins = trained(torch.optim.SGD, **more)
    make_capturable(optimizer)
    hooks = OptimizerHooks([optimizer], {p: name for name, p in model.named_parameters()})
    hooks.init_state([optimizer])
    for _ in range(3):
        for each, its in ((model, optimizer), (twin, twins)):
            its.zero_grad()
            backward(each)
            its.step()
    torch.testing.assert_close(model.weight, twin.weight)


def test_a_parameter_added_later_gets_a_momentum():
    model, optimizer = trained(torch.optim.SGD, momentum=0.9)
    make_capturable(optimizer)
    OptimizerHooks([optimizer], {p: name for name, p in model.named_parameters()})
    model.bias.requires_grad_(False)
    backward(model)
    optimizer.step()
    model.bias.requires_grad_(True)
    backward(model)
    optimizer.step()
    assert torch.equal(optimizer.state[model.bias]["momentum_buffer"], model.bias.grad)


def test_dampening_is_rejected_before_any_change():
    _, optimizer = trained(torch.optim.SGD, momentum=0.9, dampening=0.5)
    with pytest.raises(UnsupportedOptimizer, match="dampening"):
        make_capturable(optimizer)
    assert not optimizer.param_groups[0]["fused"]


def test_empty_groups_are_skipped():
    model = nn.Linear(4, 3)
    optimizer = torch.optim.AdamW([{"params": []}, {"params": list(model.parameters())}])
    make_capturable(optimizer)
    assert has_gate(optimizer)
    OptimizerHooks([optimizer], {}).set_gate(True)
    assert len(LearningRates([optimizer]).user_values()) == 1
