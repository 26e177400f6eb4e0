"""The Trainer with whole steps trains as the Trainer does."""

import pytest
import torch
from trainers import losses

import farrier.torch


@pytest.mark.parametrize("accumulation", [1, 3])
def test_losses_norms_and_rates_are_the_trainers_own(tmp_path, accumulation):
    plain, _ = losses(tmp_path, False, accumulation)
    whole, trainer = losses(tmp_path, True, accumulation)
    torch.testing.assert_close(torch.tensor(whole), torch.tensor(plain), rtol=1e-4, atol=1e-5)
    assert trainer.farrier.step.report.steps == 7


def test_a_scaled_trainer_is_left_alone(tmp_path, caplog):
    class Scaled:
        distributed_type = "NO"
        scaler = object()

    class Trainer:
        accelerator = Scaled()

        def training_step(self):
            """Stays."""

    trainer = Trainer()
    farrier.torch.trainer(trainer)
    assert trainer.training_step.__func__ is Trainer.training_step
    assert "use bf16=True" in caplog.text
