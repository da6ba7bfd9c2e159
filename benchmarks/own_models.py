"""Measures users' modules, exported by `attendant.export_model`: a student with simpler simple recurrent units against
our LSTMs and CTranslate2's Transformers, and the gain of sharing a source's tensors among the rows of a beam.

Shapes: B sources, R rows, M queries per source, S source positions, D model width, H hidden size.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from attendant.export import UserModel, export_model
from attendant.export.bundle_writer import write_bundle
from attendant.runtime.bundle.bundle import open_bundle
from attendant.runtime.bundle.tokenizer import EOS_ID, SPECIAL_TOKENS
from attendant.training.model import DecoderConfig
from benchmarks.decoding import BEAM_SIZE, NUM_WORKERS, PRECISIONS, Decoder, layout, throughput
from benchmarks.job import NUM_SPECIAL_SYMBOLS, program, sentences, word_of, words_of
from benchmarks.peers import TRANSFORMERS, transformers
from benchmarks.results import Part
from benchmarks.workload import (
    EOS_BIAS,
    MAX_TOKENS,
    PEAKEDNESS,
    SMALL_PLAN,
    Context,
    Workload,
    cached_bundle,
    mt_config,
    mt_exportable,
)

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
    shares_sources = True

    def __init__(self, sizes: Mapping[str, int], workload: Workload) -> None:
        super().__init__()
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
        self, previous_ids: Tensor, rows: State, sources: State, source_rows: Tensor, row_slots: Tensor
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
        source_rows: Tensor,
        row_slots: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns x [R, D], the new cell [R, D] and the mean weights of attention [R, S]."""
        forget = torch.sigmoid(self.forget(x))
        cell = forget * cell + (1 - forget) * self.candidate(x)
        x = self.norms[0](x + torch.relu(cell))
        query = self.heads(self.query(x)[source_rows])
        scores = query @ keys.transpose(-1, -2) / math.sqrt(query.shape[-1])
        weights = torch.softmax(scores.masked_fill(~mask[:, None, None], -1e9), -1)
        context = (weights @ values).transpose(1, 2).flatten(2).flatten(0, 1)[row_slots]
        x = self.norms[1](x + self.joined(context))
        x = self.norms[2](x + self.outer(torch.relu(self.inner(x))))
        return x, cell, weights.mean(1).flatten(0, 1)[row_slots]


