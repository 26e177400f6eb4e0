"""The Trainer with whole updates trains like the plain Trainer."""

import warnings

import pytest
import torch
import transformers
from trainers import logged, losses, make, small_model

import farrier.torch


@pytest.mark.parametrize("accumulation", [1, 3])
def test_losses_norms_and_rates_match_the_trainer(tmp_path, accumulation):
    plain, _ = losses(tmp_path, False, accumulation)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*optimizer.step.*")  # A scheduler warns if it saw no `optimizer.step()`.
        whole, trainer = losses(tmp_path, True, accumulation)
    torch.testing.assert_close(torch.tensor(whole), torch.tensor(plain), rtol=1e-4, atol=1e-5)
    assert trainer.farrier.step.report.steps == 7


@pytest.mark.parametrize("more", [{}, {"model_init": small_model}])
def test_a_second_run_matches_the_trainer(tmp_path, more):
    found = []
    for whole in (False, True):
        trainer = make(tmp_path, whole, 2, steps=4, **more)
        trainer.train()
        first = trainer.model
        trainer.train()
        assert (trainer.model is first) == (not more)
        weights = torch.cat([p.detach().flatten() for p in trainer.model.parameters()])
        found.append((logged(trainer), weights))
    assert len(found[0][0]) >= 4
    torch.testing.assert_close(torch.tensor(found[1][0]), torch.tensor(found[0][0]), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found[1][1], found[0][1], rtol=1e-3, atol=1e-4)


class BreaksOff(transformers.TrainerCallback):
    """Aborts during the third update, once."""

    done = False

    def on_substep_end(self, _, state, __, **___):
        if state.global_step == 2 and not self.done:
            self.done = True
            raise KeyboardInterrupt


def test_micro_batches_of_an_aborted_run_are_dropped(tmp_path):
    trainer = make(tmp_path, True, 3, steps=5, callbacks=[BreaksOff()])
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert len(trainer.farrier._waiting) > 0
    seen = []
    inner = trainer.farrier.step._fn
    trainer.farrier.step._fn = lambda batch: seen.append(len(batch["micro"])) or inner(batch)
    trainer.train()
    assert seen == [3] * 5


def test_a_float16_trainer_is_left_unchanged(tmp_path, caplog):
    class Scaled:
        distributed_type = "NO"
        scaler = object()

    class Trainer:
        accelerator = Scaled()

        def training_step(self):
            """Must stay."""

    trainer = Trainer()
    farrier.torch.trainer(trainer)
    assert trainer.training_step.__func__ is Trainer.training_step
    assert "use bf16=True" in caplog.text


def test_an_invalid_trainer_is_rejected():
    with pytest.raises(TypeError, match=r"trainer is None: pass a transformers\.Trainer"):
        farrier.torch.trainer(None)
