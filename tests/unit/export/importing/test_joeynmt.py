"""Tests of JoeyNMT checkpoints: a model with JoeyNMT's names and equations computes the same as the imported one."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor, nn

from attendant.export.importing.joeynmt import read
from attendant.export.origins import exportable_checkpoint
from attendant.runtime.bundle.manifest import MAX_TOKENS
from attendant.runtime.errors import UserError
from tests.imported import assert_same

WORDS = ["a", "b", "c", "d", "e"]
SYMBOLS = ["<unk>", "<pad>", "<s>", "</s>", *WORDS]
UNK, PAD, BOS, EOS = range(4)
SIZE, EMBEDDING = 6, 5

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "lstm-luong": {"rnn_type": "lstm", "attention": "luong", "num_layers": 2},
    "gru-bahdanau-without-feeding": {"attention": "bahdanau", "num_layers": 3, "input_feeding": False},
    "gru-zeros": {"attention": "luong", "init_hidden": "zero"},
    "lstm-bahdanau": {"rnn_type": "lstm"},
}


class Joey(nn.Module):
    """JoeyNMT's recurrent model (joeynmt/decoders.py), for batches of one sentence."""

    def __init__(self, rnn_type: str = "gru", num_layers: int = 1, **settings: Any) -> None:
        super().__init__()
        rnn = {"gru": nn.GRU, "lstm": nn.LSTM}[rnn_type]
        self.settings, self.num_layers, self.is_lstm = settings, num_layers, rnn_type == "lstm"
        self.feeds = settings.get("input_feeding", True)
        self.src_embed, self.trg_embed = (
            nn.ModuleDict({"lut": nn.Embedding(len(SYMBOLS), EMBEDDING, padding_idx=PAD)}) for _ in range(2)
        )
        self.encoder, self.decoder = nn.ModuleDict(), nn.ModuleDict()
        self.encoder["rnn"] = rnn(EMBEDDING, SIZE // 2, num_layers, batch_first=True, bidirectional=True)
        self.decoder["rnn"] = rnn(EMBEDDING + SIZE * self.feeds, SIZE, num_layers, batch_first=True)
        self.decoder["att_vector_layer"] = nn.Linear(2 * SIZE, SIZE)
        self.decoder["output_layer"] = nn.Linear(SIZE, len(SYMBOLS), bias=False)
        attention = {"key_layer": nn.Linear(SIZE, SIZE, bias=False)}
        if settings.get("attention") != "luong":
            attention |= {
                "query_layer": nn.Linear(SIZE, SIZE, bias=False),
                "energy_layer": nn.Linear(SIZE, 1, bias=False),
            }
        self.decoder["attention"] = nn.ModuleDict(attention)
        if settings.get("init_hidden", "bridge") == "bridge":
            self.decoder["bridge_layer"] = nn.Linear(SIZE, SIZE)

    def forward(self, source: list[int], target: list[int]) -> Tensor:
        scale = math.sqrt(EMBEDDING) if self.settings.get("scale") else 1.0
        memory, finals = self.encoder["rnn"](self.src_embed["lut"](torch.tensor([source])) * scale)
        final = torch.cat(list((finals[0] if self.is_lstm else finals)[-2:]), -1)
        first = torch.zeros_like(final)
        if "bridge_layer" in self.decoder:
            first = torch.tanh(self.decoder["bridge_layer"](final))
        hidden = first.unsqueeze(0).repeat(self.num_layers, 1, 1)
        state: Any = (hidden, hidden) if self.is_lstm else hidden
        attention, fed, logits = self.decoder["attention"], torch.zeros(1, 1, SIZE), []
        for symbol in target:
            embedded = self.trg_embed["lut"](torch.tensor([[symbol]])) * scale
            query, state = self.decoder["rnn"](torch.cat([embedded, fed], -1) if self.feeds else embedded, state)
            keys = attention["key_layer"](memory)
            if "query_layer" in attention:
                scores = attention["energy_layer"](torch.tanh(attention["query_layer"](query) + keys)).transpose(1, 2)
            else:
                scores = query @ keys.transpose(1, 2)
            context = torch.softmax(scores, -1) @ memory
            fed = torch.tanh(self.decoder["att_vector_layer"](torch.cat([query, context], -1)))
            logits.append(self.decoder["output_layer"](fed)[0, 0])
        return torch.stack(logits)


def write(folder: Path, model: Joey, rnn_type: str = "gru", num_layers: int = 1, **settings: Any) -> Path:
    """Writes a model folder as JoeyNMT does."""
    embeddings = {"embedding_dim": EMBEDDING, "scale": settings.pop("scale", False)}
    both = {"type": "recurrent", "rnn_type": rnn_type, "num_layers": num_layers, "embeddings": embeddings}
    config = {
        "data": {"src": {"level": "word", "max_length": 30}, "trg": {"level": "word"}},
        "testing": {"beam_size": 5, "beam_alpha": 1, "max_output_length": 40},
        "model": {"encoder": both | {"hidden_size": SIZE // 2}, "decoder": both | {"hidden_size": SIZE} | settings},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    for side in ("src", "trg"):
        (folder / f"{side}_vocab.txt").write_text("".join(f"{symbol}\n" for symbol in SYMBOLS))
    torch.save({"model_state": model.state_dict(), "optimizer_state": {"lr": 0.1}}, folder / "best.ckpt")
    return folder


def edit(folder: Path, *keys: str, value: Any) -> None:
    path = folder / "config.yaml"
    config = table = yaml.safe_load(path.read_text())
    for key in keys[:-1]:
        table = table.setdefault(key, {})
    table[keys[-1]] = value
    path.write_text(yaml.safe_dump(config))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_imported_model_computes_the_same(name: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    settings = ARCHITECTURES[name] | {"scale": name == "lstm-luong"}
    model = Joey(**settings).eval()
    imported = read(write(tmp_path, model, **settings), False)
    with torch.no_grad():
        theirs = model([4, 6, UNK, 5, EOS], [BOS, 8, 5, UNK])[:, [UNK, EOS, *range(4, 9)]]
    assert_same(imported, "a c ? b", "e b ?", theirs)


def test_limits_and_defaults_are_the_configurations(tmp_path: Path) -> None:
    imported = read(write(tmp_path, Joey()), False)
    assert (imported.max_source_tokens, imported.max_target_tokens) == (30, 40)
    assert (imported.decoding.beam_size, imported.decoding.length_penalty) == (5, 1.0)
    assert imported.decoding.max_length_ratio is None


def test_settings_that_are_no_defaults_of_bundles_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write(tmp_path, Joey())
    for name, plain, changed in (("generate_unk", True, False), ("repetition_penalty", -1, 2)):
        edit(folder, "testing", name, value=plain)
        read(folder, False)
        assert not caplog.messages
        edit(folder, "testing", name, value=changed)
        read(folder, False)
        assert f"testing.{name} = {changed} is no default of the bundle" in caplog.text
        edit(folder, "testing", name, value=plain)
        caplog.clear()


def test_a_character_vocabulary_is_imported(tmp_path: Path) -> None:
    folder = write(tmp_path, Joey())
    (folder / "src_vocab.txt").write_text(
        "".join(f"{symbol}\n" for symbol in ["<unk>", "<pad>", "<s>", "</s>", *"▁abcd"])
    )
    edit(folder, "data", "src", value={"level": "char", "lowercase": True, "normalize": True})
    tokenizer = read(folder, False).source_tokenizer
    assert tokenizer.tokens_of(tokenizer.encode(" A  b\u200bＣ !")) == ["a", " ", "b", "c", "<unk>"]


@pytest.mark.parametrize(
    ("keys", "value", "message"),
    [
        (("model", "decoder", "init_hidden"), "last", "init_hidden = 'last': can't be imported"),
        (("model", "decoder", "num_layers"), 2, "it has no weights decoder.rnn.weight_ih_l1"),
        (("model", "decoder", "init_hidden"), "zero", "parts that can't be imported: decoder.bridge_layer.bias"),
        (("data", "src", "level"), "bpe", r'data.src.level = "bpe" can\'t be imported: add --segmented'),
        (("data", "src", "tokenizer_cfg"), {"pretokenizer": "moses"}, "tokenizer_cfg.pretokenizer = 'moses'"),
        (("testing", "beam_size"), "four", "testing.beam_size = 'four': must be of type int"),
        (("model", "encoder", "hidden_size"), 64, "are of gru with hidden size 3; the settings .* size 64"),
    ],
)
def test_settings_that_cannot_be_imported_are_refused(
    keys: tuple[str, ...], value: Any, message: str, tmp_path: Path
) -> None:
    folder = write(tmp_path, Joey())
    edit(folder, *keys, value=value)
    with pytest.raises(UserError, match=message):
        read(folder, False)


def test_segmented_texts_are_taken_as_they_are(tmp_path: Path) -> None:
    folder = write(tmp_path, Joey())
    edit(folder, "data", "src", "level", value="bpe")
    tokenizer = read(folder, True).source_tokenizer
    assert tokenizer.tokens_of(tokenizer.encode("a d")) == ["a", "d"]


@pytest.mark.parametrize("file", ["config.yaml", "src_vocab.txt", "best.ckpt"])
def test_a_missing_or_unreadable_file_is_refused(file: str, tmp_path: Path) -> None:
    path = write(tmp_path, Joey()) / file
    path.write_bytes(b"\xff\xfe: [")
    with pytest.raises(UserError, match=file):
        read(tmp_path, False)
    path.write_text("date: 2024-02-30")  # no day: yaml raises ValueError
    with pytest.raises(UserError, match=file):
        read(tmp_path, False)
    path.unlink()
    with pytest.raises(UserError, match="nowhere: there is no such model folder or checkpoint"):
        read(tmp_path / "nowhere", False)
    absent = "is not there" if file == "best.ckpt" else "can't be read: No such file or directory$"
    with pytest.raises(UserError, match=f"{file}: {absent}"):
        read(tmp_path, False)


VERSION_1 = """
name: toy
data: {src: de, trg: en, level: word, lowercase: true, max_sent_length: 30, src_vocab: x, trg_vocab: y}
testing: {beam_size: 5, alpha: 1.0}
"""


def test_a_configuration_of_version_1_is_refused_with_its_translation(tmp_path: Path) -> None:
    folder = write(tmp_path, Joey())
    model = yaml.safe_load((folder / "config.yaml").read_text())["model"]
    (folder / "config.yaml").write_text(VERSION_1 + yaml.safe_dump({"model": model}))
    with pytest.raises(UserError, match="is of version 1 of JoeyNMT") as raised:
        read(folder, False)
    message = str(raised.value)
    assert message.endswith("testing.alpha is testing.beam_alpha")
    remedy = message[message.index("{data") : message.rindex("}") + 1]
    (folder / "config.yaml").write_text(yaml.safe_dump(yaml.safe_load(remedy) | {"model": model}))
    imported = read(folder, False)
    assert imported.max_source_tokens == 30
    assert imported.source_tokenizer.encode("A") == imported.source_tokenizer.encode("a")


def test_a_folder_without_its_best_checkpoint_is_refused(tmp_path: Path) -> None:
    best = write(tmp_path, Joey()) / "best.ckpt"
    best.rename(tmp_path / "12000.ckpt")
    with pytest.raises(UserError, match=r"best\.ckpt: is not there: name one of its checkpoints: 12000\.ckpt$"):
        read(tmp_path, False)
    read(tmp_path / "12000.ckpt", False)
    best.symlink_to("9000.ckpt")
    with pytest.raises(UserError, match=r"best\.ckpt: links to 9000\.ckpt, which is not there: name one of"):
        read(tmp_path, False)
    best.unlink()
    (tmp_path / "12000.ckpt").unlink()
    with pytest.raises(UserError, match=r"name a checkpoint, \*\.ckpt: it has none$"):
        read(tmp_path, False)


def test_limits_and_penalties_beyond_the_formats(tmp_path: Path) -> None:
    folder = write(tmp_path, Joey())
    edit(folder, "data", "src", "max_length", value=1_000_000)
    assert exportable_checkpoint("joeynmt", folder, tmp_path / "bundle").limits.max_source_tokens == MAX_TOKENS
    edit(folder, "testing", "beam_alpha", value=12)
    with pytest.raises(UserError, match="its model can't be imported: length_penalty: must be less than or"):
        exportable_checkpoint("joeynmt", folder, tmp_path / "bundle")
