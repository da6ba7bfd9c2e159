"""Tests of fairseq checkpoints: a model with fairseq's names and equations computes the same as the imported one."""

import itertools
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attendant
from attendant.export.__main__ import main
from attendant.export.importing.fairseq import read
from attendant.runtime.bundle.manifest import DecodingDefaults
from attendant.runtime.errors import UserError
from tests.imported import assert_same

SYMBOLS = ["<s>", "<pad>", "</s>", "<unk>", "a", "b", "c", "d", "e"]
BOS, PAD, EOS, UNK = range(4)
SIZE, EMBEDDING = 6, 5

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "two layers, both directions": {"layers": 2, "bidirectional": True, "encoder_size": 3},
    "projected states": {"bidirectional": True, "layers": 3},
    "projected states of one direction": {"encoder_size": 4},
    "another output size": {"out_embedding": 4},
    "shared output, another size": {"out_embedding": EMBEDDING, "shared": True},
}


class Fairseq(nn.Module):
    """fairseq's recurrent model (fairseq/models/lstm.py), for batches of one sentence without padding."""

    def __init__(
        self,
        layers: int = 1,
        bidirectional: bool = False,
        encoder_size: int = SIZE,
        out_embedding: int = SIZE,
        shared: bool = False,
    ) -> None:
        super().__init__()
        units = encoder_size * (1 + bidirectional)
        self.encoder, self.decoder, self.both = nn.Module(), nn.Module(), bidirectional
        self.encoder.embed_tokens = nn.Embedding(len(SYMBOLS), EMBEDDING, PAD)
        self.encoder.lstm = nn.LSTM(EMBEDDING, encoder_size, layers, bidirectional=bidirectional)
        decoder = self.decoder
        decoder.embed_tokens = nn.Embedding(len(SYMBOLS), EMBEDDING, PAD)
        if units != SIZE:
            decoder.encoder_hidden_proj, decoder.encoder_cell_proj = nn.Linear(units, SIZE), nn.Linear(units, SIZE)
        decoder.layers = nn.ModuleList(
            nn.LSTMCell(SIZE if layer else SIZE + EMBEDDING, SIZE) for layer in range(layers)
        )
        decoder.attention = nn.Module()
        decoder.attention.input_proj = nn.Linear(SIZE, units, bias=False)
        decoder.attention.output_proj = nn.Linear(SIZE + units, SIZE, bias=False)
        if out_embedding != SIZE:
            decoder.additional_fc = nn.Linear(SIZE, out_embedding)
        if not shared:
            decoder.fc_out = nn.Linear(out_embedding, len(SYMBOLS))

    def forward(self, source: list[int], target: list[int]) -> Tensor:
        encoder, decoder = self.encoder, self.decoder
        memory, finals = encoder.lstm(encoder.embed_tokens(torch.tensor(source))[:, None])
        if self.both:
            finals = tuple(torch.cat([part[0::2], part[1::2]], 2) for part in finals)
        if hasattr(decoder, "encoder_hidden_proj"):
            finals = decoder.encoder_hidden_proj(finals[0]), decoder.encoder_cell_proj(finals[1])
        states = list(zip(*finals, strict=True))
        fed, scores = torch.zeros(1, SIZE), []
        for symbol in target:
            output = torch.cat([decoder.embed_tokens(torch.tensor([symbol])), fed], 1)
            for layer, cell in enumerate(decoder.layers):
                states[layer] = cell(output, states[layer])
                output = states[layer][0]
            energies = (memory * decoder.attention.input_proj(output)).sum(2)
            context = (torch.softmax(energies, 0)[..., None] * memory).sum(0)
            fed = torch.tanh(decoder.attention.output_proj(torch.cat([context, output], 1)))
            out = decoder.additional_fc(fed) if hasattr(decoder, "additional_fc") else fed
            last = decoder.fc_out if hasattr(decoder, "fc_out") else None
            scores.append(out @ decoder.embed_tokens.weight.T if last is None else last(out))
        return torch.cat(scores)


