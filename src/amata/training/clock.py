"""The training clock: synchronised with the device, compilation counted apart."""

import time

import torch


class Clock:
    """Runs between `start` and `stop`. `tick` returns the seconds since the last reading."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.since = time.perf_counter()
        self.compiled = 0.0

    def start(self) -> None:
        self._synchronize()
        self.since = time.perf_counter()

    def stop(self, compiled: float) -> tuple[float, float]:
        """The last reading, after the device has finished its work."""
        self._synchronize()
        return self.tick(compiled)

    def tick(self, compiled: float) -> tuple[float, float]:
        """Seconds of training and of compiling since the last reading; `compiled` is the total time
        of compiling so far."""
        now, compiling = time.perf_counter(), compiled - self.compiled
        training, self.since, self.compiled = now - self.since - compiling, now, compiled
        return training, compiling

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
