"""Measures users' modules, exported by `attendant.export_model`: a student with simpler simple recurrent units against
our LSTMs and CTranslate2's Transformers, and the gain of sharing a source's tensors among the rows of a beam.

Shapes: B sources, R rows, M queries per source, S source positions, D model width, N positions of either.
"""

import math
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from attendant.export import UserModel, export_model
from attendant.runtime.bundle.bundle import open_bundle
from attendant.runtime.bundle.tokenizer import SPECIAL_TOKENS
from attendant.training.model import DecoderConfig
from benchmarks.decoding import NUM_WORKERS, PRECISIONS, SEARCHES, decoded, many_sentences, own_decoder
from benchmarks.job import NUM_SPECIAL_SYMBOLS, sentences, word_of, words_of
from benchmarks.peers import TRANSFORMERS, transformers
from benchmarks.results import Part
from benchmarks.workload import MAX_TOKENS, SMALL_PLAN, Context, Workload, cached_bundle, mt_bundle, sharpen

NUM_HEADS = 8
STUDENT = "6+2"
"""The layers of encoder and decoder, of TRANSFORMERS."""

LONGEST = 256
"""Source positions that have an encoding."""

State = Mapping[str, Tensor]


class Student(nn.Module):
    """A Transformer encoder, and a decoder of simpler simple recurrent units (Kim et al. 2019), as Marian's students.

    It has the sizes of one of TRANSFORMERS; each layer of its decoder has an SSRU instead of self-attention.
    """

    row_state = ("cells",)

    def __init__(self, sizes: Mapping[str, int], workload: Workload, *, shares_sources: bool = True) -> None:
        super().__init__()
        self.shares_sources = shares_sources
        self.width = width = sizes["width"]
        feed_forward, vocabulary_size = sizes["feed_forward"], workload.vocabulary_size
        self.source_embeddings, self.target_embeddings = (nn.Embedding(vocabulary_size, width) for _ in range(2))
        layer = nn.TransformerEncoderLayer(width, NUM_HEADS, feed_forward, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, sizes["num_encoder_layers"], enable_nested_tensor=False)
        self.layers = nn.ModuleList(StudentLayer(width, feed_forward) for _ in range(sizes["num_decoder_layers"]))
        self.output = nn.Linear(width, vocabulary_size)
        frequencies = torch.exp(torch.arange(0, width, 2) * (-math.log(10_000.0) / width))
        angles = torch.arange(LONGEST)[:, None] * frequencies
        self.register_buffer("positions", torch.stack([angles.sin(), angles.cos()], -1).flatten(1))

    positions: Tensor

    def encode(self, source_ids: Tensor, source_lengths: Tensor) -> dict[str, Tensor]:
        mask = torch.arange(source_ids.shape[1]) < source_lengths[:, None]
        embedded = self.source_embeddings(source_ids) * math.sqrt(self.width) + self.positions[: source_ids.shape[1]]
        encoded = self.encoder(embedded, src_key_padding_mask=~mask)
        state = {"cells": encoded.new_zeros(source_ids.shape[0], len(self.layers), self.width), "mask": mask}
        for number, layer in enumerate(cast(Iterable[StudentLayer], self.layers)):
            state[f"keys_{number}"] = layer.heads(layer.key(encoded))
            state[f"values_{number}"] = layer.heads(layer.value(encoded))
        return state

    def step(
        self,
        previous_ids: Tensor,
        rows: State,
        sources: State,
        source_rows: Tensor | None = None,
        row_slots: Tensor | None = None,
    ) -> tuple[Tensor, State, Tensor]:
        x = self.target_embeddings(previous_ids) * math.sqrt(self.width)
        cells = []
        weights = x.new_zeros(())
        for number, layer in enumerate(cast(Iterable[StudentLayer], self.layers)):
            x, cell, weights = layer(
                *(x, rows["cells"][:, number], sources[f"keys_{number}"], sources[f"values_{number}"]),
                *(sources["mask"], source_rows, row_slots),
            )
            cells.append(cell)
        return self.output(x), {"cells": torch.stack(cells, 1)}, weights


