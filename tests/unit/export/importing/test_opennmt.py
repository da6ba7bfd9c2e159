"""Tests of OpenNMT-py checkpoints: a model with its names and equations computes the same as the imported one."""

from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attendant.export import origins
from attendant.export.importing.opennmt import read
from attendant.export.origins import exportable_checkpoint
from attendant.runtime.bundle.manifest import DecodingDefaults
from attendant.runtime.errors import UserError
from tests.imported import assert_same

SYMBOLS = ["<unk>", "<blank>", "<s>", "</s>", "a", "b", "c", "d", "e"]
UNK, PAD, BOS, EOS = range(4)
SIZE, EMBEDDING = 6, 5

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "lstm-general": {"layers": 2},
    "gru-dot-without-feeding": {"rnn_type": "GRU", "global_attention": "dot", "input_feed": 0, "encoder_type": "rnn"},
    "gru-mlp": {"rnn_type": "GRU", "global_attention": "mlp", "layers": 3},
    "lstm-mlp-without-feeding": {"global_attention": "mlp", "input_feed": 0},
    "lstm-without-attention": {"global_attention": "none", "input_feed": 0, "encoder_type": "rnn", "layers": 2},
    "gru-general-from-end": {"rnn_type": "GRU", "start": "</s>"},
}


class Side(nn.Module):
    """An encoder or decoder with its embeddings under OpenNMT-py's name."""

    def __init__(self) -> None:
        super().__init__()
        table = nn.ModuleDict({"make_embedding": nn.ModuleDict({"emb_luts": nn.ModuleList()})})
        table["make_embedding"]["emb_luts"].append(nn.Embedding(len(SYMBOLS), EMBEDDING))
        self.embeddings = table

    def embed(self, ids: list[int]) -> Tensor:
        return self.embeddings["make_embedding"]["emb_luts"][0](torch.tensor([ids]))


class Onmt(nn.Module):
    """OpenNMT-py's recurrent model (onmt/decoders/decoder.py), for batches of one sentence."""

    def __init__(
        self,
        rnn_type: str = "LSTM",
        global_attention: str = "general",
        input_feed: int = 1,
        encoder_type: str = "brnn",
        layers: int = 1,
    ) -> None:
        super().__init__()
        self.score, self.feeds, self.both, self.is_lstm = (
            global_attention,
            bool(input_feed),
            encoder_type == "brnn",
            rnn_type == "LSTM",
        )
        rnn, cell = (nn.LSTM, nn.LSTMCell) if self.is_lstm else (nn.GRU, nn.GRUCell)
        self.encoder, self.decoder, self.generator = Side(), Side(), nn.Linear(SIZE, len(SYMBOLS))
        size = SIZE // 2 if self.both else SIZE
        self.encoder.rnn = rnn(EMBEDDING, size, layers, batch_first=True, bidirectional=self.both)
        if self.feeds:
            self.decoder.rnn = nn.ModuleDict({"layers": nn.ModuleList()})
            for layer in range(layers):
                self.decoder.rnn["layers"].append(cell(SIZE if layer else EMBEDDING + SIZE, SIZE))
        else:
            self.decoder.rnn = rnn(EMBEDDING, SIZE, layers, batch_first=True)
        attention = nn.ModuleDict()
        if global_attention == "general":
            attention["linear_in"] = nn.Linear(SIZE, SIZE, bias=False)
        if global_attention == "mlp":
            attention["linear_context"] = nn.Linear(SIZE, SIZE, bias=False)
            attention["linear_query"] = nn.Linear(SIZE, SIZE)
            attention["v"] = nn.Linear(SIZE, 1, bias=False)
        if global_attention != "none":
            attention["linear_out"] = nn.Linear(2 * SIZE, SIZE, bias=global_attention == "mlp")
            self.decoder.attn = attention

    def forward(self, source: list[int], target: list[int]) -> Tensor:
        memory, finals = self.encoder.rnn(self.encoder.embed(source))
        finals = finals if self.is_lstm else (finals,)
        if self.both:
            finals = tuple(torch.cat([part[0::2], part[1::2]], 2) for part in finals)
        embedded = self.decoder.embed(target)
        if not self.feeds:
            outputs, _ = self.decoder.rnn(embedded, finals if self.is_lstm else finals[0])
            return self.generator(outputs[0] if self.score == "none" else self._attend(outputs[0], memory[0]))
        states = [tuple(part[layer] for part in finals) for layer in range(len(finals[0]))]
        fed, attended = torch.zeros(1, SIZE), []
        for symbol in embedded.unbind(1):
            output = torch.cat([symbol, fed], 1)
            for layer, cell in enumerate(self.decoder.rnn["layers"]):
                new = cell(output, states[layer] if self.is_lstm else states[layer][0])
                states[layer] = new if self.is_lstm else (new,)
                output = states[layer][0]
            fed = self._attend(output, memory[0])
            attended.append(fed)
        return self.generator(torch.cat(attended))

    def _attend(self, query: Tensor, memory: Tensor) -> Tensor:
        """Computes onmt/modules/global_attention.py for queries [T, H] and memory [S, H]."""
        attention = self.decoder.attn
        if self.score == "mlp":
            inner = attention["linear_query"](query).unsqueeze(1) + attention["linear_context"](memory)
            scores = attention["v"](torch.tanh(inner)).squeeze(2)
        else:
            scores = (attention["linear_in"](query) if self.score == "general" else query) @ memory.T
        out = attention["linear_out"](torch.cat([torch.softmax(scores, -1) @ memory, query], 1))
        return out if self.score == "mlp" else torch.tanh(out)


