"""Any other Hub encoder (XLNet, BART, MPNet, DeBERTa, ELECTRA, ModernBERT …) behind the same calls.

The foreign model stays what `transformers` makes of it, and is fed padded rectangles; the ragged `Batch`
goes in and ragged `Output` comes out, so callers cannot tell the difference. What is notable:
- token types are given only to a model that has some;
- attention weights are shown by the model's plain attention, to which it is switched for such a call alone;
- `transformers` fills tensors that are missing with random numbers and a printed report; here they are an error;
- no remote code is run and nothing pickled is opened.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from halfpint.artifact import Artifact, ArtifactError
from halfpint.artifact.manifest import CONFIG, read_json
from halfpint.checkpoints.read import BUFFERS, warn_of_unread
from halfpint.checkpoints.registry import FAMILIES
from halfpint.checkpoints.values import POSITIONS, require_absolute_positions
from halfpint.config import ConfigError
from halfpint.model.attention import Padding
from halfpint.model.batch import Batch
from halfpint.model.encoder import Output
from halfpint.model.taps import NO_TAPS, Tapped, Taps

T = TypeVar("T")

ENDLESS = 1_000_000
COMPARES_SEGMENTS = ("xlnet",)
"""Architectures without a table of token types, which only ask whether two tokens have the same."""
ENDS_WITH_CLASS = ("xlnet",)
"""Architectures whose tokenizers put the token that stands for a sequence at its end."""


class ForeignEncoder(nn.Module):
    """A `transformers` model with the forward pass of an `Encoder`."""

    def __init__(self, model: nn.Module, *, pad_id: int, pools: bool = True) -> None:
        super().__init__()
        self.model = model
        config: Any = model.config
        self.config = config
        self.pad_id = pad_id
        self.pools = pools
        """Whether its pooler, where it has one, is more than random numbers."""
        self.name = str(config.model_type)
        accepted = inspect.signature(model.forward).parameters
        if not hasattr(config, "vocab_size") or not {"input_ids", "attention_mask"} <= set(accepted):
            raise ArtifactError(
                f"{self.name} is no text encoder: it does not take token ids with an attention mask; "
                "give a model that does"
            )
        self.takes_segments = "token_type_ids" in accepted and self._num_token_types() > 1

    @property
    def num_layers(self) -> int:
        return int(self.config.num_hidden_layers)

    @property
    def hidden_size(self) -> int:
        size = getattr(self.config, "hidden_size", None) or getattr(self.config, "d_model", None)
        if not isinstance(size, int):
            raise ArtifactError(f"the config of {self.name} says no hidden_size, so no head can be put on it")
        return size

    @property
    def vocab_size(self) -> int:
        return int(self.config.vocab_size)

    @property
    def num_positions(self) -> int:
        """XLNet's positions are relative and endless (it says -1); what a tokenizer allows is the caller's to say."""
        table = int(getattr(self.config, "max_position_embeddings", None) or 0)
        return table - _position_offset(self.model) if table > 0 else ENDLESS

    @property
    def num_token_types(self) -> int:
        return self._num_token_types() if self.takes_segments else 0

    def _num_token_types(self) -> int:
        # XLNet's own tokenizer numbers the two texts 0 and 1 and its last token 2.
        return ENDLESS if self.name in COMPARES_SEGMENTS else int(getattr(self.config, "type_vocab_size", 0) or 0)

    def forward(self, batch: Batch, taps: Taps = NO_TAPS) -> Output:
        self._refuse(taps)
        padding = Padding.of(batch)
        with plain_attention(self.model, wanted=bool(taps.probabilities)):
            result = self.model(
                **self._inputs(batch, padding),
                output_hidden_states=bool(taps.hidden),
                output_attentions=bool(taps.probabilities),
            )
        tapped = Tapped()
        states = result.get("hidden_states", ())
        for layer in taps.hidden:
            tapped.hidden[layer] = padding.unpad(states[layer])
        both = padding.mask[:, None, :, None] & padding.mask[:, None, None, :]
        attentions = result.get("attentions", ())
        for layer in taps.probabilities:
            tapped.probabilities[layer] = attentions[layer - 1] * both
        pooled = result.get("pooler_output") if self.pools else None
        return Output(padding.unpad(result.last_hidden_state), pooled, tapped, self.name in ENDS_WITH_CLASS)

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


@contextmanager
def plain_attention(model: Any, *, wanted: bool = True) -> Iterator[None]:
    """Meanwhile a model attends by matrix products and a softmax, which can be shown and counted."""
    fast = model.config._attn_implementation
    if not wanted or fast == "eager":
        yield
        return
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(fast)


def _position_offset(model: nn.Module) -> int:
    """MPNet and others count positions from pad + 1, as RoBERTa does; their table has a padding row."""
    tables = (module for name, module in model.named_modules() if name.endswith("position_embeddings"))
    return next((1 + table.padding_idx for table in tables if getattr(table, "padding_idx", None) is not None), 0)


def read_foreign(artifact: Artifact, *, dtype: torch.dtype = torch.float32) -> ForeignEncoder:
    """Load a folder by `transformers`' own classes; of an encoder-decoder, the encoder."""
    artifact.weight_files()  # says what is wrong with them, and refuses pickles and links out of the folder
    transformers = _transformers()
    config = _read_config(artifact.folder)

    def read() -> tuple[Any, dict[str, Any]]:
        # Sizes that do not match are reported below, all with their names; transformers alone names none.
        model, report = transformers.AutoModel.from_pretrained(
            artifact.folder,
            config=config,
            dtype=dtype,
            trust_remote_code=False,
            use_safetensors=True,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
        return model, report

    with quiet():
        model, report = _attempt(read, artifact.folder)
    missing = _check_complete(model, report, artifact.folder)
    unread = [name for name in report["unexpected_keys"] if not name.endswith(BUFFERS)]
    warn_of_unread(artifact.folder, unread, ": the transformers adapter keeps the encoder alone")
    return adapt(model, pools=not missing)


def _check_complete(model: Any, report: dict[str, Any], folder: Path) -> list[str]:
    """Refuse what would run with random numbers; a pooler may be missing, and is returned."""
    for name, found, wanted in sorted(report["mismatched_keys"]):
        raise ArtifactError(
            f"{folder}: tensor {name} has shape {tuple(found)}, expected {tuple(wanted)}; "
            "config.json and the weights do not belong together"
        )
    tensors = model.state_dict(keep_vars=True)
    kept = {id(tensor) for tensor in _encoder_of(model).state_dict(keep_vars=True).values()}
    missing = sorted(name for name in report["missing_keys"] if id(tensors[name]) in kept)
    lost = [name for name in missing if not name.startswith("pooler.")]
    if lost:
        more = f", and {len(lost) - 1} more are missing" if len(lost) > 1 else ""
        shape = tuple(tensors[lost[0]].shape)
        raise ArtifactError(f"{folder} has no tensor {lost[0]} (expected: {shape}){more}; the weights are incomplete")
    return missing


def make_foreign(config_folder: Path) -> ForeignEncoder:
    """The architecture of a config.json, with random weights: what `profile` needs."""
    config = _read_config(config_folder)
    make = _transformers().AutoModel.from_config
    return adapt(_attempt(lambda: make(config, trust_remote_code=False), config_folder))


def adapt(model: Any, *, pools: bool = True) -> ForeignEncoder:
    """Wrap a `transformers` model; of an encoder-decoder only the encoder is kept."""
    model = _encoder_of(model)
    return ForeignEncoder(model.eval(), pad_id=getattr(model.config, "pad_token_id", None) or 0, pools=pools)


def _encoder_of(model: Any) -> Any:
    return model.get_encoder() if getattr(model.config, "is_encoder_decoder", False) else model


def _read_config(folder: Path) -> Any:
    read = _transformers().AutoConfig.from_pretrained
    try:
        config = _attempt(lambda: read(folder, trust_remote_code=False), folder)
    except ArtifactError as error:
        raise ArtifactError(f"{error}{_near_family(folder)}") from error
    _refuse_unheeded(config, folder)
    return config


def _near_family(folder: Path) -> str:
    """What a model_type that nobody knows may be a slip of."""
    name = read_json(folder / CONFIG).get("model_type")
    if not isinstance(name, str) or name in _transformers().CONFIG_MAPPING:
        return ""
    near = difflib.get_close_matches(name, FAMILIES, n=2)
    return f"; did you mean model_type {' or '.join(map(repr, near))}?" if near else ""


def _refuse_unheeded(config: Any, folder: Path) -> None:
    """Relative positions of ELECTRA, XLM-R and others: version 5 of `transformers` would run them as absolute."""
    # Where the setting still means something (ESM), the class has a default for it.
    if not hasattr(type(config), POSITIONS):
        try:
            require_absolute_positions({POSITIONS: getattr(config, POSITIONS, "absolute")})
        except ConfigError as error:
            raise ConfigError(f"{folder}/config.json: {error}") from error


def _attempt(work: Callable[[], T], folder: Path) -> T:
    try:
        return work()
    # From validation to shards, transformers and what it stands on raise nothing narrower than Exception.
    except Exception as error:
        raise ArtifactError(f"transformers cannot open {folder}: {_first_line(error)}") from error


@contextmanager
def quiet() -> Iterator[None]:
    """Meanwhile `transformers` shows no progress bar, and no report, which is read here instead."""
    logging = _transformers().logging
    verbosity, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bar:
            logging.enable_progress_bar()


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
