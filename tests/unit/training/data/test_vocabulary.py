"""Tests of vocabularies of other tools: tokenizers of Hugging Face and SentencePiece keep their ids."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as LibraryTokenizer

from attendant.runtime.bundle.tokenizer import SPECIAL_TOKENS
from attendant.runtime.errors import UserError
from attendant.training.data.sentencepiece import model_class
from attendant.training.data.tokenization import SourceConfig
from attendant.training.data.vocabulary import read_vocabulary, tokenizer_for
from tests.paths import ROOT

MODELS = ROOT / "tests" / "sentencepiece"


def test_ids_of_a_vocabulary_may_be_anywhere() -> None:
    vocabulary = read_vocabulary(["b", "EOS", "a", "SOS", "UNK"], None, "word", field="source_tokenizer")
    assert vocabulary.module_ids == [-1, 4, 3, 1, 0, 2]
    assert vocabulary.tokenizer.encode_batch(["a b z"]) == [[5, 4, 1]]
    declared = read_vocabulary(
        ["x", "begin", "end"], {"bos": "begin", "eos": "end"}, "character", field="target_tokenizer"
    )
    assert declared.module_ids == [-1, -1, 1, 2, 0]


def test_special_symbols_that_are_not_declared_are_recognized(tmp_path: Path) -> None:
    """As in TensorFlow's translation tutorial. Without its own id, an unknown word would be fed as another symbol."""
    symbols = ["", "[UNK]", "[START]", "[END]", "a"]
    vocabulary = read_vocabulary(symbols, {"bos": "[START]", "eos": "[END]"}, field="source_tokenizer")
    assert vocabulary.module_ids == [-1, 1, 2, 3, 0, 4]
    # A start symbol that is usually padding.
    started = read_vocabulary(["<pad>", "</s>", "a"], {"bos": "<pad>"}, field="target_tokenizer")
    assert started.module_ids == [-1, -1, 0, 1, 2]
    pieces = {"<go>": 0, "<stop>": 1, "<oov>": 2, "a": 3}
    for model in (
        models.WordLevel(pieces, unk_token="<oov>"),
        models.Unigram([(piece, -1.0) for piece in pieces], unk_id=2),
    ):
        LibraryTokenizer(model).save(str(tmp_path / "tokenizer.json"))
        special = {"bos": "<go>", "eos": "<stop>"}
        assert read_vocabulary(tmp_path / "tokenizer.json", special, field="x").module_ids == [-1, 2, 0, 1, 3]


def assert_same_ids(library: LibraryTokenizer, folder: Path, texts: list[str]) -> None:
    library.save(str(folder / "tokenizer.json"))
    vocabulary = read_vocabulary(folder / "tokenizer.json", field="source_tokenizer")
    for text in texts:
        ours = vocabulary.tokenizer.encode_batch([text])[0]
        assert [vocabulary.module_ids[i] for i in ours] == library.encode(text, add_special_tokens=False).ids, text


@pytest.mark.parametrize("kind", ["wordlevel", "unigram", "bpe"])
def test_a_tokenizer_of_hugging_face_gives_the_modules_ids(kind: str, tmp_path: Path) -> None:
    pieces = ["<unk>", "a", "b", "ab", "[SEP]"]
    model = {
        "wordlevel": lambda: models.WordLevel({piece: i for i, piece in enumerate(pieces)}, unk_token="<unk>"),
        "unigram": lambda: models.Unigram([(piece, -float(i)) for i, piece in enumerate(pieces)], unk_id=0),
        "bpe": lambda: models.BPE({p: i for i, p in enumerate(pieces)}, [("a", "b")], unk_token="<unk>"),
    }[kind]()
    library = LibraryTokenizer(model)
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    library.add_special_tokens(["[CLS]"])
    assert_same_ids(library, tmp_path, ["ab", "a ab", "b z"])