class AttentionModel(nn.Module):
    """A bidirectional LSTM and an LSTM with dot attention (Luong et al. 2015), in both forms of the contract."""

    row_state = ("hidden", "cell")

    def __init__(self, workload: Workload, shares_sources: bool) -> None:
        super().__init__()
        size, embedding = workload.hidden_size, workload.embedding_size
        self.shares_sources = shares_sources
        self.source_embeddings, self.target_embeddings = (
            nn.Embedding(workload.vocabulary_size, embedding) for _ in range(2)
        )
        self.encoder = nn.LSTM(embedding, size // 2, workload.num_layers, bidirectional=True, batch_first=True)
        self.keys = nn.Linear(size, size, bias=False)
        self.decoder = nn.LSTMCell(embedding, size)
        self.combine, self.output = nn.Linear(2 * size, size), nn.Linear(size, workload.vocabulary_size)

    def encode(self, source_ids: Tensor, source_lengths: Tensor) -> dict[str, Tensor]:
        memory, (hidden, cell) = self.encoder(self.source_embeddings(source_ids))
        state = {name: torch.cat([part[-2], part[-1]], 1) for name, part in (("hidden", hidden), ("cell", cell))}
        mask = torch.arange(source_ids.shape[1]) < source_lengths[:, None]
        return {**state, "memory": memory, "keys": self.keys(memory), "mask": mask}

    def step(
        self,
        previous_ids: Tensor,
        rows: State,
        sources: State,
        source_rows: Tensor | None = None,
        row_slots: Tensor | None = None,
    ) -> tuple[Tensor, State, Tensor]:
        hidden, cell = self.decoder(self.target_embeddings(previous_ids), (rows["hidden"], rows["cell"]))
        query = hidden[:, None] if source_rows is None else hidden[source_rows]
        scores = (sources["keys"] @ query.transpose(1, 2)).transpose(1, 2)
        weights = torch.softmax(scores.masked_fill(~sources["mask"][:, None], -1e9), -1)
        parts = [part.flatten(0, 1) for part in (weights, weights @ sources["memory"])]
        weights, context = parts if row_slots is None else [part[row_slots] for part in parts]
        attentional = torch.tanh(self.combine(torch.cat([context, hidden], 1)))
        return self.output(attentional), {"hidden": hidden, "cell": cell}, weights


MODULES: Mapping[str, Callable[[Workload], nn.Module]] = {
    STUDENT: partial(Student, TRANSFORMERS[STUDENT]),
    "gathered": partial(AttentionModel, shares_sources=False),
    "shared": partial(AttentionModel, shares_sources=True),
}


def exported(context: Context, name: str) -> Path:
    """Returns the bundle of a module with seeded random weights; exported at the first use."""
    workload = context.workload

    def write(path: Path) -> None:
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(1)
            module: Any = MODULES[name](workload)
            module.output.weight.mul_(PEAKEDNESS)
            module.output.bias[EOS_ID] = EOS_BIAS
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

    return cached_bundle(context.cache, f"own-{name}-{workload.hidden_size}", write)


def translation_bundle(context: Context) -> Path:
    """Returns a bundle with the architecture of recipes/translate-debdocs-en-fr, without copying, untied, untrained."""
    workload = context.workload
    changes = {"embedding_size": workload.hidden_size, "residual": True, "decoder": DecoderConfig(num_layers=1)}

    def write(path: Path) -> None:
        exportable = mt_exportable(workload, mt_config(workload).model_copy(update=changes))
        write_bundle(exportable, path, precisions=("fp32", "int8"), plan=SMALL_PLAN)

    return cached_bundle(context.cache, f"own-translation-{workload.hidden_size}", write)


def decoder_of(key: str, name: str, bundle: Path, precision: str = "int8") -> Decoder:
    """Returns a decoder that runs a bundle in Attendant. Each core has a worker process with one thread."""
    arguments: dict[str, Any] = {"path": str(bundle), "precision": precision, "num_threads": 1}
    num_parameters = open_bundle(bundle).manifest.model["num_parameters"]
    return Decoder(
        key=key,
        name=f"{name} {precision}, {layout(NUM_WORKERS)}",
        command=partial(program, "own_worker:work", **arguments),
        num_workers=NUM_WORKERS,
        batch_sizes=(32, 64, 128),
        about=f"{num_parameters / 1e6:.1f} M parameters",
    )


def students(context: Context, beam_size: int) -> Part:
    """Measures recurrent models, students and Transformers of about equal size."""
    decoders = [
        decoder_of("translation", "LSTM 2+1, as translate-en-fr", translation_bundle(context)),
        decoder_of("student", f"Transformer + SSRU {STUDENT}", exported(context, STUDENT)),
    ]
    return throughput(context, [*decoders, *transformers(context, NUM_WORKERS)], beam_size)


def students_greedy(context: Context) -> Part:
    """A student with SSRUs, LSTMs and Transformers, greedy, in process.

    Models of about equal size with random weights, 20 source positions and as many steps. The students are users' own
    modules in the fast form of the contract.
    """
    return students(context, 1)


def students_beam(context: Context) -> Part:
    """A student with SSRUs, LSTMs and Transformers, beam 4, in process.

    As before, with a beam. The best hypothesis is returned.
    """
    return students(context, BEAM_SIZE)


def sharing(context: Context) -> Part:
    """Sharing a source's tensors among the rows of a beam, beam 4, in process.

    One model in both forms of the contract (docs/export-your-own.md), with the same weights, in turns.
    """
    decoders = [
        decoder_of(f"{form}_{precision}", form, exported(context, form), precision)
        for precision in PRECISIONS
        for form in ("gathered", "shared")
    ]
    return throughput(context, decoders, BEAM_SIZE)
