"""What a reader of another toolkit's checkpoints gives: a model in our terms."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from attendant.runtime.bundle.manifest import DecodingDefaults
from attendant.runtime.bundle.tokenizer import Tokenizer
from attendant.training.model import ModelConfig

MAX_TOKENS = 250
"""Of a source and of a target, where a checkpoint names no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A model that another toolkit has trained.

    Attributes:
        file: the checkpoint itself, of which the bundle keeps the digest.
        config: the architecture.
        tensors: its weights, by the names of `Seq2Seq`'s state dict.
        append_eos: the encoder is given EOS after the source.
        max_source_tokens, max_target_tokens: that a request may have.
        decoding: what the toolkit would decode with.
    """

    file: Path
    config: ModelConfig
    tensors: dict[str, Tensor]
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    append_eos: bool
    max_source_tokens: int = MAX_TOKENS
    max_target_tokens: int = MAX_TOKENS
    decoding: DecodingDefaults = field(default_factory=DecodingDefaults)


Reader = Callable[[Path, bool], Imported]
"""Reads a checkpoint; the second argument: texts are given segmented into symbols, with blanks between them.

Raises UserError: the file can't be read, or what it holds can't be represented, by its name.
"""