@pytest.mark.parametrize(
    ("symbols", "special", "message"),
    [
        (["a", "a"], None, "the symbol 'a' is there twice"),
        ([], None, "the vocabulary has no symbols besides the special ones"),
        (["<unk>", "</s>"], None, "the vocabulary has no symbols besides the special ones"),
        (["a"], {"bos": "x"}, "bos is 'x', which is not among its 1 symbols"),
        (["a"], {"start": "a"}, "'start' is no special symbol: name pad, unk, bos, eos"),
        ("missing.txt", None, "source_tokenizer missing.txt: can't be read"),
        (
            {"a": 0},
            None,
            "source_tokenizer is of type dict, must be a file, or a list of symbols by their ids, such as s",
        ),
        (
            ["<s>", "</s>", "a"],
            {"bos": "</s>", "eos": "</s>"},
            "'<s>' is a name of special symbols in bundles: declare",
        ),
    ],
)
def test_a_wrong_vocabulary_is_refused(symbols: object, special: dict[str, str] | None, message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        read_vocabulary(symbols, special, "word", field="source_tokenizer")  # type: ignore[arg-type]


@pytest.mark.parametrize("lines", ["<s> 0\nthe 512\n", "<s>\t0\nthe\t-3.2\n", "<s>\t0\nthe\t1"])
def test_a_file_of_symbols_with_numbers_is_refused(lines: str, tmp_path: Path) -> None:
    """As fairseq, subword-nmt and SentencePiece (.vocab) write them, with counts, ids or scores."""
    (tmp_path / "dict.txt").write_text(lines)
    with pytest.raises(UserError, match=r"each line has a symbol and a number: .* the symbols alone"):
        read_vocabulary(tmp_path / "dict.txt", {"bos": "<s> 0"}, field="source_tokenizer")


def test_symbols_that_a_user_added_are_matched_within_texts(tmp_path: Path) -> None:
    library = LibraryTokenizer(models.BPE({"<unk>": 0, "a": 1, "b": 2, "ab": 3}, [("a", "b")], unk_token="<unk>"))
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    library.add_tokens([AddedToken("<sep>", normalized=False)])
    library.add_special_tokens(["<2b>", "</s>"])
    assert_same_ids(library, tmp_path, ["ab<sep>b", "<sep>", "a <sep>ab", "<2b> ab", "<2b>"])


def test_merges_are_not_left_out_at_random(tmp_path: Path) -> None:
    """A tokenizer may keep the dropout of its training (Provilkov et al. 2020)."""
    library = LibraryTokenizer(models.BPE({"<unk>": 0, "a": 1, "b": 2, "ab": 3}, [("a", "b")], dropout=0.9))
    library.save(str(tmp_path / "tokenizer.json"))
    tokenizer = read_vocabulary(tmp_path / "tokenizer.json", field="source_tokenizer").tokenizer
    assert tokenizer.tokens_of(tokenizer.encode("ab" * 20)) == ["ab"] * 20


def test_a_tokenizer_of_bert_is_taken(tmp_path: Path) -> None:
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "cafe", "##s", "bar", "漢", "字", "!"]
    library = LibraryTokenizer(models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    library.normalizer = normalizers.BertNormalizer()
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece()
    assert_same_ids(library, tmp_path, ["Cafés BAR!", "漢字 bar", "nothing"])


def test_a_component_that_bundles_lack_is_named_with_a_remedy(tmp_path: Path) -> None:
    library = LibraryTokenizer(models.WordLevel({"<unk>": 0, "a": 1}, unk_token="<unk>"))
    library.pre_tokenizer = pre_tokenizers.FixedLength(3)
    library.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(
        UserError, match=r"pre_tokenizer: 'FixedLength' is not one of .*; save it with other components"
    ):
        read_vocabulary(tmp_path / "tokenizer.json", field="source_tokenizer")


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_sentencepiece_gives_the_same_ids_and_texts(kind: str) -> None:
    """Compares with SentencePiece's results for texts with user-defined symbols, bytes and a custom normalization."""
    vocabulary = read_vocabulary(MODELS / f"{kind}.model", field="source_tokenizer")
    ours = {number: place for place, number in enumerate(vocabulary.module_ids)}
    for line in (MODELS / f"{kind}.jsonl").read_text().splitlines():
        example = json.loads(line)
        encoded = vocabulary.tokenizer.encode(example["text"])
        assert [vocabulary.module_ids[i] for i in encoded] == example["ids"], example["text"]
        # SentencePiece decodes an unknown symbol as " ⁇ ".
        decoded = vocabulary.tokenizer.decode([ours[i] for i in example["ids"]])
        assert decoded == example["decoded"].replace(" ⁇ ", "<unk>")
    assert vocabulary.tokenizer.tokens_of(range(4)) == list(SPECIAL_TOKENS)


def changed(tmp_path: Path, **fields: Any) -> Path:
    """Writes the unigram model with other options."""
    model: Any = model_class()()
    model.ParseFromString((MODELS / "unigram.model").read_bytes())
    for name, value in fields.items():
        part = model.trainer_spec if name in model.trainer_spec.DESCRIPTOR.fields_by_name else model.normalizer_spec
        setattr(part, name, value)
    path = tmp_path / "changed.model"
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_type": 4}, "model_type=char can't be expressed by Hugging Face's tokenizers: train it as unigram"),
        ({"treat_whitespace_as_suffix": True}, "treat_whitespace_as_suffix, or .* train it without them"),
        ({"precompiled_charsmap": b"\x08\0\0\0" + b"\xff" * 8}, "its normalization is damaged: copy the model again"),
    ],
)
def test_a_part_of_sentencepiece_that_is_not_expressed_is_named(
    fields: Mapping[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        read_vocabulary(changed(tmp_path, **fields), field="source_tokenizer")


@pytest.mark.parametrize("content", [b"", b"nothing of the kind", b"\x0a\xff\xff"])
def test_a_file_that_is_no_sentencepiece_model_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.model").write_bytes(content)
    with pytest.raises(UserError, match=r"x\.model: no SentencePiece model, or damaged at "):
        read_vocabulary(tmp_path / "x.model", field="source_tokenizer")


def test_a_symbol_that_the_normalization_changes_is_refused(tmp_path: Path) -> None:
    model: Any = model_class()()
    model.ParseFromString((MODELS / "unigram.model").read_bytes())
    model.pieces.add(piece="<“>", score=0.0, type=4)
    (tmp_path / "x.model").write_bytes(model.SerializeToString())
    with pytest.raises(UserError, match="the user-defined symbol '<“>', which the normalization changes to '<\">'"):
        read_vocabulary(tmp_path / "x.model", field="source_tokenizer")


def test_a_recipe_takes_a_tokenizer_as_it_is() -> None:
    name = str(MODELS / "unigram.model")
    tokenizer = tokenizer_for(SourceConfig(tokenizer=name), iter(()))
    assert tokenizer.to_text() == read_vocabulary(name, field="x").tokenizer.to_text()
    with pytest.raises(UserError, match=re.escape("source.tokenizer missing.json: can't be read: No such file")):
        tokenizer_for(SourceConfig(tokenizer="missing.json"), ())


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"tokenizer": "bytes"}, "must be one of character, word, bpe, unigram, or a file"),
        ({"tokenizer": "x.model", "vocabulary_size": 9}, "vocabulary_size = 9 is of a tokenizer that is trained"),
        ({"tokenizer": "x.json", "normalize": ["nfkc"]}, "source.tokenizer is the file x.json: leave normalize out"),
    ],
)
def test_keys_without_effect_on_a_file_are_refused(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SourceConfig.model_validate(table)
