"""What an installation lacks, said with the command that installs it."""

from __future__ import annotations

from importlib.util import find_spec


class MissingPackage(ImportError, ValueError):
    """A package that the core does not bring; the message names the command that installs it."""


def require_torch(what: str) -> None:
    """Refuse `what` (loading a model, say) where torch is not installed. Does not import it."""
    if find_spec("torch") is None:
        raise MissingPackage(
            f"{what} needs torch, which is not installed; install it with: pip install 'halfpint[train]'"
        )
