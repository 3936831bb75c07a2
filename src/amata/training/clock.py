"""The clock of a training: seconds by the device's time, with compiling told apart."""

import time

import torch


class Clock:
    """Runs between `start` and `stop`. `tick` gives what has passed since the last reading, less
    what was spent on compiling."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.since = time.perf_counter()
        self.made = 0.0

    def start(self) -> None:
        self._synchronize()
        self.since = time.perf_counter()

    def stop(self, compiled: float) -> tuple[float, float]:
        """The last reading: what the device still has to do belongs to training too."""
        self._synchronize()
        return self.tick(compiled)

    def tick(self, compiled: float) -> tuple[float, float]:
        """Seconds of training and of compiling since the last reading; `compiled` are those of
        compiling in all."""
        now, making = time.perf_counter(), compiled - self.made
        training, self.since, self.made = now - self.since - making, now, compiled
        return training, making

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
