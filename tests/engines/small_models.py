"""Small models with random weights and a task, saved as `finetune` would save them."""

from __future__ import annotations

from pathlib import Path

import torch

import halfpint as hp
from halfpint.config import ChoiceHead, EncoderConfig, HeadConfig, ModelConfig, SequenceHead, SpanHead, TokenHead
from halfpint.data.choice_task import ChoiceTask
from halfpint.data.columns import Columns
from halfpint.data.pair_task import PairTask
from halfpint.data.span_task import SpanTask
from halfpint.data.tagging_task import TaggingTask
from halfpint.data.task import Task
from halfpint.data.text_task import TextTask
from halfpint.model.network import Network
from tests.data.small_tokenizers import small_tokenizer

MAX_LENGTH = 32

TEXT = TextTask(Columns("text", label="label"), "single_label", ("no", "yes", "a, b"), ("accuracy",), temperature=0.2)
PAIR = TextTask(Columns("premise", "hypothesis", "label"), "single_label", ("no", "yes"), ("accuracy",))
SEVERAL = TextTask(Columns("text", label="label"), "multi_label", ("x", "y"), ("multi_label_f1_micro",))
NUMBER = TextTask(Columns("text", label="label"), "regression", ("label",), ("spearman",))
TAGS = TaggingTask(Columns("tokens", label="tags"), ("O", "B-PER", "I-PER"))
SPAN = SpanTask(Columns("question", "context", "answers"), stride=4)
CHOICE = ChoiceTask(Columns("article", "question", "answer"), "options")
LIKENESS = PairTask(Columns("sentence1", "sentence2", "score"), name="similarity")

HEADS: dict[str, HeadConfig] = {"token": TokenHead(TAGS.labels), "span": SpanHead(), "choice": ChoiceHead()}


def save_model(folder: Path, task: Task, *, seed: int = 3, max_length: int = MAX_LENGTH) -> Path:
    tokenizer = small_tokenizer("bert")
    heads = {**HEADS, "sequence": SequenceHead(task.labels, task.problem)} if task.labels else HEADS
    encoder = EncoderConfig.uniform(
        vocab_size=tokenizer.size, hidden_size=16, num_layers=1, num_heads=2, ffn_size=16, num_positions=64
    )
    torch.manual_seed(seed)
    network = Network(ModelConfig(encoder, (heads[task.head],) if task.head in heads else ()))
    with torch.no_grad():  # fresh weights are so small that all answers are about the same
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    model = hp.Model(network, tokenizer, None)
    return model.save(folder, metadata={"task": task.to_dict(), "max_length": max_length})
