"""Models that this project did not design, each in the style of its source, as users give them to `export_model`.

Each class is the model as its source writes it; its user adds `encode`, `step` and `row_state`.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import attendant
from attendant.export import UserModel
from attendant.export.verification.probes import VerificationPlan

TINY = VerificationPlan(
    batch_sizes=(1, 3),
    source_lengths=(9, 1, 4),
    beam_sizes=(1, 4),
    num_steps=3,
    num_decoded=6,
    num_alone=2,
    max_length=8,
)
SOURCES = ("abc", "defg", "hijab", "j", "cafe", "bad")
"""Sources for golden examples; without any, the export tries many random ones."""

SYMBOLS = ["<pad>", "<unk>", "<sos>", "<eos>", *"abcdefghij"]
SIZE = 32


def valid(source_ids: Tensor, source_lengths: Tensor) -> Tensor:
    return torch.arange(source_ids.shape[1]) < source_lengths[:, None]


class TutorialTranslator(nn.Module):
    """The attention GRU of PyTorch's translation tutorial, with a mask, which the tutorial lacks."""

    row_state = ("hidden",)

    def __init__(self, num_symbols: int = len(SYMBOLS), hidden_size: int = SIZE) -> None:
        super().__init__()
        self.encoder_embedding = nn.Embedding(num_symbols, hidden_size)
        self.encoder_gru = nn.GRU(hidden_size, hidden_size, batch_first=True)
        self.decoder_embedding = nn.Embedding(num_symbols, hidden_size)
        self.query = nn.Linear(hidden_size, hidden_size)
        self.keys = nn.Linear(hidden_size, hidden_size)
        self.energy = nn.Linear(hidden_size, 1)
        self.decoder_gru = nn.GRU(2 * hidden_size, hidden_size, batch_first=True)
        self.out = nn.Linear(hidden_size, num_symbols)
        self.dropout = nn.Dropout(0.1)

    def encode(self, source_ids, source_lengths):
        outputs, hidden = self.encoder_gru(self.dropout(self.encoder_embedding(source_ids)))
        return {"hidden": hidden[0], "outputs": outputs, "mask": valid(source_ids, source_lengths)}

    def step(self, previous_ids, row_state, source_state):
        embedded = self.dropout(self.decoder_embedding(previous_ids.unsqueeze(1)))
        hidden = row_state["hidden"].unsqueeze(0)
        scores = self.energy(torch.tanh(self.query(hidden.permute(1, 0, 2)) + self.keys(source_state["outputs"])))
        scores = scores.squeeze(2).unsqueeze(1).masked_fill(~source_state["mask"].unsqueeze(1), -1e9)
        weights = F.softmax(scores, dim=-1)
        context = torch.bmm(weights, source_state["outputs"])
        output, hidden = self.decoder_gru(torch.cat((embedded, context), dim=2), hidden)
        return self.out(output).squeeze(1), {"hidden": hidden[0]}, weights.squeeze(1)


class Plain(nn.Module):
    """The smallest encoder and step with attention, which is traced in less than half of the tutorial's time."""

    row_state = ("hidden",)

    def __init__(self, size: int = 16) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(len(SYMBOLS), size), nn.Embedding(len(SYMBOLS), size)
        self.cell, self.out = nn.Linear(2 * size, size), nn.Linear(2 * size, len(SYMBOLS))

    def encode(self, source_ids, source_lengths):
        outputs = self.source(source_ids)
        return {"hidden": outputs[:, 0], "outputs": outputs, "mask": valid(source_ids, source_lengths)}

    def step(self, previous_ids, row_state, source_state):
        hidden = torch.tanh(self.cell(torch.cat([self.target(previous_ids), row_state["hidden"]], -1)))
        scores = (source_state["outputs"] @ hidden[..., None]).squeeze(-1)
        weights = torch.softmax(scores.masked_fill(~source_state["mask"], -1e9), -1)
        context = (weights[:, None] @ source_state["outputs"]).squeeze(1)
        return self.out(torch.cat([hidden, context], -1)), {"hidden": hidden}, weights


