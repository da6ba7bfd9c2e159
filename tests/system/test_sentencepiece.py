"""Tests against SentencePiece, in its own environment: a model that it trains gives the same ids here."""

import json
import random
import unicodedata
from pathlib import Path

import pytest

from attendant.training.data.vocabulary import read_vocabulary
from tests.environments import python_of, run
from tests.paths import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TRAINING = """\
import json, sys
import sentencepiece
options, texts = json.loads(sys.argv[1]), json.load(open("texts.json"))
options |= {"input": "corpus.txt", "model_prefix": "own", "num_threads": 1, "minloglevel": 2}
sentencepiece.SentencePieceTrainer.train(**options)
model = sentencepiece.SentencePieceProcessor(model_file="own.model")
ids = model.encode(texts)
json.dump([ids, model.decode(ids)], open("ids.json", "w"))
"""
SYMBOLS = ["<sep>", "@@", "word", "ing"]
MODELS = {
    "unigram": {},
    "bpe": {"model_type": "bpe"},
    "bytes": {"byte_fallback": True, "vocab_size": 700},
    "bpe with bytes": {"model_type": "bpe", "byte_fallback": True, "vocab_size": 700},
    "symbols": {"user_defined_symbols": SYMBOLS, "control_symbols": ["<2fr>"]},
    "bpe with symbols": {"model_type": "bpe", "user_defined_symbols": SYMBOLS, "control_symbols": ["<2fr>"]},
    "as written": {"normalization_rule_name": "identity", "add_dummy_prefix": False},
    "bpe that keeps spaces": {"model_type": "bpe", "remove_extra_whitespaces": False},
    "without case": {"normalization_rule_name": "nmt_nfkc_cf"},
    "across words": {"split_by_whitespace": False},
    "other special symbols": {"pad_id": 3, "bos_piece": "<BOS>", "eos_id": -1},
}
PIECES = [
    "<s>",
    "</s>",
    "<unk>",
    "<2fr>",
    "<0x0A>",
    *SYMBOLS,
    "ﬁ",
    "①",
    "½",
    "か\u3099",
    "\u1112\u1161\u11ab",
    "한국",
    "漢字",
]
PIECES += [" ", "  ", "\t", "\n", "\r\n", "\u3000", "\xa0", "\u200b", "\u200d", "\x07", "\u0301", "👨\u200d👩", "🇫🇷"]
MANY_MARKS = 0.005
"""Share of texts that may differ: those with marks after characters that normalization splits, such as ligatures."""


def texts_of(lines: list[str]) -> list[str]:
    """Returns 10,000 texts, half of them odd."""
    generator = random.Random(1)
    characters = [chr(code) for code in range(32, 0x30000) if unicodedata.category(chr(code)) not in ("Cn", "Cs", "Co")]

    def odd() -> str:
        line = list(generator.choice(lines))
        match generator.randrange(5):
            case 0:
                line = generator.choices(characters, k=generator.randint(1, 30))
            case 1:
                line = list(unicodedata.normalize("NFD", "".join(line)))
            case 2:
                line = generator.choices("aeiounlst ABC<>@0123456789.,-", k=generator.randint(1, 60))
            case _:
                for _ in range(4):
                    line.insert(generator.randrange(len(line) + 1), generator.choice(PIECES))
        return "".join(line)

    texts = [generator.choice(lines) if number % 2 else odd() for number in range(10_000)]
    return [text for text in map(str.strip, texts) if text and not text.startswith("▁")]


@pytest.mark.parametrize("name", MODELS)
def test_token_ids_are_those_of_sentencepiece(name: str, tmp_path: Path) -> None:
    lines = [line.strip() for page in sorted(ROOT.glob("docs/*.md")) for line in page.read_text().splitlines()]
    lines = [line for line in lines if len(line) > 20]
    (tmp_path / "corpus.txt").write_text("\n".join(lines))
    texts = texts_of(lines)
    (tmp_path / "texts.json").write_text(json.dumps(texts))
    program = f"import os; os.chdir({str(tmp_path)!r})\n{TRAINING}"
    run(python_of("sentencepiece"), "-c", program, json.dumps({"vocab_size": 400, **MODELS[name]}))
    expected, decoded = json.loads((tmp_path / "ids.json").read_text())

    vocabulary = read_vocabulary(tmp_path / "own.model", field="source_tokenizer")
    tokenizer, ours = vocabulary.tokenizer, {number: place for place, number in enumerate(vocabulary.module_ids)}
    actual = [[vocabulary.module_ids[i] for i in ids] for ids in tokenizer.encode_batch(texts)]
    differing = [text for text, ours, theirs in zip(texts, actual, expected, strict=True) if ours != theirs]
    assert len(differing) <= MANY_MARKS * len(texts), differing[:5]
    for ids, text in zip(expected, decoded, strict=True):
        # SentencePiece shows an unknown symbol as " ⁇ ".
        assert tokenizer.decode([ours[i] for i in ids]) == text.replace(" ⁇ ", "<unk>")
