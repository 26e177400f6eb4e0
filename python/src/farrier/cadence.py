"""Decides when to synchronise with the GPU to time steps. Pure: the clock is an argument.

Frameworks launch steps asynchronously, so the duration of a step is known only after waiting for
it. Waiting at every step would leave the GPU idle while the next step is launched. So a sync
happens every few seconds, and the time since the last sync is divided by the number of steps.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Seconds between two syncs. A sync leaves the GPU idle for some milliseconds, about a thousandth
#: of that time.
EVERY_S = 5.0


@dataclass
class Cadence:
    """Counts steps between syncs."""

    every_s: float = EVERY_S
    steps_max: int = 10_000
    _start_s: float = 0.0
    _start_step: int = 0
    _steps_between_syncs: int = 1

    def start(self, step: int, now_s: float) -> None:
        """Starts the clock after `step` steps, when no launched step is unfinished."""
        self._start_step, self._start_s = step, now_s

    def due(self, step: int) -> bool:
        """Whether to sync after launching `step` steps."""
        return step - self._start_step >= self._steps_between_syncs

    def record_sync(self, step: int, now_s: float) -> float | None:
        """Returns the seconds per step after a sync, and restarts the clock.

        None if no step ran since the last sync.
        """
        steps = step - self._start_step
        elapsed_s = now_s - self._start_s
        self.start(step, now_s)
        if steps <= 0 or elapsed_s < 0:
            return None
        step_s = elapsed_s / steps
        target_steps = self.steps_max if step_s * self.steps_max <= self.every_s else int(self.every_s / step_s)
        # The interval grows at most tenfold, because one fast step does not predict the next ones.
        self._steps_between_syncs = max(1, min(target_steps, 10 * self._steps_between_syncs))
        return step_s