class PackedDotAttention(nn.Module):
    """A bidirectional LSTM over packed sequences, dot attention, a deep decoder: the style of countless notebooks."""

    row_state = ("h", "c")

    def __init__(self, hid: int = SIZE) -> None:
        super().__init__()
        self.src_emb = nn.Embedding(len(SYMBOLS), hid, padding_idx=0)
        self.lstm = nn.LSTM(hid, hid, num_layers=2, bidirectional=True, batch_first=True, dropout=0.2)
        self.fc_h, self.fc_c = nn.Linear(2 * hid, hid), nn.Linear(2 * hid, hid)
        self.key = nn.Linear(2 * hid, hid)
        self.trg_emb = nn.Embedding(len(SYMBOLS), hid, padding_idx=0)
        self.decoder = nn.LSTM(hid, hid, num_layers=2, batch_first=True, dropout=0.2)
        self.out = nn.Linear(3 * hid, len(SYMBOLS))

    def encode(self, src, src_len):
        packed = pack_padded_sequence(self.src_emb(src), src_len.cpu(), batch_first=True, enforce_sorted=False)
        packed_outputs, (h, c) = self.lstm(packed)
        outputs, _ = pad_packed_sequence(packed_outputs, batch_first=True)
        h = torch.stack([torch.tanh(self.fc_h(torch.cat((h[2 * i], h[2 * i + 1]), 1))) for i in range(2)], 1)
        c = torch.stack([torch.tanh(self.fc_c(torch.cat((c[2 * i], c[2 * i + 1]), 1))) for i in range(2)], 1)
        return {"h": h, "c": c, "outputs": outputs, "keys": self.key(outputs), "mask": valid(src, src_len)}

    def step(self, prev, row, source):
        state = row["h"].transpose(0, 1).contiguous(), row["c"].transpose(0, 1).contiguous()
        out, (h, c) = self.decoder(self.trg_emb(prev)[:, None], state)
        scores = (source["keys"] @ out.transpose(1, 2)).squeeze(2).masked_fill(~source["mask"], float("-inf"))
        weights = torch.softmax(scores, -1)
        context = (weights[:, None] @ source["outputs"]).squeeze(1)
        logits = self.out(torch.cat((out.squeeze(1), context), -1))
        return logits, {"h": h.transpose(0, 1), "c": c.transpose(0, 1)}, weights


class SharedDotAttention(PackedDotAttention):
    """The same model with a step in the fast form: the rows of a beam share their source's tensors."""

    shares_sources = True

    def step(self, prev, row, source, source_rows, row_slots):
        state = row["h"].transpose(0, 1).contiguous(), row["c"].transpose(0, 1).contiguous()
        out, (h, c) = self.decoder(self.trg_emb(prev)[:, None], state)
        query = out.squeeze(1)[source_rows]
        scores = (source["keys"] @ query.transpose(1, 2)).transpose(1, 2)
        weights = torch.softmax(scores.masked_fill(~source["mask"][:, None], float("-inf")), -1)
        context = (weights @ source["outputs"]).flatten(0, 1)[row_slots]
        logits = self.out(torch.cat((out.squeeze(1), context), -1))
        return logits, {"h": h.transpose(0, 1), "c": c.transpose(0, 1)}, weights.flatten(0, 1)[row_slots]


