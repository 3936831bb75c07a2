"""Data that load in a thread while the main thread prepares the training."""

import threading

from amata import data
from amata.recipes import Recipe
from amata.training.setup import load_data


class Loading:
    """Starts to load a recipe's data at once."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.splits: data.Splits | None = None
        self.error: BaseException | None = None
        # A daemon: an interrupted command does not wait for it.
        self.thread = threading.Thread(target=self._load, name="amata-data", daemon=True)
        self.thread.start()

    def _load(self) -> None:
        try:
            self.splits = load_data(self.recipe)
        except BaseException as error:
            self.error = error

    def result(self) -> data.Splits:
        """Wait for the data. An error of the thread is raised here."""
        self.thread.join()
        if self.error is not None:
            raise self.error
        assert self.splits is not None
        return self.splits
