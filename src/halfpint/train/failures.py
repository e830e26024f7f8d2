"""Runs that end without a model, through no mistake in their input. Free of torch, for the command line."""

from __future__ import annotations


class GateNotMet(RuntimeError):
    """What was made is not good enough to be kept; the message says by which measure."""


class TrainingFailed(GateNotMet):
    """A loss that is no number."""


class TooWeak(GateNotMet):
    """A model that is no better than a constant answer."""
