"""When to wait for the GPU, so that steps are timed and it hardly ever waits for us. Pure: the clock is an argument.

Frameworks launch steps and go on; how long one took is known only by waiting for it. To wait at every step leaves the GPU
idle while the next is launched. So it is done every few seconds, and the time of all steps since is shared among them.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Seconds between two waits: an idle gap of some milliseconds in that time is below a thousandth.
EVERY_S = 5.0


@dataclass
class Cadence:
    """Counts steps between waits."""

    every_s: float = EVERY_S
    steps_max: int = 10_000
    _start_s: float = 0.0
    _start_step: int = 0
    _steps_between_syncs: int = 1

    def start(self, step: int, now_s: float) -> None:
        """The clock starts: so many steps are done, and nothing is under way."""
        self._start_step, self._start_s = step, now_s

    def due(self, step: int) -> bool:
        """Whether to wait, so many steps being launched."""
        return step - self._start_step >= self._steps_between_syncs

    def record_sync(self, step: int, now_s: float) -> float | None:
        """All of them are done: the seconds that one took, and the clock starts again. None: there was none."""
        steps = step - self._start_step
        elapsed_s = now_s - self._start_s
        self.start(step, now_s)
        if steps <= 0 or elapsed_s < 0:
            return None
        step_s = elapsed_s / steps
        target_steps = self.steps_max if step_s * self.steps_max <= self.every_s else int(self.every_s / step_s)
        # Not more than ten times as many as before: one quick step is no measure of the next.
        self._steps_between_syncs = max(1, min(target_steps, 10 * self._steps_between_syncs))
        return step_s