def write(folder: Path, model: Onmt, start: str = "<s>", layers: int = 1, **options: Any) -> Path:
    """Writes a checkpoint as OpenNMT-py does."""
    choices = {"encoder_type": "brnn", "decoder_type": "rnn", "rnn_type": "LSTM", "global_attention": "general"}
    sizes = {"enc_layers": layers, "dec_layers": layers, "enc_hid_size": SIZE, "dec_hid_size": SIZE}
    state = model.state_dict()
    content = {
        "model": {name: tensor for name, tensor in state.items() if not name.startswith("generator.")},
        "generator": model.generator.state_dict(),
        "vocab": {"src": SYMBOLS, "tgt": SYMBOLS, "data_task": "seq2seq", "decoder_start_token": start},
        "opt": Namespace(**(choices | sizes | options)),
        "optim": {},
    }
    torch.save(content, folder / "model_step_10.pt")
    return folder / "model_step_10.pt"


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_imported_model_computes_the_same(name: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    options = dict(ARCHITECTURES[name])
    start = options.pop("start", "<s>")
    model = Onmt(**options).eval()
    imported = read(write(tmp_path, model, start, **options), False)
    first = BOS if start == "<s>" else EOS
    with torch.no_grad():
        theirs = model([4, 6, UNK, 5], [first, 8, 5, UNK])[:, [UNK, EOS, *range(4, 9)]]
    assert_same(imported, "a c ? b", "e b ?", theirs)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"global_attention_function": "sparsemax"}, "global_attention_function = 'sparsemax': can't be imported"),
        ({"global_attention": "none"}, "input_feed = 1 can't be imported with global_attention"),
        ({"transforms": ["filtertoolong", "sentencepiece"]}, "transforms sentencepiece can't be imported: add --seg"),
        ({"transforms": [], "_all_transform": {"suffix", "clean"}}, "transforms suffix can't be imported"),
        ({"rnn_type": "GRU"}, "weights encoder.rnn.weight_hh_l0 are of lstm with hidden size 3; the settings name gru"),
        ({"enc_hid_size": 8}, "weights encoder.rnn.weight_hh_l0 .* hidden size 3; the settings name lstm .* size 4"),
    ],
)
def test_settings_that_cannot_be_imported_are_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        read(write(tmp_path, Onmt(), **options), False)


