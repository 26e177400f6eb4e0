"""The shard of a training step without a GPU: the clockwork around it."""

from types import SimpleNamespace

from farrier.bench import train
from farrier.torch.policy import Boundness


def test_the_profiled_step_is_one_that_was_not_compared(monkeypatch):
    report = SimpleNamespace(verified=6, verified_s=0.5)
    ran = []

    def step(batch):
        ran.append(batch)
        report.verified += len(ran) == 1  # The first one falls due for a comparison.

    step.report = report
    launches = iter((2500, 1))
    monkeypatch.setattr(train, "profiled", lambda run, *s: (run(), Boundness(*s, launches=next(launches))))
    assert train.profile_of_a_plain_step(step, {}, 0.005).launches == 1
    assert len(ran) == 2


def test_a_step_without_a_report_has_no_comparisons():
    assert train.comparisons(None) == (0, 0.0)