class SsruStudent(nn.Module):
    """A Transformer encoder and a decoder of simpler simple recurrent units (Kim et al. 2019), as Marian's students."""

    row_state = ("cells",)

    def __init__(self, size: int = SIZE, heads: int = 4, encoder_layers: int = 1, decoder_layers: int = 1) -> None:
        super().__init__()
        self.size, self.heads = size, heads
        self.embedding = nn.Embedding(len(SYMBOLS), size)
        layer = nn.TransformerEncoderLayer(size, heads, 2 * size, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, encoder_layers, enable_nested_tensor=False)

        def layers(*sizes: int, bias: bool = True) -> nn.ModuleList:
            return nn.ModuleList(nn.Linear(*sizes, bias=bias) for _ in range(decoder_layers))

        self.candidate, self.forget = layers(size, size, bias=False), layers(size, size)
        self.query, self.key, self.value, self.joined = (layers(size, size) for _ in range(4))
        self.norms = nn.ModuleList(nn.LayerNorm(size) for _ in range(3 * decoder_layers))
        self.inner, self.outer = layers(size, 2 * size), layers(2 * size, size)
        angles = torch.arange(128)[:, None] * torch.exp(torch.arange(0, size, 2) * (-math.log(10_000.0) / size))
        self.register_buffer("positions", torch.stack([angles.sin(), angles.cos()], -1).flatten(1), persistent=False)

    def encode(self, source_ids, source_lengths):
        mask = valid(source_ids, source_lengths)
        embedded = self.embedding(source_ids) * math.sqrt(self.size) + self.positions[: source_ids.shape[1]]
        encoded = self.encoder(embedded, src_key_padding_mask=~mask)
        cells = encoded.new_zeros(source_ids.shape[0], len(self.candidate), self.size)
        state = {"cells": cells, "mask": mask}
        for number, (key, value) in enumerate(zip(self.key, self.value, strict=True)):
            state |= {f"keys_{number}": key(encoded), f"values_{number}": value(encoded)}
        return state

    def split(self, tensor):
        return tensor.unflatten(-1, (self.heads, -1)).transpose(-2, -3)

    def step(self, previous_ids, row, source):
        x = self.embedding(previous_ids) * math.sqrt(self.size)
        cells = []
        for number in range(len(self.candidate)):
            first, second, third = self.norms[3 * number : 3 * number + 3]
            forget = torch.sigmoid(self.forget[number](x))
            cells.append(forget * row["cells"][:, number] + (1 - forget) * self.candidate[number](x))
            x = first(x + torch.relu(cells[-1]))
            query = self.query[number](x).unflatten(-1, (self.heads, 1, -1))
            scores = query @ self.split(source[f"keys_{number}"]).transpose(-1, -2) / math.sqrt(self.size // self.heads)
            weights = torch.softmax(scores.masked_fill(~source["mask"][:, None, None], -1e9), -1)
            context = (weights @ self.split(source[f"values_{number}"])).transpose(-2, -3).flatten(-2).squeeze(1)
            x = second(x + self.joined[number](context))
            x = third(x + self.outer[number](torch.relu(self.inner[number](x))))
        return F.linear(x, self.embedding.weight), {"cells": torch.stack(cells, 1)}, weights.mean(1).squeeze(1)


def user_model(module: nn.Module, symbols: list[str] | None = None, **fields: object) -> UserModel:
    return UserModel(
        module=module,
        source_tokenizer=symbols or SYMBOLS,
        target_tokenizer=symbols or SYMBOLS,
        source_kind="character",
        target_kind="character",
        **{"max_source_tokens": 40, "max_target_tokens": 12, **fields},
    )


def random_model(of_class: type[nn.Module]) -> UserModel:
    """Returns a model with random weights, so large that its decisions have clear margins."""
    torch.manual_seed(1)
    module = of_class()
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() > 1:
                parameter.mul_(2)
    return user_model(module)


def random_sources(num: int, longest: int = 20) -> list[tuple[str, ...]]:
    """Returns sources with fewer than `longest` symbols."""
    random = np.random.default_rng(3)
    return [tuple(random.choice(SYMBOLS[4:], random.integers(1, longest)).tolist()) for _ in range(num)]


def naive_search(model: UserModel, source: Sequence[str], beam_size: int, max_length: int) -> tuple[list[str], float]:
    """Returns the best target and its log-probability, by the plainest loop around the user's module.

    It is a beam search without cached state or batches. It keeps the best `beam_size` continuations; those with EOS
    end. It stops when no live hypothesis is above the best that has ended.
    """
    module, symbols = model.module.eval(), list(model.target_tokenizer)
    bos = next(number for number, symbol in enumerate(symbols) if symbol in ("<sos>", "SOS"))
    eos = next(number for number, symbol in enumerate(symbols) if symbol in ("<eos>", "EOS"))
    never = [bos, *(number for number, symbol in enumerate(symbols) if symbol == "<pad>")]
    ids = [bos] * model.prepend_bos + [symbols.index(symbol) for symbol in source] + [eos]
    with torch.no_grad():
        state = module.encode(torch.tensor([ids]), torch.tensor([len(ids)]))
        sources = {name: tensor for name, tensor in state.items() if name not in module.row_state}
        live = [([], 0.0, {name: state[name] for name in module.row_state})]
        ended: list[tuple[list[int], float]] = []
        while True:
            pool = []
            for tokens, total, rows in live:
                previous = torch.tensor([tokens[-1] if tokens else bos])
                logits, new, _ = module.step(previous, dict(rows), sources)
                logits[:, never] = -1e9
                log_probs = torch.log_softmax(logits.float(), -1)[0]
                if len(tokens) == max_length:
                    # The hypothesis is cut, except if EOS follows.
                    total += log_probs[eos].item() if int(log_probs.argmax()) == eos else 0.0
                    ended.append((tokens, total))
                    continue
                pool += [(total + log_probs[i].item(), tokens, i, new) for i in range(len(symbols))]
            if not pool:
                break
            pool.sort(key=lambda entry: -entry[0])
            ended += [(tokens, total) for total, tokens, i, _ in pool[:beam_size] if i == eos]
            live = [([*tokens, i], total, new) for total, tokens, i, new in pool if i != eos][:beam_size]
            if ended and max(total for _, total in ended) >= live[0][1]:
                break
            if ended and beam_size == 1:
                break
    tokens, total = max(ended, key=lambda entry: entry[1])
    return [symbols[i] for i in tokens], total


def assert_answers(
    bundle: Path, model: UserModel, sources: list[tuple[str, ...]], beam_sizes: Sequence[int] = (1, 4)
) -> None:
    """Compares the fp32 answers of a bundle, in a batch and alone, with those of a naive loop around the model."""
    loaded = attendant.load(bundle, precision="fp32")
    for beam_size in beam_sizes:
        options: dict[str, Any] = {"beam_size": beam_size, "length_penalty": 0.0, "max_length": 12}
        answers = loaded.generate(sources, **options)
        for source, answer in zip(sources, answers, strict=True):
            tokens, log_prob = naive_search(model, source, beam_size, 12)
            assert list(answer.best.tokens) == tokens
            assert answer.best.log_prob == pytest.approx(log_prob, abs=1e-3)
        assert loaded.generate(sources[0], **options).best.tokens == answers[0].best.tokens