@pytest.mark.parametrize(
    "options",
    [
        {"transforms": ["clean", "filtertoolong", "switchout", "tokendrop"], "_all_transform": {"tokenmask"}},
        {"transforms": None},
        {"transforms": ["prefix"]},  # accepted if the caller segments the texts
        {"copy_attn": False, "bridge": None, "n_src_feats": 0},
        {"hidden_size": SIZE, "enc_hid_size": 500},
        {"rnn_size": SIZE, "enc_hid_size": None, "dec_hid_size": None},
    ],
)
def test_options_that_do_not_change_the_model_are_accepted(options: dict[str, Any], tmp_path: Path) -> None:
    read(write(tmp_path, Onmt(), **options), options.get("transforms") == ["prefix"])


def test_a_model_without_an_equivalent_is_refused(tmp_path: Path) -> None:
    model = Onmt()
    model.encoder.rnn = nn.LSTM(EMBEDDING, 4, batch_first=True, bidirectional=True)
    path = write(tmp_path, model, enc_hid_size=8)
    with pytest.raises(UserError, match=r"its model can't be imported: .* states of size 8 as they are"):
        exportable_checkpoint("opennmt-py", path, tmp_path / "bundle")


def test_embeddings_of_two_widths_are_refused(tmp_path: Path) -> None:
    model = Onmt()
    model.encoder.embeddings["make_embedding"]["emb_luts"][0] = nn.Embedding(len(SYMBOLS), EMBEDDING + 1)
    with pytest.raises(UserError, match=r"embeddings of width 6 for sources and 5 for targets can't be imported"):
        exportable_checkpoint("opennmt-py", write(tmp_path, model), tmp_path / "bundle")


def test_a_bundle_is_named_after_its_folder(tmp_path: Path) -> None:
    path = write(tmp_path, Onmt())
    assert exportable_checkpoint("opennmt-py", path, tmp_path / "English to French").name == "english-to-french"
    assert exportable_checkpoint("opennmt-py", path, tmp_path / "bundle", "fr").name == "fr"
    with pytest.raises(UserError, match="gives no name"):
        exportable_checkpoint("opennmt-py", tmp_path / "absent.pt", tmp_path / "漢字")


def test_a_default_beam_is_no_wider_than_the_models_widest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    imported = read(write(tmp_path, Onmt()), False)
    wide = replace(imported, decoding=DecodingDefaults(beam_size=64))
    monkeypatch.setitem(origins.READERS, "opennmt-py", lambda path, segmented: wide)  # type: ignore[arg-type]
    exportable = exportable_checkpoint("opennmt-py", tmp_path, tmp_path / "bundle")
    assert exportable.decoding.beam_size == exportable.limits.max_beam_size


@pytest.mark.parametrize(
    ("symbols", "message"),
    [
        ([*SYMBOLS[:-1], "a"], "'a' is in the vocabulary twice"),
        ([*SYMBOLS[:-1], "<pad>"], "'<pad>' is an ordinary symbol there, and a special one here"),
        (["<pad>", *SYMBOLS[:1], *SYMBOLS[2:]], "the vocabulary lacks the toolkit's special symbol '<blank>'"),
        ([*SYMBOLS[:3], "<eos>", *SYMBOLS[4:]], "the vocabulary lacks the toolkit's special symbol '</s>'"),
        (("a",), "its vocab.src is no list of symbols"),
    ],
)
def test_vocabularies_that_cannot_be_imported_are_refused(symbols: Any, message: str, tmp_path: Path) -> None:
    path = write(tmp_path, Onmt())
    with torch.serialization.safe_globals([Namespace]):
        content = torch.load(path)
    content["vocab"] |= {"src": symbols, "tgt": symbols}
    torch.save(content, path)
    with pytest.raises(UserError, match=message):
        read(path, False)
