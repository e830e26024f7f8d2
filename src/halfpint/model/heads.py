"""Heads: what turns an encoder's states into answers.

Each takes the encoder's `Output` and the `Batch`. Letters: T tokens, S sequence slots, H hidden size,
E embedding size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from halfpint.config import (
    ChoiceHead,
    EmbeddingHead,
    EncoderConfig,
    HeadConfig,
    MaskedLMHead,
    OrderHead,
    SequenceHead,
    SpanHead,
    TokenHead,
)
from halfpint.model.batch import Batch
from halfpint.model.dropout import drop
from halfpint.model.encoder import Output
from halfpint.model.linear import Linear, linear
from halfpint.model.norm import LayerNorm


class MaskedLM(nn.Module):
    """Word scores: (targets, V), or (T, V) where the batch names no targets.

    The decoder is the word embedding itself, handed in by the network. MobileBERT's embedding is narrower
    than its transform; what is missing is a matrix of the head's own (`extra`).
    """

    def __init__(self, config: EncoderConfig, head: MaskedLMHead) -> None:
        super().__init__()
        self.activation = head.activation
        # ALBERT transforms to E; the others stay in H and MobileBERT decodes from there.
        width = config.embedding_size if config.embedding_projection == "sum" else config.hidden_size
        self.transform = Linear(config.hidden_size, width)
        self.norm = LayerNorm(width, eps=config.norm_eps)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        if width > config.embedding_size:
            # Used as a matrix, not as a layer, so it is never packed.
            self.extra = nn.Linear(width - config.embedding_size, config.vocab_size, bias=False)

    def forward(self, output: Output, batch: Batch, words: Tensor) -> Tensor:
        return linear(self.states(output, batch), self.decoder(words), self.bias)

    def states(self, output: Output, batch: Batch) -> Tensor:
        """What is decoded, of the targets or of all tokens."""
        hidden = output.hidden if batch.targets is None else output.hidden[batch.targets.clamp(min=0)]
        states: Tensor = self.norm(self.transform(hidden, self.activation))
        return states

    def decoder(self, words: Tensor) -> Tensor:
        return torch.cat([words, self.extra.weight], dim=1) if hasattr(self, "extra") else words


class Order(nn.Module):
    """Next sentence, sentence order, or StructBERT's three-way order: (S, classes)."""

    def __init__(self, hidden_size: int, head: OrderHead) -> None:
        super().__init__()
        self.dropout = head.dropout
        self.classifier = Linear(hidden_size, head.num_classes)

    def forward(self, output: Output, batch: Batch) -> Tensor:
        assert output.pooled is not None
        scores: Tensor = self.classifier(drop(output.pooled, self.dropout, self.training))
        return scores


class Classifier(nn.Module):
    """A classifier of the token that stands for a sequence, through the pooler or a dense layer: (S, outputs)."""

    def __init__(self, hidden_size: int, head: SequenceHead | ChoiceHead, num_outputs: int) -> None:
        super().__init__()
        self.head = head
        if head.dense:
            self.dense = Linear(hidden_size, hidden_size)
        self.classifier = Linear(hidden_size, num_outputs)

    def forward(self, output: Output, batch: Batch) -> Tensor:
        scores: Tensor = self.classifier(drop(self.pool(output, batch), self.head.dropout, self.training))
        return scores

    def pool(self, output: Output, batch: Batch) -> Tensor:
        if self.head.dense is None:
            assert output.pooled is not None
            return output.pooled
        first = output.hidden[output.class_tokens(batch)]
        if self.head.dense == "relu":  # DistilBERT
            return F.relu(self.dense(first))
        return torch.tanh(self.dense(drop(first, self.head.dropout, self.training)))  # RoBERTa


class Sequence(Classifier):
    """One score a label: (S, labels)."""

    def __init__(self, hidden_size: int, head: SequenceHead) -> None:
        super().__init__(hidden_size, head, len(head.labels))


class Choice(Classifier):
    """One score an option; options of one question share a row: (S,)."""

    def __init__(self, hidden_size: int, head: ChoiceHead) -> None:
        super().__init__(hidden_size, head, 1)

    def forward(self, output: Output, batch: Batch) -> Tensor:
        return super().forward(output, batch)[:, 0]


class Token(nn.Module):
    """Label scores of every token: (T, labels)."""

    def __init__(self, hidden_size: int, head: TokenHead) -> None:
        super().__init__()
        self.dropout = head.dropout
        self.classifier = Linear(hidden_size, len(head.labels))

    def forward(self, output: Output, batch: Batch) -> Tensor:
        scores: Tensor = self.classifier(drop(output.hidden, self.dropout, self.training))
        return scores


class Span(nn.Module):
    """Start and end scores of every token, (T, 2); `no_answer` adds a third column.

    The third column is the score that a token's sequence holds no answer, made from the token that stands for it
    and repeated along the sequence, so that the answer of this head, too, is one tensor over tokens.
    """

    def __init__(self, hidden_size: int, head: SpanHead) -> None:
        super().__init__()
        self.dropout = head.dropout
        self.classifier = Linear(hidden_size, 2)
        if head.no_answer:
            self.no_answer = Linear(hidden_size, 1)

    def forward(self, output: Output, batch: Batch) -> Tensor:
        hidden = drop(output.hidden, self.dropout, self.training)
        scores: Tensor = self.classifier(hidden)
        if not hasattr(self, "no_answer"):
            return scores
        absent = self.no_answer(hidden[output.class_tokens(batch)])
        return torch.cat([scores, absent[batch.slots()]], dim=1)


class Embedding(nn.Module):
    """One vector a sequence: (S, H). An empty slot's mean is zero, its `cls` some other token."""

    def __init__(self, hidden_size: int, head: EmbeddingHead) -> None:
        super().__init__()
        self.head = head

    def forward(self, output: Output, batch: Batch) -> Tensor:
        return embed(output, batch, self.head)


def embed(output: Output, batch: Batch, head: EmbeddingHead) -> Tensor:
    """The mean of every sequence's states, or the state of the token that stands for it: (S, H)."""
    hidden = output.hidden
    if head.pooling == "cls":
        vectors = hidden[output.class_tokens(batch)]
    else:
        sums = hidden.new_zeros(batch.num_slots, hidden.shape[1], dtype=torch.float32)
        sums = sums.index_add(0, batch.slots(), hidden.float())
        counts = torch.diff(batch.cu_lengths).clamp(min=1)
        vectors = (sums / counts[:, None]).to(hidden.dtype)
    return F.normalize(vectors, dim=1) if head.normalize else vectors


_MODULES: dict[type, Callable[[int, Any], nn.Module]] = {
    OrderHead: Order,
    SequenceHead: Sequence,
    TokenHead: Token,
    SpanHead: Span,
    ChoiceHead: Choice,
    EmbeddingHead: Embedding,
}


def make_head(config: EncoderConfig, head: HeadConfig) -> nn.Module:
    return MaskedLM(config, head) if isinstance(head, MaskedLMHead) else make_plain_head(config.hidden_size, head)


def make_plain_head(hidden_size: int, head: HeadConfig) -> nn.Module:
    """One that needs to know nothing of its encoder but the width of its states."""
    return _MODULES[type(head)](hidden_size, head)
