"""A full disk, a limit or a missing permission is an error in words, and changes nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models

from halfpint.artifact import ArtifactError, read_artifact, replace_folder
from tests.artifact.processes import crash, in_a_fork, run
from tests.artifact.samples import beside, fill, word_of, write_sample

needs_dev_full = pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="no /dev/full here")


def full(staging: Path, name: str) -> Path:
    # A link, since some writers delete a file that they could not finish, and this must not be the device.
    (staging / name).symlink_to("/dev/full")
    return staging / name


def write_bytes(path: Path) -> None:
    path.write_bytes(b"weights")


def save_tokenizer(path: Path) -> None:
    Tokenizer(models.BPE()).save(str(path))


@needs_dev_full
@pytest.mark.parametrize("save", [write_bytes, save_tokenizer])
def test_a_full_disk_in_the_body_changes_nothing(old: Path, save: Callable[[Path], None]) -> None:
    with (
        pytest.raises(ArtifactError, match=r"no space left .* nothing was changed at .*model; free some space"),
        replace_folder(old, overwrite=True) as staging,
    ):
        fill(staging, "new")
        save(full(staging, "more"))
    assert word_of(old) == "old"
    assert beside(old) == set()


def test_other_errors_of_the_body_stay_what_they_are(out: Path) -> None:
    with pytest.raises(FileNotFoundError), replace_folder(out):
        (out / "data.csv").read_text()


# A file system of 200 kB, really full: by the weights, or to the last page, so that only halfpint.json is too much.
TINY_DISK = """
import subprocess, sys
from pathlib import Path
import numpy as np
from safetensors.numpy import save_file
from halfpint.artifact import ArtifactError, replace_folder
from tests.artifact.samples import beside, fill, word_of, write_sample

disk, filler = Path(sys.argv[1]), sys.argv[2]
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", disk], check=True)
out = disk / "model"
write_sample(out, "old")
try:
    with replace_folder(out, overwrite=True) as staging:
        (staging / "config.json").write_text("{}")
        if filler == "weights":
            save_file({"a": np.zeros(100_000, np.float32)}, staging / "model.safetensors")
        with (staging / "filler").open("wb", buffering=0) as file:
            try:
                while file.write(b"x" * 4096):
                    pass
            except OSError:
                pass
except ArtifactError as error:
    print(error)
assert word_of(out) == "old"
assert beside(out) == set(), beside(out)
"""


@pytest.mark.parametrize("filler", ["weights", "to the last page"])
def test_a_really_full_disk_changes_nothing(tmp_path: Path, filler: str) -> None:
    unshare = ("unshare", "--user", "--map-root-user", "--mount")
    if shutil.which("unshare") is None or subprocess.run([*unshare, "true"], capture_output=True).returncode:
        pytest.skip("no file system of one's own can be mounted here")
    done = run(TINY_DISK, tmp_path, filler, under=unshare)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("no space left while writing")


# Under a limit on file sizes, either the weights are too large, or the list of many files in halfpint.json is.
TOO_LARGE = """
import resource, sys
from pathlib import Path
import numpy as np
from safetensors.numpy import save_file
from halfpint.artifact import ArtifactError, replace_folder
from tests.artifact.samples import fill

resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
try:
    with replace_folder(Path(sys.argv[1]), overwrite=True) as staging:
        fill(staging, "new")
        if sys.argv[2] == "weights":
            save_file({"a": np.zeros(100_000, np.float32)}, staging / "model.safetensors")
        for number in range(100):
            (staging / f"{number}.txt").write_text("x")
except ArtifactError as error:
    print(error)
"""


@pytest.mark.parametrize("part", ["weights", "metadata"])
def test_a_file_too_large_changes_nothing(old: Path, part: str) -> None:
    done = run(TOO_LARGE, old, part)
    assert done.stdout.startswith("file too large for this disk or limit"), done.stderr
    assert word_of(old) == "old"
    assert beside(old) == set()


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that other users can enter, unlike those of pytest."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


def as_ordinary_user(work: Callable[[], object]) -> int:
    """Root may write anywhere; so, a child process that is not root."""

    def demoted() -> None:
        if os.getuid() == 0:
            os.setgid(65534)
            os.setuid(65534)
        work()

    return in_a_fork(demoted)


def test_a_place_without_permission_is_an_error_in_words(public: Path) -> None:
    public.chmod(0o555)

    def refused() -> None:
        with pytest.raises(ArtifactError, match=r"Permission denied .* give another --out"):
            write_sample(public / "model")

    assert as_ordinary_user(refused) == 0


def test_leftovers_that_cannot_be_removed_do_not_hinder_reading(public: Path) -> None:
    crash(write_sample(public / "model", "old").folder, "before the old one is deleted")
    (public / ".model.lock").unlink()
    public.chmod(0o555)

    def reads_the_new_one() -> None:
        assert word_of(public / "model") == "new"

    assert as_ordinary_user(reads_the_new_one) == 0


def test_a_folder_that_cannot_be_restored_is_an_error_in_words(public: Path) -> None:
    crash(write_sample(public / "model", "old").folder, "before rename 2")
    (public / ".model.lock").unlink()
    public.chmod(0o555)

    def cannot_be_restored() -> None:
        with pytest.raises(ArtifactError, match="cannot be restored after an interrupted write: Permission denied"):
            read_artifact(public / "model")

    assert as_ordinary_user(cannot_be_restored) == 0
