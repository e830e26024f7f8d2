"""The command line: one command a verb; parse, call, print."""

from halfpint.cli import files, profile, training
from halfpint.cli.frame import TimeLeft, app, main

__all__ = ["TimeLeft", "app", "files", "main", "profile", "training"]