def write(
    folder: Path,
    options: dict[str, Any] | None = None,
    model: nn.Module | None = None,
    *,
    old: bool = False,
    **others: Any,
) -> Path:
    """Writes a checkpoint and its dictionaries as fairseq does; if `old`, as fairseq did before version 0.10."""
    options = options or {}
    layers, both = options.get("layers", 1), options.get("bidirectional", False)
    values = {
        "arch": "lstm",
        "encoder_embed_dim": EMBEDDING,
        "encoder_hidden_size": options.get("encoder_size", SIZE),
        "encoder_layers": layers,
        "encoder_bidirectional": both,
        "decoder_embed_dim": EMBEDDING,
        "decoder_hidden_size": SIZE,
        "decoder_layers": layers,
        "decoder_attention": "1",
        "decoder_out_embed_dim": options.get("out_embedding", SIZE),
        "max_source_positions": 1e5,
        "max_target_positions": 100,
        **others,
    }
    languages = {"source_lang": "de", "target_lang": "en"}
    if old:
        settings: dict[str, Any] = {"args": Namespace(**values, **languages)}
    else:
        task = {"_name": "translation", **languages}
        settings = {"args": None, "cfg": {"_name": None, "task": task, "model": Namespace(**values)}}
    state = (model or Fairseq(**options)).state_dict()
    torch.save({**settings, "model": state, "extra_state": {}}, folder / "checkpoint_best.pt")
    for language in languages.values():
        lines = "".join(f"{symbol} {100 - number}\n" for number, symbol in enumerate(SYMBOLS[4:]))
        (folder / f"dict.{language}.txt").write_text(lines)
    return folder / "checkpoint_best.pt"


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_imported_model_computes_the_same(name: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = Fairseq(**ARCHITECTURES[name]).eval()
    write(tmp_path, ARCHITECTURES[name], model, old="layers" in ARCHITECTURES[name])
    imported = read(tmp_path, False)
    assert imported.decoding == DecodingDefaults(beam_size=5, length_penalty=1.0, length_penalty_offset=0.0)
    assert (imported.max_source_tokens, imported.max_target_tokens) == (250, 100)
    with torch.no_grad():
        # Every source ends with EOS, and every target begins with it.
        theirs = model([4, 6, UNK, 5, EOS], [EOS, 8, 5, UNK])[:, [UNK, EOS, *range(4, 9)]]
    assert_same(imported, "a c ? b", "e b ?", theirs)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"arch": "transformer"}, "arch = 'transformer': can't be imported, only 'lstm' and its variants can"),
        ({"decoder_layers": 2}, "decoder_layers = 2: can't be imported, only 1 can"),
        ({"encoder_hidden_size": 4}, "weights encoder.lstm.weight_hh_l0 are of lstm with hidden size 6"),
        ({"encoder_bidirectional": True}, "it has no weights encoder.lstm.weight_ih_l0_reverse"),
    ],
)
def test_settings_that_cannot_be_imported_are_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    write(tmp_path, None, None, **options)
    with pytest.raises(UserError, match=message):
        read(tmp_path, False)


@pytest.mark.parametrize(
    ("dictionary", "message"),
    [
        (None, r"dict.en.txt: can't be read: No such file .* copy the dictionaries from the folder of fairseq's data"),
        ("a\n", "dict.en.txt: line 1 is no symbol with its count: 'a'"),
        ("a\u2028 5\nb\x85 4\n", "the vocabulary has 6 symbols, and the weights are of 9"),
        ("a@@ 5\nb 4\n", "dict.en.txt: has subwords, such as 'a@@', .* add --segmented"),
    ],
)
def test_a_dictionary_must_be_there_and_fit(dictionary: str | None, message: str, tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "dict.en.txt").unlink()
    if dictionary is not None:
        (tmp_path / "dict.en.txt").write_text(dictionary)
    with pytest.raises(UserError, match=message):
        read(tmp_path, False)


def test_other_checkpoints_are_refused(tmp_path: Path) -> None:
    torch.save({"model": {}}, tmp_path / "model.pt")
    with pytest.raises(UserError, match="no checkpoint of this toolkit: it has neither args nor cfg"):
        read(tmp_path / "model.pt", False)


@pytest.mark.slow
def test_a_checkpoint_becomes_a_bundle_that_answers_as_it_does(tmp_path: Path) -> None:
    torch.manual_seed(1)
    options = {"bidirectional": True, "layers": 2}
    model = Fairseq(**options).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    checkpoint = write(tmp_path, options, model)
    main(["import", "fairseq", str(checkpoint), "--output", str(tmp_path / "bundle"), "--precision", "fp32,int8"])
    loaded = attendant.load(tmp_path / "bundle", precision="fp32")
    for word in itertools.product("abcde", repeat=3):
        target: list[int] = []
        while len(target) < 10 and EOS not in target:
            with torch.no_grad():
                scores = model([*map(SYMBOLS.index, word), EOS], [EOS, *target])[-1]
            scores[[BOS, PAD]] = -torch.inf
            target.append(int(scores.argmax()))
        answer = loaded.generate(" ".join(word), beam_size=1, max_length=10).best
        assert list(answer.tokens) == [SYMBOLS[number] for number in target if number != EOS]
