"""Any other Hub encoder (XLNet, BART, MPNet, DeBERTa, ELECTRA, ModernBERT …) behind the same calls.

The foreign model stays what `transformers` makes of it, and is fed padded rectangles; the ragged `Batch`
goes in and ragged `Output` comes out, so callers cannot tell the difference. What such a model does not
have (token types, attention weights in its fast attention) is asked for only where its own signature has
it. No remote code is run and nothing pickled is opened.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from halfpint.artifact import Artifact, ArtifactError
from halfpint.model.attention import Padding
from halfpint.model.batch import Batch
from halfpint.model.encoder import Output
from halfpint.model.taps import NO_TAPS, Tapped, Taps

ENDLESS = 1_000_000


class ForeignEncoder(nn.Module):
    """A `transformers` model with the forward pass of an `Encoder`."""

    def __init__(self, model: nn.Module, *, pad_id: int) -> None:
        super().__init__()
        self.model = model
        config: Any = model.config
        self.config = config
        self.pad_id = pad_id
        accepted = inspect.signature(model.forward).parameters
        self.takes_segments = "token_type_ids" in accepted and _num_token_types(model) > 1
        self.name = str(config.model_type)

    @property
    def num_layers(self) -> int:
        return int(self.config.num_hidden_layers)

    @property
    def vocab_size(self) -> int:
        return int(self.config.vocab_size)

    @property
    def num_positions(self) -> int:
        """XLNet's positions are relative and endless; what a tokenizer allows is the caller's to say."""
        table = getattr(self.config, "max_position_embeddings", None)
        return int(table) - _position_offset(self.model) if table else ENDLESS

    @property
    def num_token_types(self) -> int:
        return _num_token_types(self.model) if self.takes_segments else 0

    def forward(self, batch: Batch, taps: Taps = NO_TAPS) -> Output:
        self._refuse(taps)
        padding = Padding.of(batch)
        result = self.model(
            **self._inputs(batch, padding),
            output_hidden_states=bool(taps.hidden),
            output_attentions=bool(taps.probabilities),
        )
        tapped = Tapped()
        states = _layers(result, "hidden_states")
        for layer in taps.hidden:
            tapped.hidden[layer] = padding.unpad(states[layer])
        both = padding.mask[:, None, :, None] & padding.mask[:, None, None, :]
        attentions = _layers(result, "attentions")
        for layer in taps.probabilities:
            tapped.probabilities[layer] = attentions[layer - 1] * both
        return Output(padding.unpad(result.last_hidden_state), getattr(result, "pooler_output", None), tapped)

    def _inputs(self, batch: Batch, padding: Padding) -> dict[str, Tensor]:
        inputs = {
            "input_ids": padding.pad(batch.ids).masked_fill(~padding.mask, self.pad_id),
            "attention_mask": padding.mask.long(),
        }
        if self.takes_segments:
            inputs["token_type_ids"] = padding.pad(batch.segments).masked_fill(~padding.mask, 0)
        return inputs

    def _refuse(self, taps: Taps) -> None:
        taps.check(self.num_layers)
        if taps.scores or taps.vectors:
            raise ValueError(
                f"{self.name} runs through the transformers adapter, which shows hidden states and attention "
                "probabilities, but neither scores before the softmax nor queries, keys and values"
            )


def _num_token_types(model: nn.Module) -> int:
    config: Any = model.config
    return int(getattr(config, "type_vocab_size", 2) or 0)


def _position_offset(model: nn.Module) -> int:
    """MPNet and others count positions from pad + 1, as RoBERTa does; their table has a padding row."""
    tables = (module for name, module in model.named_modules() if name.endswith("position_embeddings"))
    return next((1 + table.padding_idx for table in tables if getattr(table, "padding_idx", None) is not None), 0)


def _layers(result: Any, name: str) -> tuple[Tensor, ...]:
    """The layers of an encoder; of an encoder-decoder (BART), those of its encoder."""
    found = getattr(result, name, None)
    return found if found is not None else getattr(result, f"encoder_{name}", None) or ()


def read_foreign(artifact: Artifact, *, dtype: torch.dtype = torch.float32) -> ForeignEncoder:
    """Load a folder by `transformers`' own classes; of an encoder-decoder, the encoder."""
    transformers = _transformers()
    try:
        config = transformers.AutoConfig.from_pretrained(artifact.folder, trust_remote_code=False)
        model = transformers.AutoModel.from_pretrained(
            artifact.folder, config=config, dtype=dtype, trust_remote_code=False, use_safetensors=True
        )
    except (ValueError, OSError, KeyError) as error:
        raise ArtifactError(f"transformers cannot open {artifact.folder}: {_first_line(error)}") from error
    return adapt(model)


def make_foreign(config_folder: Path) -> ForeignEncoder:
    """The architecture of a config.json, with random weights: what `profile` needs."""
    transformers = _transformers()
    config = transformers.AutoConfig.from_pretrained(config_folder, trust_remote_code=False)
    return adapt(transformers.AutoModel.from_config(config, trust_remote_code=False))


def adapt(model: Any) -> ForeignEncoder:
    """Wrap a `transformers` model; of an encoder-decoder only the encoder is kept."""
    if getattr(model.config, "is_encoder_decoder", False):
        model = model.get_encoder()
    return ForeignEncoder(model.eval(), pad_id=model.config.pad_token_id or 0)


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise ArtifactError(
            "this architecture needs the transformers package; install it with: pip install 'halfpint[train]'"
        ) from error
    return transformers


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