class StudentLayer(nn.Module):
    """One layer of the student's decoder: SSRU, attention to the source, feed-forward; each with a residual, normed."""

    def __init__(self, width: int, feed_forward: int) -> None:
        super().__init__()
        self.candidate, self.forget = nn.Linear(width, width, bias=False), nn.Linear(width, width)
        self.query, self.key, self.value, self.joined = (nn.Linear(width, width) for _ in range(4))
        self.inner, self.outer = nn.Linear(width, feed_forward), nn.Linear(feed_forward, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))

    def heads(self, tensor: Tensor) -> Tensor:
        """Returns [B, heads, N, D / heads] of [B, N, D]."""
        *shape, width = tensor.shape
        return tensor.reshape(*shape, NUM_HEADS, width // NUM_HEADS).transpose(1, 2)

    def forward(
        self,
        x: Tensor,
        cell: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor,
        source_rows: Tensor | None,
        row_slots: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns x [R, D], the new cell [R, D] and the mean weights of attention [R, S]."""
        forget = torch.sigmoid(self.forget(x))
        cell = forget * cell + (1 - forget) * self.candidate(x)
        x = self.norms[0](x + torch.relu(cell))
        query = self.query(x)
        query = self.heads(query[:, None] if source_rows is None else query[source_rows])
        scores = query @ keys.transpose(-1, -2) / math.sqrt(query.shape[-1])
        weights = torch.softmax(scores.masked_fill(~mask[:, None, None], -1e9), -1)
        parts = [(weights @ values).transpose(1, 2).flatten(2).flatten(0, 1), weights.mean(1).flatten(0, 1)]
        context, weights = parts if row_slots is None else [part[row_slots] for part in parts]
        x = self.norms[1](x + self.joined(context))
        x = self.norms[2](x + self.outer(torch.relu(self.inner(x))))
        return x, cell, weights


def student_bundle(context: Context, *, shares_sources: bool = True) -> Path:
    """Returns the bundle of a student with seeded random weights, in either form of the contract."""
    workload = context.workload

    def write(path: Path) -> None:
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(1)
            module = Student(TRANSFORMERS[STUDENT], workload, shares_sources=shares_sources)
            sharpen(module.output.weight, module.output.bias)
        symbols = [*SPECIAL_TOKENS, *map(word_of, range(NUM_SPECIAL_SYMBOLS, workload.vocabulary_size))]
        model = UserModel(
            module=cast(Any, module),
            source_tokenizer=symbols,
            target_tokenizer=symbols,
            max_source_tokens=MAX_TOKENS,
            max_target_tokens=MAX_TOKENS,
        )
        sources = [words_of(source) for source in sentences(workload.job(64))]
        export_model(model, path, sources=sources, precisions=("fp32", "int8"), plan=SMALL_PLAN)

    form = "shared" if shares_sources else "gathered"
    return cached_bundle(context.cache, f"student-{form}-{workload.hidden_size}", write)


def translation_bundle(context: Context) -> Path:
    """Returns a bundle with the architecture of recipes/translate-debdocs-en-fr, without copying, untied, untrained."""
    size, decoder = context.workload.hidden_size, DecoderConfig(num_layers=1)
    changes = {"embedding_size": size, "residual": True, "decoder": decoder}
    return mt_bundle(context.workload, context.cache, name="translation", changes=changes)


def students(context: Context) -> Part:
    """A student with SSRUs, LSTMs and Transformers, in process.

    Models of about equal size with random weights, 20 source positions and as many steps. The student is a user's own
    module in the fast form of the contract.
    """
    bundles = {
        "LSTM 2+1, as translate-en-fr": partial(translation_bundle, context),
        f"Transformer + SSRU {STUDENT}": partial(student_bundle, context),
    }
    decoders = list(transformers(context, NUM_WORKERS))
    for name, make in bundles.items():
        about = f"{open_bundle(make()).manifest.model['num_parameters'] / 1e6:.1f} M parameters"
        decoders.append(own_decoder(make, "int8", name=name, num_workers=NUM_WORKERS, about=about))
    return decoded(context, decoders, many_sentences(context.workload, *SEARCHES))


def sharing(context: Context) -> Part:
    """Sharing a source's tensors among the rows of a beam, beam 4, in process.

    The student in both forms of the contract (docs/export-your-own.md), with the same weights, in turns.
    """
    decoders = [
        own_decoder(
            partial(student_bundle, context, shares_sources=shares), precision, name=form, num_workers=NUM_WORKERS
        )
        for precision in PRECISIONS
        for form, shares in (("gathered", False), ("shared", True))
    ]
    return decoded(context, decoders, many_sentences(context.workload, "beam 4"))
