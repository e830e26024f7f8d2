"""The folder a model lives in, in the Hub's layout: written whole or not at all, checked when it is read.

- `folder`: read one, find its weights, read and write its card;
- `manifest`: `halfpint.json`, hashes, and names that stay inside the folder;
- `swap`: replace a folder so that a crash leaves the old one or the new one.
"""

from halfpint.artifact.folder import Artifact, read_artifact, read_card, write_card
from halfpint.artifact.manifest import ArtifactError, write_metadata
from halfpint.artifact.swap import hold_folder, recover, replace_folder

__all__ = [
    "Artifact",
    "ArtifactError",
    "hold_folder",
    "read_artifact",
    "read_card",
    "recover",
    "replace_folder",
    "write_card",
    "write_metadata",
]
