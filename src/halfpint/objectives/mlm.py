"""The masked-LM loss, on the chosen tokens alone, without ever having all of their word scores in memory.

Scores of a vocabulary are by far the largest tensors of pretraining: 10,000 targets of BERT's 30,522 words are 1.2 GB
in float32, several times over. Here a chunk of targets at a time gets its scores, its loss and at once its gradients,
and the scores are gone before the next.
Letters: N targets, C of them in a chunk, W the width of the decoder, V words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from halfpint.model.batch import FILLER, Batch
from halfpint.model.heads import MaskedLM
from halfpint.model.network import Network
from halfpint.model.taps import NO_TAPS, Taps
from halfpint.objectives.objective import Seen

CHUNK_VALUES = 1 << 25
"""Word scores in memory at a time: 128 MiB of float32."""


@dataclass(frozen=True)
class MaskedLMObjective:
    """Cross-entropy of `batch.per_token["word"]` at `batch.targets`."""

    @property
    def names(self) -> tuple[str, ...]:
        return ("mlm",)

    @property
    def heads(self) -> tuple[str, ...]:
        return ()

    @property
    def taps(self) -> Taps:
        return NO_TAPS

    @property
    def modules(self) -> nn.Module | None:
        return None

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        return {"mlm": (_targets(batch) != FILLER).sum()}

    def losses(self, student: Seen, batch: Batch) -> dict[str, Tensor]:
        assert isinstance(student.network, Network), "a masked LM decodes with the words of an encoder of the family"
        head = student.network.heads["masked_lm"]
        assert isinstance(head, MaskedLM)
        targets = _targets(batch)
        # A slot that is not used looks at some token, and its word is none.
        wanted = torch.where(targets == FILLER, FILLER, batch.per_token["word"][targets.clamp(min=0)])
        states = head.states(student.output, batch)
        decoder = head.decoder(student.network.words)
        return {"mlm": cross_entropy_sum(states, decoder, head.bias, wanted)}


def _targets(batch: Batch) -> Tensor:
    assert batch.targets is not None, "a batch for a masked LM names its targets"
    return batch.targets


def cross_entropy_sum(states: Tensor, decoder: Tensor, bias: Tensor, wanted: Tensor) -> Tensor:
    """Σ −log softmax(states · decoderᵀ + bias)[wanted], over targets that want a word: (N, W), (V, W), (V,), (N,)."""
    return _ChunkedCrossEntropy.apply(states, decoder, bias, wanted)  # type: ignore[no-untyped-call, no-any-return]


def num_chunks(num_targets: int, num_words: int) -> int:
    return max(1, -(-num_targets * num_words // CHUNK_VALUES))


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Gradients are computed with the loss, and multiplied by that of the sum in the backward pass."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, decoder: Tensor, bias: Tensor, wanted: Tensor) -> Tensor:
        needed = any(ctx.needs_input_grad[:3])
        words, shift = decoder.to(states.dtype), bias.float()
        total = states.new_zeros((), dtype=torch.float32)
        state_grads: list[Tensor] = []
        decoder_grad = torch.zeros_like(decoder, dtype=torch.float32) if needed else None
        bias_grad = torch.zeros_like(shift) if needed else None
        chunks = num_chunks(len(states), len(decoder))
        for part, word in zip(states.chunk(chunks), wanted.chunk(chunks), strict=True):
            scores = F.linear(part, words).float() + shift  # (C, V)
            real = (word != FILLER).float()[:, None]
            index = word.clamp(min=0)[:, None]
            logs = scores.logsumexp(dim=1, keepdim=True)
            total += ((logs - scores.gather(1, index)) * real).sum()
            if decoder_grad is None or bias_grad is None:
                continue
            # softmax − onehot
            grad = scores.sub_(logs).exp_().mul_(real).scatter_add_(1, index, -real)
            bias_grad += grad.sum(dim=0)
            half = grad.to(states.dtype)
            state_grads.append(half @ words)
            decoder_grad += half.t() @ part
        if decoder_grad is not None and bias_grad is not None:
            grads = (torch.cat(state_grads), decoder_grad.to(decoder.dtype), bias_grad.to(bias.dtype))
            ctx.save_for_backward(*grads)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return (*((each * grad).to(each.dtype) for each in ctx.saved_tensors), None)
