"""A run that has to end on time: K of the coming epochs follows the clock."""

from collections.abc import Callable

from amata.quantity import in_time
from amata.training.state import TrainState
from amata.training.time_plan import TimePlan, fit_steps
from amata.training.time_rule import TimeRule
from amata.training.wall import WallClock

RECENT = 3
"""Epochs that tell how long the coming ones will take."""
LATE = 0.05
"""Of the time: further off than this, the user is told."""


class Deadline:
    """Follows a plan. If the run would end too early or too late, K of the coming epochs is chosen
    again, between the bounds of the plan and not below the K that was reached: single long steps
    after smaller ones may collapse. `TrainState.steps` records it."""

    def __init__(self, plan: TimePlan, rule: TimeRule, wall: WallClock) -> None:
        self.plan, self.rule, self.elapsed = plan, rule, wall.elapsed
        self.done: list[tuple[float, float]] = []
        """Expected and measured seconds of every epoch."""
        self.began: tuple[float, float] | None = None
        """The expected seconds of the last epoch, and when it began."""
        self.warned = False

    def begin_epoch(self, state: TrainState, note: Callable[[str], None]) -> None:
        """Choose K of this epoch and of those after it."""
        now, prices, epoch = self.elapsed(), self.plan.prices, state.epoch
        if self.began is not None:
            self.done.append((self.began[0], now - self.began[1]))
        steps = state.steps or list(self.plan.steps)
        expected, took = (
            (sum(t) for t in zip(*self.done[-RECENT:], strict=True)) if self.done else (1.0, 1.0)
        )
        pace = took / expected
        aim = self.rule.aim * self.plan.within

        def ends(coming: list[int]) -> float:
            return now + pace * prices.total(coming)

        if (
            self.plan.range
            and abs(ends(steps[epoch:]) - aim) > self.rule.tolerance * self.plan.within
        ):
            least = steps[epoch - 1] if epoch else 0
            coming = fit_steps(
                *self.plan.range, len(steps), lambda k: ends(k) <= aim, done=epoch, least=least
            )
            if coming != steps[epoch:]:
                state.steps = steps = [*steps[:epoch], *coming]
        off = ends(steps[epoch:]) - self.plan.within
        if abs(off) > LATE * self.plan.within and not self.warned and self.done:
            self.warned = True
            when = "after" if off > 0 else "before"
            note(
                f"this run will end about {abs(off):.0f} s {when} its time: an epoch takes "
                f"{pace:.2f} times as long as was measured, and K cannot change enough"
            )
        self.began = (prices.total(steps[epoch : epoch + 1]), now)

    def report(self, note: Callable[[str], None]) -> None:
        """Say when the trained model was on the disk."""
        note(f"trained and saved after {self.elapsed():.1f} s of {in_time(self.plan.within)}")
