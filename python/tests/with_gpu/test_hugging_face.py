"""The Trainer with whole updates on a GPU: graphs, and the same training."""

import pytest
import torch
from trainers import losses


@pytest.mark.parametrize("accumulation", [1, 2])
def test_the_trainer_runs_graphs_and_trains_the_same(tmp_path, accumulation):
    plain, _ = losses(tmp_path, False, accumulation, cpu=False, steps=24)
    whole, trainer = losses(tmp_path, True, accumulation, cpu=False, steps=24)
    report = trainer.farrier.step.report
    assert report.reason is None, report
    assert report.replays >= 15, report
    torch.testing.assert_close(torch.tensor(whole), torch.tensor(plain), rtol=1e-2, atol=1e-3)
