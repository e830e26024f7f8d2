"""Work done in processes that die, run out of disk, or may write nowhere."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(script: str, *arguments: object, under: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [*under, sys.executable, "-c", script, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def in_a_fork(work: Callable[[], object]) -> int:
    """The wait status of a child process that did the work."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1]


# Dies by SIGKILL at the named point. (A loss of power would also test the syncs, and cannot be had in a test.)
CRASH = """
import os, shutil, signal, sys
from pathlib import Path
from halfpint.artifact import replace_folder
from tests.artifact.samples import fill

out, point = Path(sys.argv[1]), sys.argv[2]
rename, renames = os.rename, []

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def counted(source, target):
    renames.append(target)
    if point == f"before rename {len(renames)}":
        die()
    rename(source, target)

os.rename = counted
if point == "before the old one is deleted":
    shutil.rmtree = die
with replace_folder(out, overwrite=True) as staging:
    fill(staging, "new")
    if point == "in the body":
        die()
"""


def crash(out: Path, point: str) -> None:
    done = run(CRASH, out, point)
    assert done.returncode == -signal.SIGKILL, done.stderr
