"""Where progress is drawn: a terminal, a notebook or a log."""

from rich.progress import BarColumn, Progress, TextColumn

from amata.console.streams import err
from amata.errors import printable

NOTEBOOK_WIDTH = 80
LAST_EPOCHS = 5
"""Epochs that a notebook shows; `Fitted.epochs` has all of them."""


class Log:
    """Lines; a long epoch or evaluation gets one a minute."""

    seconds = 60.0
    draws_changes = False

    @property
    def width(self) -> int:
        return err.width if err.windowed else 10_000

    @property
    def room(self) -> int:
        """The columns for the text beside a bar."""
        return 10_000

    def show(self, text: str, share: float, left: str) -> None:
        after = f"  {left}" if left else ""
        err.say(f"{text}  {share:.0%} done{after}")

    def line(self, text: str, style: str = "", epoch: bool = False) -> None:
        err.say(text, style)

    def close(self) -> None:
        pass


class Terminal(Log):
    """A bar below the lines."""

    seconds = 0.2
    draws_changes = True

    def __init__(self) -> None:
        self.bar = 24 if err.width >= 100 else 10
        self.progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=self.bar),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[left]}"),
            console=err,
            transient=True,
        )
        self.task = self.progress.add_task("starting", total=1.0, left="")
        self.progress.start()

    @property
    def room(self) -> int:
        return err.width - self.bar - len(" 100% 99:59:59 left ")

    def show(self, text: str, share: float, left: str) -> None:
        self.progress.update(self.task, description=text, completed=share, left=left)

    def close(self) -> None:
        self.progress.stop()


class Notebook(Log):
    """One output that is redrawn: the notes, the last epochs and a bar. It needs no widgets."""

    seconds = 0.5
    draws_changes = True

    def __init__(self) -> None:
        from IPython.display import display

        self.notes: list[str] = []
        self.epochs: list[str] = []
        self.bar = "starting"
        self.handle = display(self._bundle(), raw=True, display_id=True)

    @property
    def width(self) -> int:
        return NOTEBOOK_WIDTH

    @property
    def room(self) -> int:
        return NOTEBOOK_WIDTH - 10 - len(" 100%  99:59:59 left ")

    def show(self, text: str, share: float, left: str) -> None:
        full = round(10 * share)
        self.bar = f"{'━' * full}{'─' * (10 - full)} {share:4.0%}  {text}  {left}".rstrip()
        self._draw()

    def line(self, text: str, style: str = "", epoch: bool = False) -> None:
        (self.epochs if epoch else self.notes).append(printable(text))
        self._draw()

    def close(self) -> None:
        if self.notes or self.epochs:
            self.bar = ""
            self._draw()

    def _draw(self) -> None:
        self.handle.update(self._bundle(), raw=True)

    def _bundle(self) -> dict[str, str]:
        more = len(self.epochs) - LAST_EPOCHS
        hidden = [f"({more} earlier epochs)"] if more > 0 else []
        lines = [*self.notes, *hidden, *self.epochs[-LAST_EPOCHS:], self.bar]
        return {"text/plain": "\n".join(line for line in lines if line)}
