"""The memory that autograd holds between the forward and the backward pass of a training step, analytically.

`activation_bytes` walks through the forward pass of `halfpint.model` operation by operation, without torch
and without numbers, and notes on a `Tape` what each one keeps for its backward pass.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from halfpint.config import (
    Activation,
    ChoiceHead,
    EmbeddingHead,
    EncoderConfig,
    MaskedLMHead,
    ModelConfig,
    Norm,
    OrderHead,
    SequenceHead,
    SpanHead,
    TokenHead,
)
from halfpint.measure.weights import summed_width, weights
from halfpint.model.backends import LONG, MAX_FUSED_WIDTH, gpu_backend

Precision = Literal["fp32", "bf16"]
Device = Literal["cuda", "cpu"]


def activation_bytes(
    config: ModelConfig | EncoderConfig,
    *,
    tokens: int,
    sequences: int,
    longest: int | None = None,
    targets: int | None = None,
    precision: Precision = "bf16",
    device: Device = "cuda",
) -> int:
    """Bytes saved for the backward pass of one training step over `tokens` tokens in `sequences` sequences.

    Precision `fp32` is plain float32; `bf16` is autocast over float32 weights. It counts plain eager torch, and
    all heads. `longest` is the longest sequence, by which attention is chosen; without it, all are taken to be
    of one length. `targets` is how many tokens the masked LM head works on; without it, all.

    Counted, each stored tensor once however many operations keep it, and once for each layer that uses a
    shared block:
    - of a linear layer its input (under autocast a bf16 copy of its own wherever the input is float32);
    - of gelu its input, of relu and tanh their output;
    - of layer norm its input, mean and reciprocal deviation, of NoNorm its input, and bf16 copies of their weights
      where they work on bf16 states (the CPU's layer norm needs none);
    - of the end of a layer's half (linear, dropout, residual, layer norm), which is one kernel on CUDA in bf16, the
      linear layer's input, what is normed, its mean and reciprocal deviation; the mask is not kept;
    - of dropout elsewhere its mask, where it drops: one byte a value on CUDA, a value's size on the CPU;
    - of attention queries, keys, values, the output and one float32 log-sum-exp for each head and token. CUDA's
      flash attention, which serves longer sequences, pads head sizes to multiples of 8 and keeps 16 bytes of random
      state; on the CPU the pieces of the output are kept beside the joined one, and in bf16 all of these in float32, or
      of long sequences the queries, keys, values, scaled queries and probabilities;
    - of the embedding head the states it averages, slots, lengths, and the vectors and norms it divides;
    - the index tensors that embeddings and gathers make (8 bytes an entry), and the trigrams' mask;
    - MobileBERT's decoder, joined from two weights;
    - under autocast one bf16 copy of each linear weight, however often it is used.

    Not counted: weights, gradients, optimizer states, the batch itself, the loss (for a masked LM its softmax is
    targets × vocabulary float32 values), temporaries that are freed before the backward pass, autocast's copies
    of biases, and the allocator's rounding. Attention is always the ragged, memory-efficient kind: with
    attention dropout, and in float32 on CUDA, the padded form needs more.
    """
    model = config if isinstance(config, ModelConfig) else ModelConfig(config)
    encoder, sharing = model.encoder, model.encoder.sharing
    longest = longest or -(-tokens // sequences)
    flash = gpu_backend(longest, encoder.head_size) == "flash"
    tape = Tape(tokens, longest, autocast=precision == "bf16", cpu=device == "cpu", flash=flash)
    hidden = _embeddings(tape, encoder)
    for attention_block, ffn_block in zip(sharing.attention, sharing.ffn, strict=True):
        attended = _attention(tape, encoder, encoder.num_heads[attention_block], hidden)
        hidden = _ffn(tape, encoder, encoder.ffn_size[ffn_block], attended, hidden)
    pooled = _pooler(tape, encoder, hidden, sequences)
    for head in model.heads:
        if isinstance(head, MaskedLMHead):
            _masked_lm(tape, encoder, head, hidden if targets is None else tape.gather(hidden, targets))
        elif isinstance(head, EmbeddingHead):
            _embedding(tape, head, hidden, sequences)
        else:
            _classifier(tape, head, hidden, pooled, sequences)
    return sum(value.nbytes for value in tape.saved) + (_weight_copies(model) if tape.autocast else 0)


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor of the forward pass. Two are the same only if they are the same object, as tensors are."""

    rows: int
    columns: int
    itemsize: int

    @property
    def nbytes(self) -> int:
        return self.rows * self.columns * self.itemsize


@dataclass
class Tape:
    """The operations of a forward pass, and the set of tensors that they save."""

    tokens: int
    longest: int
    autocast: bool
    cpu: bool
    flash: bool
    saved: set[Value] = field(default_factory=set)
    seed: Value = field(default_factory=lambda: Value(1, 1, 8))
    """Of all dropout that the one kernel does."""

    def save(self, value: Value) -> Value:
        self.saved.add(value)
        return value

    def save_new(self, rows: int, columns: int, itemsize: int) -> Value:
        return self.save(Value(rows, columns, itemsize))

    def cast(self, x: Value, itemsize: int) -> Value:
        return x if x.itemsize == itemsize else Value(x.rows, x.columns, itemsize)

    def linear(self, x: Value, columns: int, activation: Activation | None = None) -> Value:
        x = self.save(self.cast(x, 2 if self.autocast else 4))
        out = Value(x.rows, columns, x.itemsize)
        if activation is None:
            return out
        # relu knows its gradient from the output, gelu from the input.
        self.save(out)
        return out if activation == "relu" else Value(x.rows, columns, x.itemsize)

    def tanh(self, x: Value) -> Value:
        return self.save_new(x.rows, x.columns, x.itemsize)

    def dropout(self, x: Value, probability: float) -> Value:
        if probability == 0:
            return x
        self.save_new(x.rows, x.columns, x.itemsize if self.cpu else 1)
        return Value(x.rows, x.columns, x.itemsize)

    def add(self, x: Value, y: Value) -> Value:
        return Value(x.rows, x.columns, max(x.itemsize, y.itemsize))

    def norm(self, x: Value, kind: Norm) -> Value:
        self.save(x)
        if kind == "layer_norm":
            self.save_new(x.rows, 2, 4)
        if x.itemsize == 2 and (kind == "no_norm" or not self.cpu):
            # bf16 copies of what it multiplies with; CUDA's layer norm keeps its bias, too.
            self.save_new(1 if kind == "no_norm" else 2, x.columns, 2)
        return Value(x.rows, x.columns, x.itemsize)

    def close_half(self, x: Value, residual: Value, kind: Norm, dropout: float) -> Value:
        """A linear layer, dropout, the residual and the norm, which are one kernel on a GPU in half precision."""
        out = self.linear(x, residual.columns)
        if self.cpu or kind == "no_norm" or residual.itemsize != 2 or residual.columns > MAX_FUSED_WIDTH:
            return self.norm(self.add(self.dropout(out, dropout), residual), kind)
        self.save_new(out.rows, out.columns, 2)  # what is normed
        self.save_new(out.rows, 2, 4)
        self.save(self.seed)
        return Value(out.rows, out.columns, 2)

    def gather(self, x: Value, rows: int) -> Value:
        """Chosen rows, by an index that is made for it."""
        self.save_new(rows, 1, 8)
        return Value(rows, x.columns, x.itemsize)

    def attend(self, qkv: Value, heads: int, size: int) -> Value:
        if self.cpu and qkv.itemsize == 2:
            return self._attend_half(qkv, heads, size)
        if self.cpu or not self.flash:
            self.save(qkv)
            out = self.save_new(self.tokens, heads * size, qkv.itemsize)
            self.save_new(self.tokens, heads, 4)  # log-sum-exp
            return Value(self.tokens, heads * size, qkv.itemsize) if self.cpu else out
        padded = -(-size // 8) * 8
        if padded == size:
            self.save(qkv)
        else:
            for _ in ("query", "key", "value"):
                self.save_new(self.tokens, heads * padded, qkv.itemsize)
        out = self.save_new(self.tokens, heads * padded, qkv.itemsize)
        self.save_new(self.tokens, heads, 4)
        self.save_new(2, 1, 8)  # the state of the random generator, which the kernel keeps unused
        # Cutting the padding off leaves gaps, and joining the heads copies them away, unless there are no two to join.
        copied = padded != size and heads > 1 and size > 1
        return Value(self.tokens, heads * size, qkv.itemsize) if copied else out

    def _attend_half(self, qkv: Value, heads: int, size: int) -> Value:
        """In bf16 on the CPU: in float32 where sequences are short, by plain products where they are long."""
        if self.longest < LONG:
            for _ in ("query", "key", "value", "output"):
                self.save_new(self.tokens, heads * size, 4)
            self.save_new(self.tokens, heads, 4)
        else:
            self.save(qkv)
            self.save_new(self.tokens, heads * size, qkv.itemsize)  # scaled queries
            self.save_new(self.tokens, heads * self.longest, qkv.itemsize)  # probabilities
        return Value(self.tokens, heads * size, qkv.itemsize)


def _embeddings(tape: Tape, config: EncoderConfig) -> Value:
    tape.save_new(tape.tokens, 1, 8)  # positions, with their offset
    states = Value(tape.tokens, summed_width(config), 4)
    if config.trigram:
        tape.save_new(tape.tokens - 1, 1, 1)  # whether neighbours are of one sequence
    if config.embedding_projection == "words":
        inputs = Value(tape.tokens, config.embedding_size * (3 if config.trigram else 1), 4)
        states = tape.add(tape.linear(inputs, config.hidden_size), states)
    states = tape.cast(states, 2 if tape.autocast else 4)
    states = tape.dropout(tape.norm(states, config.norm), config.dropout)
    return tape.linear(states, config.hidden_size) if config.embedding_projection == "sum" else states


def _attention(tape: Tape, config: EncoderConfig, heads: int, hidden: Value) -> Value:
    width, inner = config.block_size, heads * config.head_size
    narrow = tape.norm(tape.linear(hidden, width), config.norm) if config.bottleneck_size else hidden
    if config.shared_query_key:
        tape.linear(tape.norm(tape.linear(hidden, width), config.norm), 2 * inner)
        joined = tape.linear(hidden, inner)
        qkv = Value(joined.rows, 3 * inner, joined.itemsize)
    else:
        qkv = tape.linear(narrow, 3 * inner)
    attended = tape.attend(qkv, heads, config.head_size)
    return tape.close_half(attended, narrow, config.norm, 0.0 if config.bottleneck_size else config.dropout)


def _ffn(tape: Tape, config: EncoderConfig, size: int, attended: Value, hidden: Value) -> Value:
    for index in range(config.num_ffns):
        closing = index == config.num_ffns - 1 and not config.bottleneck_size
        inner = tape.linear(attended, size, config.activation)
        attended = tape.close_half(inner, attended, config.norm, config.dropout if closing else 0.0)
    return tape.close_half(attended, hidden, config.norm, config.dropout) if config.bottleneck_size else attended


def _pooler(tape: Tape, config: EncoderConfig, hidden: Value, sequences: int) -> Value | None:
    if config.pooler == "none":
        return None
    first = tape.gather(hidden, sequences)
    return first if config.pooler == "first" else tape.tanh(tape.linear(first, hidden.columns))


def _masked_lm(tape: Tape, config: EncoderConfig, head: MaskedLMHead, states: Value) -> None:
    width = summed_width(config)
    states = tape.norm(tape.linear(states, width, head.activation), "layer_norm")
    tape.linear(states, config.vocab_size)
    if width > config.embedding_size and not tape.autocast:
        tape.save_new(config.vocab_size, width, 4)  # the decoder, joined from two weights


def _classifier(
    tape: Tape,
    head: OrderHead | SequenceHead | TokenHead | SpanHead | ChoiceHead,
    hidden: Value,
    pooled: Value | None,
    sequences: int,
) -> None:
    """Every head that ends in a linear layer; its outputs are never saved, so their number does not matter."""
    if isinstance(head, TokenHead | SpanHead):
        states = tape.dropout(hidden, head.dropout)
    elif isinstance(head, OrderHead) or head.dense is None:
        assert pooled is not None
        states = tape.dropout(pooled, head.dropout)
    else:
        first = tape.gather(hidden, sequences)
        if head.dense == "relu":
            dense = tape.linear(first, first.columns, "relu")
        else:
            dense = tape.tanh(tape.linear(tape.dropout(first, head.dropout), first.columns))
        states = tape.dropout(dense, head.dropout)
    tape.linear(states, 1)
    if isinstance(head, SpanHead) and head.no_answer:
        tape.gather(tape.linear(tape.gather(states, sequences), 1), tape.tokens)


def _embedding(tape: Tape, head: EmbeddingHead, hidden: Value, sequences: int) -> None:
    if head.pooling == "cls":
        vectors = tape.gather(hidden, sequences)
    else:
        tape.save(tape.cast(hidden, 4))
        tape.save_new(tape.tokens, 1, 8)  # the slot of every token
        tape.save_new(sequences, 1, 4)  # the length of every slot
        vectors = Value(sequences, hidden.columns, hidden.itemsize)
    if head.normalize:
        tape.save(vectors)
        for _ in ("norm", "norm kept above zero"):
            tape.save_new(sequences, 1, vectors.itemsize)


def _weight_copies(model: ModelConfig) -> int:
    """Autocast's bf16 copies of all weights that a matrix product reads."""
    tied = model.encoder.vocab_size * model.encoder.embedding_size if model.head("masked_lm") else 0
    return 2 * (tied + sum(weight.size for weight in weights(model) if weight.kind == "linear"))
