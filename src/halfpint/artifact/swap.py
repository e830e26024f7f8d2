"""A folder is replaced as a whole: whatever happens, the old one or the new one is there, never a mix.

What is notable:
- `replace_folder` stages beside the target and swaps: the target becomes `.NAME.old`, `.NAME.new` becomes the
  target. After a crash the next read or write tidies up.
- Only what carries one of our marks is moved or deleted. A folder of such a name that somebody else made stays.
- The lock is the kernel's and dies with its holder, so no stale lock is ever in the way.
- Readers take no lock: one that was overtaken by a swap reads again.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from halfpint.artifact.manifest import (
    CONFIG,
    MARKS,
    METADATA,
    SWAPPED,
    UNFINISHED,
    ArtifactError,
    is_complete,
    write_manifest,
)

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

T = TypeVar("T")

LOCK_PATIENCE = 0.5
"""Seconds. A reader that tidies up holds the lock for an instant; a writer holds it for longer than this."""
SWAP_PATIENCE = 5.0
"""Seconds that a reader waits for a writer between its two renames."""

_FULL = {
    errno.ENOSPC: ("no space left", "free some space or give another --out"),
    errno.EDQUOT: ("no space left in the quota", "free some space or give another --out"),
    errno.EFBIG: ("file too large for this disk or limit", "give another --out, or raise the limit (ulimit -f)"),
}


@contextmanager
def replace_folder(out: Path | str, *, overwrite: bool = False) -> Iterator[Path]:
    """Yield an empty folder to write in; it takes the place of `out` when, and only when, the block succeeds."""
    places = _Places.beside(out)
    with _explained(places.out):
        _check_place(places.out)
        places.out.parent.mkdir(parents=True, exist_ok=True)
    with places.locked(LOCK_PATIENCE) as held:
        if not held:
            raise ArtifactError(f"another process is writing {places.out}; wait for it, or give another --out")
        with _explained(places.out):
            places.settle()
            _check_content(places.out, overwrite)
            places.check_free()
            places.new.mkdir()
            (places.new / UNFINISHED).touch()
        try:
            yield places.new
            with _explained(places.out):
                _finish(places.new)
                places.swap()
        except BaseException as error:
            places.roll_back()
            if not isinstance(error, ArtifactError) and (code := _full_disk(error)):
                raise ArtifactError(_not_written(places.out, *_FULL[code])) from error
            raise


@contextmanager
def hold_folder(folder: Path | str) -> Iterator[bool]:
    """Keep other processes from a folder that need not be there yet; say whether nobody else does so."""
    places = _Places.beside(folder)
    with _explained(places.out):
        places.out.parent.mkdir(parents=True, exist_ok=True)
    with places.locked(LOCK_PATIENCE) as held:
        yield held


def recover(folder: Path | str) -> None:
    """After a crash, put the old or the new folder in place and clean up. A writer at work is left alone."""
    places = _Places.beside(folder)
    deadline = time.monotonic() + SWAP_PATIENCE
    while _is_ours(places.new) or _is_ours(places.old) or os.path.lexists(places.out / SWAPPED):
        try:
            with places.locked() as held, _explained(places.out):
                if held:
                    places.settle()
                    return
        except ArtifactError as error:
            # On a disk that cannot be written, leftovers do no harm beside a folder that is there.
            if places.out.exists():
                return
            raise ArtifactError(f"{places.out} cannot be restored after an interrupted write: {error}") from error
        if places.out.exists() or not _is_ours(places.old):
            return
        if time.monotonic() > deadline:
            raise ArtifactError(f"{places.out} is being replaced by another process; try again when that is done")
        time.sleep(0.005)


def read_steadily(folder: Path | str, read: Callable[[Path], T]) -> T:
    """Call `read` on the folder, tidied up after a crash; again, where a writer has swapped it meanwhile."""
    places = _Places.beside(folder)
    while True:
        recover(places.out)
        with _pinned(places.out) as before:
            try:
                result = read(places.out)
            except ArtifactError:
                in_a_swap = before is None and _is_ours(places.old)
                if _identity(places.out) == before and not in_a_swap:
                    raise
            else:
                # Otherwise this may be one folder's config with the other's metadata.
                if _identity(places.out) == before:
                    return result


@dataclass(frozen=True)
class _Places:
    """The target, and what may stand beside it."""

    out: Path
    new: Path
    old: Path
    lock: Path

    @classmethod
    def beside(cls, folder: Path | str) -> _Places:
        # A link is followed: what it points to is replaced, and the link stays.
        out = Path(os.path.realpath(folder))
        return cls(out, *(out.parent / f".{out.name}.{suffix}" for suffix in ("new", "old", "lock")))

    def check_free(self) -> None:
        """Nobody else's folder is where the new one is written, or where the old one goes."""
        for place in (self.new, self.old):
            if os.path.lexists(place):
                raise ArtifactError(
                    f"{place} is needed to write {self.out} and was not made by Halfpint; "
                    "move it, or give another --out"
                )

    def swap(self) -> None:
        if self.out.exists():
            (self.out / SWAPPED).touch()
            _sync(self.out)
            os.rename(self.out, self.old)
        os.rename(self.new, self.out)
        # The new folder is in place: from here on nothing may fail. The next writer removes what is left.
        with suppress(OSError):
            _sync(self.out.parent)
            _remove(self.old)
            (self.out / SWAPPED).unlink()

    def roll_back(self) -> None:
        """After an exception the old folder is back, since the caller is told that nothing was changed."""
        if not self.out.exists() and self.old.exists():
            os.rename(self.old, self.out)
        with suppress(OSError):
            (self.out / SWAPPED).unlink()
        with suppress(OSError):
            _remove(self.new)

    def settle(self) -> None:
        """What a dead writer left becomes the old folder or the new one. The caller holds the lock."""
        if not self.out.exists():
            left = self.new if _is_ours(self.new) and is_complete(self.new) else self.old
            if os.path.lexists(left / SWAPPED):
                os.rename(left, self.out)
                _sync(self.out.parent)
        for place in (self.new, self.old):
            if _is_ours(place):
                _remove(place)
        (self.out / SWAPPED).unlink(missing_ok=True)

    @contextmanager
    def locked(self, patience: float = 0) -> Iterator[bool]:
        """Hold the lock, if nobody else does; say whether it is held."""
        deadline = time.monotonic() + patience
        with _explained(self.out):
            while (descriptor := _try_lock(self.lock)) is None and time.monotonic() < deadline:
                time.sleep(0.005)
        try:
            yield descriptor is not None
        finally:
            if descriptor is not None:
                # Removed while still held: whoever has opened it meanwhile sees that, and opens another.
                with suppress(OSError):
                    self.lock.unlink()
                os.close(descriptor)


