"""A folder is replaced as a whole, by one writer at a time, and read whole meanwhile."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from halfpint.artifact import ArtifactError, read_artifact, recover, replace_folder
from halfpint.artifact.swap import read_steadily
from tests.artifact.processes import CRASH, run
from tests.artifact.samples import beside, fill, word_of, write_sample


def test_a_folder_is_written_with_its_parents(out: Path) -> None:
    write_sample(out, "new")
    assert word_of(out) == "new"
    assert beside(out) == set()


def test_nothing_is_there_before_the_end(out: Path) -> None:
    with replace_folder(out) as staging:
        fill(staging, "new")
        assert not out.exists()


def test_every_file_can_be_read_by_whom_the_umask_lets(out: Path) -> None:
    write_sample(out)
    modes = {path.stat().st_mode & 0o777 for path in out.rglob("*") if path.is_file()}
    umask = os.umask(0)
    os.umask(umask)
    assert modes == {0o666 & ~umask}


def test_overwriting_replaces_all_of_the_folder(old: Path) -> None:
    (old / "more.txt").write_text("x")
    write_sample(old, "new", overwrite=True)
    assert word_of(old) == "new"
    assert not (old / "more.txt").exists()
    assert beside(old) == set()


def test_an_empty_folder_may_be_written_to(out: Path) -> None:
    out.mkdir(parents=True)
    write_sample(out, "new")
    assert word_of(out) == "new"


def test_a_folder_that_is_not_empty_is_refused(old: Path) -> None:
    with pytest.raises(ArtifactError, match=r"is not empty; .*--overwrite"):
        write_sample(old, "new")
    assert word_of(old) == "old"


def test_a_folder_that_holds_no_model_is_never_overwritten(out: Path) -> None:
    out.mkdir(parents=True)
    (out / "thesis.tex").write_text("x")
    with pytest.raises(ArtifactError, match=r"neither halfpint.json nor config.json"):
        write_sample(out, "new", overwrite=True)
    assert (out / "thesis.tex").read_text() == "x"


def test_a_git_checkout_is_never_overwritten(old: Path) -> None:
    (old / ".git").mkdir()
    with pytest.raises(ArtifactError, match="is a git checkout"):
        write_sample(old, "new", overwrite=True)
    assert word_of(old) == "old"


def test_a_folder_from_elsewhere_may_be_overwritten(out: Path) -> None:
    out.mkdir(parents=True)
    (out / "config.json").write_text("{}")
    write_sample(out, "new", overwrite=True)
    assert word_of(out) == "new"


def test_a_file_is_refused(out: Path) -> None:
    out.parent.mkdir()
    out.write_text("x")
    with pytest.raises(ArtifactError, match="is a file; give a folder"):
        write_sample(out, "new", overwrite=True)
    assert out.read_text() == "x"


def test_the_root_and_mount_points_are_refused() -> None:
    for place in ("/", "/proc"):
        with pytest.raises(ArtifactError, match=r"cannot be (replaced|swapped)"):
            write_sample(Path(place), overwrite=True)


def test_the_current_folder_is_refused(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(old)
    with pytest.raises(ArtifactError, match="is the current folder"):
        write_sample(Path("."), "new", overwrite=True)


def test_through_a_link_the_target_is_replaced(old: Path, tmp_path: Path) -> None:
    link = tmp_path / "latest"
    link.symlink_to(old)
    write_sample(link, "new", overwrite=True)
    assert link.is_symlink()
    assert word_of(old) == word_of(link) == "new"


def test_an_exception_leaves_the_old_folder(old: Path) -> None:
    with pytest.raises(RuntimeError, match="no luck"), replace_folder(old, overwrite=True) as staging:
        fill(staging, "new")
        raise RuntimeError("no luck")
    assert word_of(old) == "old"
    assert beside(old) == set()


def test_an_interrupt_leaves_the_old_folder(old: Path) -> None:
    with pytest.raises(KeyboardInterrupt), replace_folder(old, overwrite=True) as staging:
        fill(staging, "new")
        raise KeyboardInterrupt
    assert word_of(old) == "old"
    assert beside(old) == set()


def test_a_failing_rename_leaves_the_old_folder(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = os.rename

    def refuse_the_second(source: Path, target: Path) -> None:
        if Path(source).suffix == ".new":
            raise OSError(errno.EIO, "Input/output error")
        rename(source, target)

    monkeypatch.setattr(os, "rename", refuse_the_second)
    with pytest.raises(ArtifactError, match=r"Input/output error .* nothing was changed"):
        write_sample(old, "new", overwrite=True)
    assert beside(old) == set()
    assert word_of(old) == "old"


def test_a_second_writer_is_refused_at_once(old: Path) -> None:
    with replace_folder(old, overwrite=True) as staging:
        fill(staging, "new")
        with pytest.raises(ArtifactError, match="another process is writing"):
            write_sample(old, "second", overwrite=True)
        done = run(CRASH, old, "nowhere")
        assert "ArtifactError: another process is writing" in done.stderr
    assert word_of(old) == "new"


def test_readers_and_recovery_leave_a_writer_alone(old: Path) -> None:
    with replace_folder(old, overwrite=True) as staging:
        fill(staging, "new")
        recover(old)
        assert word_of(old) == "old"
    assert word_of(old) == "new"


def test_a_reader_beside_a_writer_always_sees_one_whole_folder(old: Path) -> None:
    done = threading.Event()

    def write() -> None:
        for turn in range(40):
            write_sample(old, f"turn {turn}", overwrite=True)
        done.set()

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    words = []
    while writer.is_alive():
        artifact = read_artifact(old)
        assert artifact.config["word"] == artifact.metadata["word"]
        words.append(artifact.config["word"])
    assert done.is_set()
    assert len(set(words)) > 1


@pytest.mark.parametrize("swaps", [1, 2, 3])
def test_a_reader_that_was_overtaken_reads_again(old: Path, swaps: int) -> None:
    seen = []

    def read(folder: Path) -> str:
        seen.append((folder / "onnx" / "model.onnx").read_text())
        if len(seen) == 1:
            # The second swap may give the new folder the inode number of the first, which is free by then.
            for number in range(swaps):
                write_sample(folder, f"swap {number}", overwrite=True)
        return seen[-1]

    assert read_steadily(old, read) == f"swap {swaps - 1}"
    assert seen == ["old", f"swap {swaps - 1}"]


def test_writers_in_turn_leave_the_word_of_one(out: Path) -> None:
    def write(word: str) -> None:
        for _ in range(10):
            try:
                write_sample(out, word, overwrite=True)
            except ArtifactError as error:
                assert "another process" in str(error)

    writers = [threading.Thread(target=write, args=(word,)) for word in ("one", "two", "three")]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert word_of(out) in ("one", "two", "three")
    assert beside(out) == set()
