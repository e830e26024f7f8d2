"""After a crash the old folder or the new one is there, whole."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

from halfpint.artifact import ArtifactError, read_artifact, replace_folder
from tests.artifact.processes import CRASH, crash, in_a_fork, run
from tests.artifact.samples import beside, fill, word_of, write_sample


@pytest.mark.parametrize(
    ("point", "survivor"),
    [
        ("in the body", "old"),
        ("before rename 1", "old"),
        ("before rename 2", "new"),
        ("before the old one is deleted", "new"),
    ],
)
def test_after_a_crash_the_old_or_the_new_folder_is_read(old: Path, point: str, survivor: str) -> None:
    crash(old, point)
    assert word_of(old) == survivor
    assert beside(old) <= {".model.lock"}


def test_a_first_folder_finished_before_a_crash_is_put_in_place(out: Path) -> None:
    crash(out, "before rename 1")
    assert word_of(out) == "new"


def test_a_first_folder_unfinished_at_a_crash_is_removed(out: Path) -> None:
    crash(out, "in the body")
    with pytest.raises(ArtifactError, match="does not exist"):
        read_artifact(out)
    assert beside(out) <= {".model.lock"}


def test_a_crash_after_copying_another_model_does_not_pass_that_off_as_the_new_one(out: Path, tmp_path: Path) -> None:
    source = write_sample(tmp_path / "source", "other").folder
    script = CRASH.replace('fill(staging, "new")', "shutil.copytree(sys.argv[3], staging, dirs_exist_ok=True)")
    assert run(script, out, "in the body", source).returncode == -signal.SIGKILL
    with pytest.raises(ArtifactError, match="does not exist"):
        read_artifact(out)


def test_a_staged_folder_that_lost_a_byte_is_not_put_in_place(old: Path) -> None:
    crash(old, "before rename 2")
    os.truncate(old.parent / ".model.new" / "tokenizer.json", 3)
    assert word_of(old) == "old"


@pytest.mark.parametrize("point", ["in the body", "before rename 2", "before the old one is deleted"])
def test_after_a_crash_one_can_write_again(old: Path, point: str) -> None:
    crash(old, point)
    write_sample(old, "newest", overwrite=True)
    assert word_of(old) == "newest"
    assert beside(old) == set()


def test_a_crash_at_any_step_on_disk_leaves_one_whole_folder(old: Path) -> None:
    def die_at(step: int) -> None:
        left = step

        def hook(event: str, _: object) -> None:
            nonlocal left
            if event == "open" or (event.startswith(("os.", "shutil.")) and event != "os.kill"):
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        with replace_folder(old, overwrite=True) as staging:
            fill(staging, "new")
            sys.addaudithook(hook)

    seen = []
    while in_a_fork(lambda: die_at(len(seen))) == signal.SIGKILL:
        seen.append(word_of(old))
        assert beside(old) <= {".model.lock"}
        if seen[-1] == "new":
            write_sample(old, "old", overwrite=True)
    assert word_of(old) == "new"
    assert set(seen) == {"old", "new"}
    assert seen == sorted(seen, reverse=True), "once the new folder is there, no later crash brings the old one back"


@pytest.mark.parametrize("suffix", ["old", "new"])
def test_a_folder_of_somebody_else_beside_a_model_is_left_alone(old: Path, suffix: str) -> None:
    other = old.parent / f".model.{suffix}"
    shutil.copytree(old, other)
    (other / "notes.txt").write_text("x")
    assert word_of(old) == "old"
    with pytest.raises(ArtifactError, match=rf"{other} is needed to write .* was not made by Halfpint; move it"):
        write_sample(old, "new", overwrite=True)
    shutil.rmtree(old)
    with pytest.raises(ArtifactError, match="does not exist"):
        read_artifact(old)
    assert (other / "notes.txt").read_text() == "x"


@pytest.mark.parametrize("point", ["before rename 1", "before rename 2", "before the old one is deleted"])
def test_no_mark_is_left_in_a_model(old: Path, point: str) -> None:
    crash(old, point)
    assert word_of(old)
    write_sample(old, "newest", overwrite=True)
    assert not {".swapped", ".unfinished"} & {path.name for path in old.iterdir()}


def test_half_of_an_old_folder_is_removed(old: Path) -> None:
    crash(old, "before the old one is deleted")
    for path in (old.parent / ".model.old").iterdir():
        if path.name != ".swapped":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert word_of(old) == "new"
    assert beside(old) <= {".model.lock"}