def _try_lock(path: Path) -> int | None:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            if sys.platform == "win32":
                msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
            else:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            os.close(descriptor)
            return None
        except OSError:
            os.close(descriptor)
            raise
        if _identity(path) == _identity(descriptor):
            return descriptor
        os.close(descriptor)


def _check_place(out: Path) -> None:
    if not out.name:
        raise ArtifactError(f"{out} cannot be replaced; give a folder inside it as --out")
    if out.exists() and not out.is_dir():
        raise ArtifactError(f"{out} is a file; give a folder as --out")
    if os.path.ismount(out):
        raise ArtifactError(f"{out} is a mount point and cannot be swapped; give a folder inside it as --out")
    if out.exists() and out.samefile("."):
        raise ArtifactError(f"{out} is the current folder and cannot be swapped; give a folder inside it as --out")


def _check_content(out: Path, overwrite: bool) -> None:
    if not out.exists() or not any(out.iterdir()):
        return
    if not overwrite:
        raise ArtifactError(f"{out} is not empty; give another --out, or --overwrite (overwrite=True) to replace it")
    # Overwriting deletes all that is in the folder, so a slip of the keyboard must not reach other work.
    if not (out / METADATA).is_file() and not (out / CONFIG).is_file():
        raise ArtifactError(
            f"{out} has neither {METADATA} nor {CONFIG}, so it is no model folder and is not overwritten; "
            "give another --out, or empty it yourself"
        )
    if (out / ".git").exists():
        raise ArtifactError(f"{out} is a git checkout, and --overwrite would delete its history; give another --out")


def _finish(staging: Path) -> None:
    """Write the manifest, and bring all of the folder to the disk before anything says that it is complete."""
    for mark in MARKS:
        (staging / mark).touch()
    write_manifest(staging)
    usual = (staging / UNFINISHED).stat().st_mode
    for path in (*staging.rglob("*"), staging):
        # safetensors lets nobody but the owner read its files, and who serves a model may be someone else.
        if path.is_file() and (mode := path.stat().st_mode) | usual != mode:
            path.chmod(stat.S_IMODE(mode | usual))
        _sync(path)
    (staging / UNFINISHED).unlink()
    _sync(staging)


def _identity(place: Path | int) -> tuple[int, int] | None:
    try:
        status = os.stat(place)
    except OSError:
        return None
    return status.st_dev, status.st_ino


@contextmanager
def _pinned(folder: Path) -> Iterator[tuple[int, int] | None]:
    """A folder's identity, which no other can take on meanwhile: the inode of an open folder is not used again."""
    descriptor = None
    with suppress(OSError):
        descriptor = os.open(folder, getattr(os, "O_PATH", os.O_RDONLY))
    try:
        yield _identity(folder if descriptor is None else descriptor)
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _is_ours(path: Path) -> bool:
    """Whether a folder beside the target is a writer's: it has a mark, or nothing, as one just made or all but gone."""
    if path.is_symlink() or not path.is_dir():
        return False
    if any(os.path.lexists(path / mark) for mark in MARKS):
        return True
    try:
        return not any(path.iterdir())
    except OSError:
        return False


def _remove(path: Path) -> None:
    """Delete a folder of ours, its marks last, so that what a crash leaves of it is still known as ours."""
    if not path.exists():
        return
    for inner in path.iterdir():
        if inner.is_dir() and not inner.is_symlink():
            shutil.rmtree(inner)
        elif inner.name not in MARKS:
            inner.unlink()
    shutil.rmtree(path)


def _sync(path: Path) -> None:
    if sys.platform == "win32":
        return  # Windows can sync neither a folder nor a file opened for reading
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _explained(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason, advice = _FULL.get(error.errno or 0, (error.strerror or str(error), "give another --out"))
        raise ArtifactError(_not_written(out, reason, advice)) from error


def _not_written(out: Path, reason: str, advice: str) -> str:
    return f"{reason} while writing the folder for {out}; nothing was changed at {out}; {advice}"


def _full_disk(error: BaseException) -> int | None:
    """The error's number, when the disk took no more."""
    if isinstance(error, OSError):
        return error.errno if error.errno in _FULL else None
    # safetensors and tokenizers raise an error of their own, which keeps of the system's only the text.
    return next((code for code in _FULL if f"(os error {code})" in str(error)), None)
