import pytest
import torch

from farrier.bench.model import build
from farrier.bench.sizes import SIZES, size
from farrier.torch import step
from farrier.torch.measure import covered


def test_without_a_gpu_the_step_runs_eagerly_and_says_why():
    model = build("tiny", device="cpu", dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters())

    def train(batch):
        optimizer.zero_grad()
        loss = model(batch, batch)
        loss.backward()
        optimizer.step()
        return loss

    run = step(train, model=model, optimizer=optimizer)
    ids = torch.randint(0, 512, (2, 16))
    first, last = run(ids), [run(ids) for _ in range(5)][-1]
    assert not first.requires_grad
    assert last < first
    assert "cpu" in run.report.reason.what
    assert run.report.steps == 6


def test_the_sizes_say_what_the_models_are():
    model = build("tiny", device="cpu", dtype=torch.float32)
    assert sum(p.numel() for p in model.parameters()) == size("tiny").parameters
    assert [round(s.parameters / 1e6) for s in SIZES.values()] == [0, 191, 1364, 6747]
    with pytest.raises(ValueError, match="no model `13b`"):
        size("13b")


def test_only_the_low_rank_weights_of_a_lora_are_trained():
    from farrier.bench.model import Decoder
    from farrier.bench.sizes import Size

    shape = Size(layers=2, width=64, heads=4, hidden=96, vocabulary=128, lora_rank=4)
    model = Decoder(shape)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert trained == shape.lora_parameters
    assert sum(p.numel() for p in model.parameters()) == shape.parameters


def test_overlapping_spans_count_once():
    assert covered([(0, 2), (1, 3), (5, 6), (5, 5.5)]) == 4
    assert covered([]) == 0
