"""What a forward pass is asked to show of its inside, and what it shows.

Layers are numbered as in the papers: 0 is the embeddings, 1 the first layer. Layers nobody asks about keep
the fast attention.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True)
class Taps:
    """The layers whose inside is wanted, by kind."""

    hidden: tuple[int, ...] = ()
    """States after the layer; 0 for the embeddings."""
    scores: tuple[int, ...] = ()
    """Attention before the softmax."""
    probabilities: tuple[int, ...] = ()
    """Attention after the softmax."""
    vectors: tuple[int, ...] = ()
    """Queries, keys and values, for relations."""

    @property
    def need_padding(self) -> bool:
        return bool(self.scores or self.probabilities)

    def check(self, num_layers: int) -> None:
        for name, first in (("hidden", 0), ("scores", 1), ("probabilities", 1), ("vectors", 1)):
            wrong = [layer for layer in getattr(self, name) if not first <= layer <= num_layers]
            if wrong:
                raise ValueError(
                    f"taps.{name} asks for layer {wrong[0]}; this encoder has layers {first} to {num_layers}"
                )


NO_TAPS = Taps()


@dataclass
class Tapped:
    """The tensors asked for, by layer."""

    hidden: dict[int, Tensor] = field(default_factory=dict)  # (T, hidden)
    scores: dict[int, Tensor] = field(default_factory=dict)  # (S, heads, L, L), zero where no token is
    probabilities: dict[int, Tensor] = field(default_factory=dict)  # (S, heads, L, L), likewise
    queries: dict[int, Tensor] = field(default_factory=dict)  # (T, heads, head size)
    keys: dict[int, Tensor] = field(default_factory=dict)
    values: dict[int, Tensor] = field(default_factory=dict)
