"""Measures a user's module, exported by `attendant.export_model`: a student with simpler simple recurrent units against
our LSTMs and CTranslate2's Transformers.

Shapes: B sources, R rows, M queries per source, S source positions, D model width, N positions of either.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from attendant.export import UserModel, export_model
from attendant.runtime.bundle.bundle import open_bundle
from attendant.runtime.bundle.tokenizer import SPECIAL_TOKENS
from attendant.training.model import DecoderConfig
from benchmarks.decoding import NUM_WORKERS, SEARCHES, decoded, many_sentences, own_decoder
from benchmarks.job import NUM_SPECIAL_SYMBOLS, sentences, word_of, words_of
from benchmarks.peers import TRANSFORMERS, transformers
from benchmarks.results import Part
from benchmarks.workload import MAX_TOKENS, SMALL_PLAN, Context, Workload, cached_bundle, mt_bundle, sharpen

NUM_HEADS = 8
STUDENT = "6+2"  # The layers of encoder and decoder, of TRANSFORMERS.

State = Mapping[str, Tensor]


class Student(nn.Module):
    """A Transformer encoder, and a decoder of simpler simple recurrent units (Kim et al. 2019), as Marian's students.

    It has the sizes of one of TRANSFORMERS; each layer of its decoder has an SSRU instead of self-attention. The rows
    of a beam share their source's tensors.
    """

    row_state: Sequence[str] = ("cells",)
    shares_sources: Literal[True] = True

    def __init__(self, sizes: Mapping[str, int], workload: Workload) -> None:
        super().__init__()
        self.width = width = sizes["width"]
        feed_forward, num_layers = sizes["feed_forward"], sizes["num_decoder_layers"]
        self.source_embeddings = nn.Embedding(workload.vocabulary_size, width)
        self.target_embeddings = nn.Embedding(workload.vocabulary_size, width)
        layer = nn.TransformerEncoderLayer(width, NUM_HEADS, feed_forward, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, sizes["num_encoder_layers"], enable_nested_tensor=False)
        self.memories = nn.ModuleList(nn.Linear(width, 2 * width) for _ in range(num_layers))
        self.layers = nn.ModuleList(StudentLayer(width, feed_forward) for _ in range(num_layers))
        self.output = nn.Linear(width, workload.vocabulary_size)
        self.positions = nn.Parameter(torch.randn(2 * MAX_TOKENS, width))

    def encode(self, source_ids: Tensor, source_lengths: Tensor) -> dict[str, Tensor]:
        mask = torch.arange(source_ids.shape[1]) < source_lengths[:, None]
        embedded = self.source_embeddings(source_ids) * math.sqrt(self.width) + self.positions[: source_ids.shape[1]]
        encoded = self.encoder(embedded, src_key_padding_mask=~mask)
        state = {"cells": encoded.new_zeros(source_ids.shape[0], len(self.layers), self.width), "mask": mask}
        for number, memory in enumerate(self.memories):
            state[f"keys_{number}"], state[f"values_{number}"] = heads(memory(encoded)).chunk(2, -1)
        return state

    def step(
        self, previous_ids: Tensor, row_state: State, source_state: State, source_rows: Tensor, row_slots: Tensor
    ) -> tuple[Tensor, State, Tensor]:
        x = self.target_embeddings(previous_ids) * math.sqrt(self.width)
        cells, weights = [], x.new_zeros(())
        for number, layer in enumerate(self.layers):
            source = [source_state[name] for name in (f"keys_{number}", f"values_{number}", "mask")]
            x, cell, weights = layer(x, row_state["cells"][:, number], source, source_rows, row_slots)
            cells.append(cell)
        return self.output(x), {"cells": torch.stack(cells, 1)}, weights


class StudentLayer(nn.Module):
    """One layer of the student's decoder: SSRU, attention to the source, feed-forward; each with a residual, normed."""

    def __init__(self, width: int, feed_forward: int) -> None:
        super().__init__()
        self.candidate, self.forget = nn.Linear(width, width, bias=False), nn.Linear(width, width)
        self.query, self.joined = nn.Linear(width, width), nn.Linear(width, width)
        self.inner, self.outer = nn.Linear(width, feed_forward), nn.Linear(feed_forward, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))

    def forward(
        self, x: Tensor, cell: Tensor, source: list[Tensor], source_rows: Tensor, row_slots: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns x [R, D], the new cell [R, D] and the mean weights of attention [R, S].

        `source` has keys and values [B, heads, S, D / heads] and the mask [B, S].
        """
        forget = torch.sigmoid(self.forget(x))
        cell = forget * cell + (1 - forget) * self.candidate(x)
        x = self.norms[0](x + torch.relu(cell))
        keys, values, mask = source
        query = heads(self.query(x)[source_rows])
        scores = query @ keys.transpose(-1, -2) / math.sqrt(query.shape[-1])
        weights = torch.softmax(scores.masked_fill(~mask[:, None, None], -1e9), -1)
        context = (weights @ values).transpose(1, 2).flatten(2).flatten(0, 1)[row_slots]
        x = self.norms[1](x + self.joined(context))
        x = self.norms[2](x + self.outer(torch.relu(self.inner(x))))
        return x, cell, weights.mean(1).flatten(0, 1)[row_slots]


def heads(tensor: Tensor) -> Tensor:
    """Returns [B, heads, N, D / heads] of [B, N, D]."""
    return tensor.reshape(*tensor.shape[:2], NUM_HEADS, -1).transpose(1, 2)


def student_bundle(context: Context) -> Path:
    """Returns the bundle of a student with seeded random weights."""
    workload = context.workload

    def write(path: Path) -> None:
        with torch.random.fork_rng():
            torch.manual_seed(1)
            module = Student(TRANSFORMERS[STUDENT], workload)
        sharpen(module.output.weight, module.output.bias)
        symbols = [*SPECIAL_TOKENS, *map(word_of, range(NUM_SPECIAL_SYMBOLS, workload.vocabulary_size))]
        model = UserModel(
            module=module,
            source_tokenizer=symbols,
            target_tokenizer=symbols,
            max_source_tokens=MAX_TOKENS,
            max_target_tokens=MAX_TOKENS,
        )
        sources = [words_of(source) for source in sentences(workload.job(64))]
        export_model(model, path, sources=sources, precisions=("fp32", "int8"), plan=SMALL_PLAN)

    return cached_bundle(context, "student", write)


def students(context: Context) -> Part:
    """A student with SSRUs, LSTMs and Transformers, in process.

    Models of about equal size with random weights, 20 source positions and as many steps. The student is a user's own
    module in the fast form of the contract.
    """
    # The architecture of recipes/translate-debdocs-en-fr, without copying, untied, untrained.
    lstm = mt_bundle(
        context, "translation", embedding_size=context.workload.hidden_size, decoder=DecoderConfig(num_layers=1)
    )
    bundles = {"LSTM 2+1, as translate-en-fr": lstm, f"Transformer + SSRU {STUDENT}": student_bundle(context)}
    decoders = list(transformers(context, NUM_WORKERS))
    for name, path in bundles.items():
        about = f"{open_bundle(path).manifest.model['num_parameters'] / 1e6:.1f} M parameters"
        decoders.append(replace(own_decoder(path, "int8", NUM_WORKERS, name=name), about=about))
    return decoded(context, decoders, many_sentences(context.workload, *SEARCHES))
