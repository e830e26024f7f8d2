"""The command line's frame: errors become one line and an exit code, and what takes time shows how far it is.

Exit codes: 0; 2 with one clear line on bad input; 3 when a gate was not met (a model too weak to save, a loss that is
no number); 130 when interrupted, 143 when ended by SIGTERM (129 by SIGHUP); 1 when something else broke.
"""

from __future__ import annotations

import signal
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text
from typer.core import TyperGroup

from halfpint import __version__
from halfpint.measure.cost import CostFailed
from halfpint.train.failures import GateNotMet

UsageError: type[Exception] = typer.BadParameter.__bases__[0]
"""What the parser raises; typer has no name of its own for it."""


def _usage(error: Any) -> str:
    """What cannot be parsed, and where it says what can."""
    command = error.ctx.command_path if error.ctx else "halfpint"
    return f"{error.format_message().rstrip('.')}; see: {command} --help"


class Verbs(TyperGroup):
    """All commands; what goes wrong in one becomes one line and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            with _warnings_as_lines():
                return super().invoke(ctx)
        except BrokenPipeError:  # whoever read this has read enough
            raise
        except OSError as error:
            place = f" ({error.filename})" if error.filename else ""
            raise _failure(f"halfpint: {error.strerror or error}{place}", 1) from error
        except KeyboardInterrupt:
            raise _failure("interrupted", 130) from None
        except UsageError as error:
            if type(error).__name__ == "NoArgsIsHelpError":
                raise
            raise _failure(f"halfpint: {_usage(error)}", 2) from error
        except ValueError as error:
            # A user's mistake: every ValueError of ours says what was given, expected, and to be done.
            raise _failure(f"halfpint: {error}", 2) from error
        except GateNotMet as error:
            raise _failure(f"halfpint: {error}", 3) from error
        except CostFailed as error:
            raise _failure(f"halfpint: {error}", 1) from error


def _failure(message: str, code: int) -> typer.Exit:
    err.print(Text(" ".join(message.split()), style="red"), soft_wrap=True)
    return typer.Exit(code)


app = typer.Typer(
    cls=Verbs,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Full-strength text encoders, half-pint size.",
)
out = Console()
err = Console(stderr=True)

SHOWN_SECONDS = 2.0
"""What takes longer than this is shown as it goes on."""
LONG_SECONDS = 30.0
"""What takes longer than this is said beforehand."""

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"halfpint {__version__}")
        raise typer.Exit


@app.callback()
def main_options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    pass


class TimeLeft(ProgressColumn):
    """About how long the rest takes: by an estimate until the first is done, then by those that are."""

    def __init__(self, seconds_each: float) -> None:
        super().__init__()
        self.seconds_each = seconds_each
        self.done = 0.0

    def render(self, task: Task) -> Text:
        left = self.seconds_left(task.total or 0, task.completed, task.elapsed or 0)
        return Text(f"{_about(left)} left")

    def seconds_left(self, total: float, done: float, elapsed: float) -> float:
        # Taken anew only when one more is done: in between, elapsed / done would grow and the rest with it.
        if done > self.done:
            self.done, self.seconds_each = done, elapsed / done
        return max(0, total * self.seconds_each - elapsed)


class Estimate:
    """Says once how long something takes, where that is long: as soon as a part of it has shown it."""

    def __init__(self) -> None:
        self.began: tuple[float, float] | None = None
        self.told = False

    def tell(self, done: float, total: float, what: str) -> None:
        """To be called whenever more is done; the first call only begins."""
        now = time.monotonic()
        self.began = self.began or (now, done)
        seconds, gained = now - self.began[0], done - self.began[1]
        if self.told or seconds < SHOWN_SECONDS or gained <= 0:
            return
        self.told = True
        if (left := (total - done) * seconds / gained) > LONG_SECONDS:
            err.print(Text(f"{what}: {_about(left)}", style="dim"))


def _about(seconds: float) -> str:
    if seconds < 100:
        return f"about {seconds:.0f} s"
    return f"about {seconds / 60:.0f} min" if seconds < 6000 else f"about {seconds / 3600:.1f} h"


def show_progress(seconds_each: float | None) -> Progress:
    """What is being done, how far it is and how long it takes; nothing where nobody watches."""
    columns: list[ProgressColumn] = [SpinnerColumn(), TextColumn("{task.description}", markup=False)]
    if seconds_each is not None:
        columns += [BarColumn(bar_width=20), MofNCompleteColumn()]
    columns.append(TimeElapsedColumn())
    if seconds_each is not None:
        columns.append(TimeLeft(seconds_each))
    return Progress(*columns, console=err, transient=True, disable=not err.is_terminal)


@contextmanager
def _warnings_as_lines() -> Iterator[None]:
    """What is worth a word is one line, without the place in the program that says it."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: err.print(
            Text(" ".join(f"halfpint: {message}".split()), style="yellow"), soft_wrap=True
        )
        yield


def main() -> None:
    for name in ("SIGTERM", "SIGHUP"):  # Windows has no SIGHUP
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _end)
    app()


def _end(number: int, frame: FrameType | None) -> NoReturn:
    """End as Ctrl-C would, so that temporary folders are removed and the measuring process does not stay behind."""
    signal.signal(number, signal.SIG_IGN)  # a second one must not disturb that
    raise SystemExit(128 + number)
