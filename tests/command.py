"""The command line in this process: what it printed and how it ended."""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass

import pytest

from halfpint.cli import app


@dataclass(frozen=True)
class Done:
    """The end of a command."""

    code: int
    out: str
    err: str


def run_command(*arguments: object) -> Done:
    """On a terminal of eighty columns that is none."""
    out, err = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as ended,
    ):
        patch.setenv("COLUMNS", "80")
        app([str(argument) for argument in arguments])
    return Done(ended.value.code, out.getvalue(), err.getvalue())


def assert_refused(done: Done, *words: str) -> None:
    """Bad input ends with 2, nothing on stdout, and one line that says these words."""
    assert done.code == 2
    assert done.out == ""
    assert done.err.startswith("halfpint: ")
    assert done.err.count("\n") == 1 and done.err.endswith("\n"), done.err
    for word in words:
        assert word in done.err, done.err
