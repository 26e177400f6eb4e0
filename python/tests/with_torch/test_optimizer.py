import copy

import pytest
import torch
from torch import nn

from farrier.torch.optimizer import Rates, UnsupportedOptimizer, Watch, constants, is_gated, prepare


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
    prepare(optimizer)
    assert is_gated(optimizer)
    watch = Watch([optimizer], {p: name for name, p in model.named_parameters()})
    watch.make_state([optimizer])
    before = everything(model, optimizer)
    backward(model)
    watch.close(True)
    shown = []
    with watch.looking(lambda gradients: shown.extend(name for name, _ in gradients)):
        optimizer.step()
    assert shown == ["weight", "bias"]
    assert_same(before, everything(model, optimizer))
    assert not hasattr(optimizer, "found_inf")
    watch.close(False)
    with watch.looking(None):
        optimizer.step()
    assert not torch.equal(before[0]["weight"], model.weight)


def test_made_state_is_the_state_of_a_first_step():
    model, optimizer = trained()
    twin, twins = trained()
    prepare(optimizer)
    watch = Watch([optimizer], {p: name for name, p in model.named_parameters()})
    watch.make_state([optimizer])
    assert watch.calls == 2, "one a parameter"
    for each, its in ((model, optimizer), (twin, twins)):
        backward(each)
        its.step()
    torch.testing.assert_close(model.weight, twin.weight)
    assert float(optimizer.state[model.weight]["step"]) == 1.0


def test_a_rate_that_is_assigned_or_scheduled_is_read_where_the_graph_reads_it():
    model, optimizer = trained()
    prepare(optimizer)
    rates, held = Rates([optimizer]), optimizer.param_groups[0]["lr"]
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    backward(model)
    optimizer.step()
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] is held
    assert float(held) == pytest.approx(5e-3)
    optimizer.param_groups[0]["lr"] = 0.125
    rates.refresh()
    assert optimizer.param_groups[0]["lr"] is held
    assert float(held) == 0.125


def test_what_a_graph_bakes_in_is_seen_to_change():
    _, optimizer = trained()
    prepare(optimizer)
    before = constants([optimizer])
    optimizer.param_groups[0]["lr"] = torch.tensor(3.0)
    assert constants([optimizer]) == before, "the rate is on the device"
    optimizer.param_groups[0]["weight_decay"] = 0.3
    assert constants([optimizer]) != before


def test_an_optimizer_that_counts_on_the_host_is_refused():
    _, optimizer = trained(torch.optim.Adagrad)
    with pytest.raises(UnsupportedOptimizer, match="Adagrad has no `capturable`"):
        prepare(optimizer)


def test_a_scalers_flag_is_joined_with_the_gate():
    model, optimizer = trained()
    prepare(optimizer)
    watch = Watch([optimizer], {p: name for name, p in model.named_parameters()})
    watch.make_state([optimizer])
    before = everything(model, optimizer)
    backward(model)
    for scalers, gate, trains in ((1.0, False, False), (0.0, True, False), (0.0, False, True)):
        optimizer.found_inf, optimizer.grad_scale = torch.tensor(scalers), None
        watch.close(gate)
        with watch.looking(None):
            optimizer.step()
        del optimizer.found_inf, optimizer.grad_scale
        assert torch.equal(before[0]["weight"], model.weight) != trains
