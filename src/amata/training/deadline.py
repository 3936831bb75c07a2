"""A run that has to end on time: K follows the clock."""

from collections import deque
from collections.abc import Callable
from statistics import median

from amata.quantity import in_time
from amata.training.state import TrainState
from amata.training.time_plan import TimePlan, rising
from amata.training.time_rule import TimeRule
from amata.training.wall import WallClock

RECENT = 3
"""Looks at the clock that tell how long the rest will take."""
FEW, PARTS = 12, 8
"""Up to so many epochs, the clock is looked at so many times in each of them."""
START = 0.125
"""Of the run: so long nothing is said of its end. The first batches are often slow."""
LATE = 0.05
"""Of the time: further off than this, the user is told."""


class Deadline:
    """Follows a plan. If the run would end too early or too late, K is chosen again from here on,
    between the bounds of the plan and not below the K of the last epoch: single long steps after
    smaller ones may collapse. `TrainState.steps` records it."""

    def __init__(self, plan: TimePlan, rule: TimeRule, wall: WallClock) -> None:
        self.plan, self.rule, self.elapsed = plan, rule, wall.elapsed
        self.recent: deque[tuple[float, float]] = deque(maxlen=RECENT)
        """Expected and measured seconds between two looks at the clock."""
        self.last: tuple[float, float, float] | None = None
        """When the clock was last looked at, the part of the epoch done then, and K with the
        guard's steps."""
        self.told = 0.0
        """How many seconds off its time the run would end, when the user was told."""

    def is_due(self, batch: int, batches: int) -> bool:
        """Whether to look at the clock inside an epoch, after so many of its batches."""
        few = self.plan.range is not None and len(self.plan.steps) <= FEW
        return few and batch < batches and PARTS * batch % batches < PARTS <= batches

    def follow(self, state: TrainState, batches: int, note: Callable[[str], None]) -> None:
        """Choose K from here on; `batches` are those of an epoch."""
        now, prices, epoch = self.elapsed(), self.plan.prices, state.epoch
        part = state.batch / batches
        if self.last is not None:
            then, before, k = self.last
            expected = prices.training(k) * ((part or 1.0) - before)
            self.recent.append((expected + (0.0 if part else prices.once([k])), now - then))
        sums = [sum(t) for t in zip(*self.recent, strict=True)] or [1.0, 1.0]
        pace = sums[1] / sums[0]
        if pace < 1:
            # K that has risen does not fall again: only a lasting speed-up counts, at first half.
            slowest = max(seen / said for said, seen in self.recent)
            belief = min(0.5 + (epoch + part) / len(self.plan.steps), 1.0)
            pace = 1 + (min(slowest, 1.0) - 1) * belief
        steps = state.steps or list(self.plan.steps)
        reached = steps[epoch - 1] if epoch else 0.0
        steps = [*steps[:epoch], *(max(k, reached) for k in steps[epoch:])]
        aim = self.rule.aim * self.plan.within

        def ends(coming: list[float], pace: float) -> float:
            coming = [k + state.extra_steps for k in coming]
            rest = prices.total(coming) + prices.end - part * prices.training(coming[0])
            return now + pace * rest

        if self.plan.range:
            if abs(ends(steps[epoch:], pace) - aim) > self.rule.tolerance * self.plan.within:
                lowest, highest = self.plan.range
                start, n = max(lowest, reached), len(steps) - epoch
                coming = rising(start, highest, n, lambda k: ends(k, pace) <= aim)
                steps = [*steps[:epoch], *coming]
            state.change_steps(steps)
        # One slow part, such as the first, is no reason to worry the user: the median decides too.
        middle = median(seen / said for said, seen in self.recent) if self.recent else 1.0
        earliest = min(self.plan.within, self.plan.seconds / self.rule.aim)  # it may leave time

        def off_by(end: float) -> float:
            return max(end - self.plan.within, 0.0) + min(end - earliest, 0.0)

        offs = {p: off_by(ends(steps[epoch:], p)) for p in (pace, middle)}
        told, off = min(offs.items(), key=lambda item: abs(item[1]))
        known = len(self.recent) == RECENT and epoch + part >= START * len(steps)
        most = LATE * self.plan.within
        # Again only if it got twice as bad, or the other way round.
        if known and abs(off) > most and abs(off - self.told) > max(most, abs(self.told)):
            self.told = off
            when = "after" if off > 0 else "before"
            why = f"training takes {told:.2f} times as long as was measured"
            if abs(told - 1) < LATE:
                why = "epochs before took longer, or the collapse guard repeated some or adds steps"
            note(
                f"this run will end about {abs(off):.0f} s {when} its time: {why}, and K cannot "
                "change enough"
            )
        self.last = now, part, steps[epoch] + state.extra_steps

    def report(self, note: Callable[[str], None]) -> None:
        """Say when the trained model was on the disk."""
        note(f"trained and saved after {self.elapsed():.1f} s of {in_time(self.plan.within)}")
