"""Tests of imports: tiny models that the real toolkits train give the same answers as bundles as in their toolkits."""

import random
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

import attendant
from attendant.export.__main__ import main
from attendant.export.importing.g2p_en import SOUNDS
from tests.environments import python_of, run
from tests.paths import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

SYMBOLS = "abcdefghijkl"
MAX_LENGTH = 12

OPENNMT = ROOT / "benchmarks" / "start_opennmt.py"
OPENNMT_MODELS: Mapping[str, Mapping[str, object]] = {
    "general": {"global_attention": "general", "layers": 2},
    "mlp": {"global_attention": "mlp", "rnn_type": "GRU"},
    "dot-without-feeding": {"global_attention": "dot", "input_feed": 0, "encoder_type": "rnn"},
}

JOEYNMT_MODELS = {
    "luong": "lstm 2 luong true",
    "bahdanau": "gru 1 bahdanau false",
}

JOEYNMT = """
name: toy
model_dir: {folder}/model
use_cuda: false
data:
  dataset_type: plain
  train: {folder}/train
  dev: {folder}/dev
  src: {{lang: src, voc_file: {folder}/words.txt, level: word, max_length: 20}}
  trg: {{lang: tgt, voc_file: {folder}/words.txt, level: word, max_length: 20}}
testing: {{beam_size: {beam_size}, beam_alpha: {alpha}, max_output_length: 12}}
training:
  {{optimizer: adam, learning_rate: 0.005, learning_rate_min: 0.0, scheduling: exponential, decrease_factor: 1.0,
    batch_size: 64, batch_type: sentence, normalization: tokens, epochs: 8, logging_freq: 50, validation_freq: 150}}
model:
  encoder:
    {{type: recurrent, rnn_type: {rnn}, num_layers: {num_layers}, bidirectional: true, hidden_size: 24,
      embeddings: {{embedding_dim: 16}}}}
  decoder:
    {{type: recurrent, rnn_type: {rnn}, num_layers: {num_layers}, hidden_size: 32, embeddings: {{embedding_dim: 16}},
      attention: {attention}, init_hidden: bridge, input_feeding: {feeding}}}
"""

PARTS = """\
ab ac al an ar be bri ca cal ch co con cy de der di ed en er es ex fi for gh gra he ic in ing ion is it ive la le li lo
ly ma me ment mi mo ne ni no ol on or ou over pa per ph po pre pro qu ra re ri ro sa se sh si tion ty un ver wh y"""
"""Parts of words, from which the test makes words that look English."""

G2P_EN = """\
import os, sys, zipfile
# What it would fetch when it is imported: a dictionary and a tagger, which its model does not need.
for name in ("corpora/cmudict", "taggers/averaged_perceptron_tagger"):
    path = os.path.join(os.environ["NLTK_DATA"], name + ".zip")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("cmudict/cmudict", "A 1 AH0\\n")
from g2p_en import G2p
model = G2p()
for word in sys.stdin.read().split():
    print(*model.predict(word))
"""


def reversals(folder: Path) -> list[str]:
    """Writes a corpus whose targets are the reversed sources; returns the held-out sources."""
    generator = random.Random(1)
    (folder / "words.txt").write_text("".join(f"{symbol}\n" for symbol in SYMBOLS))
    sources: list[list[str]] = []
    for part, count in (("train", 1500), ("dev", 100)):
        sources = [generator.choices(SYMBOLS, k=generator.randint(2, 6)) for _ in range(count)]
        (folder / f"{part}.src").write_text("".join(f"{' '.join(source)}\n" for source in sources))
        (folder / f"{part}.tgt").write_text("".join(f"{' '.join(source[::-1])}\n" for source in sources))
    return [" ".join(source) for source in sources]


def answers(bundle: Path, texts: Sequence[str], beam_size: int, length_penalty: float = 0.0) -> list[str]:
    model = attendant.load(bundle)
    answered = model.generate(texts, beam_size=beam_size, length_penalty=length_penalty, max_length=MAX_LENGTH)
    return [answer.best.text for answer in answered]


def hold_against_penalized(
    bundle: Path, texts: Sequence[str], theirs: Sequence[str], alpha: float, offset: float
) -> None:
    """Checks that the toolkit's answers with a length penalty equal ours, or score less: its beam ends earlier."""
    model = attendant.load(bundle)
    ours = model.generate(texts, beam_size=4, length_penalty=alpha, length_penalty_offset=offset, max_length=MAX_LENGTH)
    differing = [
        (source, answer.best, other)
        for source, answer, other in zip(texts, ours, theirs, strict=True)
        if answer.best.text != other
    ]
    assert len(differing) <= len(texts) // 20
    for source, best, other in differing:
        scored = model.score(source, other)
        penalty = ((offset + len(scored.token_log_probs)) / (offset + 1)) ** alpha
        assert best.score > scored.log_prob / penalty


def test_an_imported_g2p_en_model_gives_the_same_answers(tmp_path: Path) -> None:
    python = python_of("g2p-en")
    (checkpoint,) = python.parents[1].glob("lib/python*/site-packages/g2p_en/checkpoint20.npz")
    letters = random.Random(1)
    words = ["".join(letters.choices(PARTS.split(), k=letters.randint(1, 5))) for _ in range(3000)]
    main(["import", "g2p_en", str(checkpoint), "--output", str(tmp_path / "bundle"), "--name", "g2p"])
    theirs = run(python, "-c", G2P_EN, stdin="\n".join(words), NLTK_DATA=str(tmp_path / "nltk")).splitlines()
    ours = [answer.best.text for answer in attendant.load(tmp_path / "bundle").generate(words)]
    assert ours == theirs


def test_g2p_en_predicts_by_our_model(tmp_path: Path) -> None:
    """Runs the lines of the recipe's page, in a process that has both packages."""
    page = (ROOT / "recipes/g2p-cmudict-stress/README.md").read_text()
    (lines,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    packages = next(python_of("g2p-en").parents[1].glob("lib/python*/site-packages"))
    program = G2P_EN.replace("from g2p_en import G2p\nmodel = G2p()\n", lines).replace("model.predict", "g2p.predict")
    assert "g2p.predict(word)" in program
    words = ["activationist", "phoneme", "o'reilly", "chatgpt", "x"]
    path = f"{ROOT}:{ROOT / 'client'}:{packages}"
    theirs = run(Path(sys.executable), "-c", program, stdin="\n".join(words), NLTK_DATA=str(tmp_path), PYTHONPATH=path)
    answered = attendant.load(ROOT / "models" / "g2p-en").generate(words)
    assert theirs.splitlines() == [answer.best.text for answer in answered]
    assert {sound for answer in answered for sound in answer.best.tokens} <= set(SOUNDS)


@pytest.mark.parametrize("name", OPENNMT_MODELS)
def test_an_imported_opennmt_model_gives_the_same_answers(name: str, tmp_path: Path) -> None:
    python, texts = python_of("opennmt-py"), reversals(tmp_path)
    options = {
        "data": "{corpus: {path_src: %s, path_tgt: %s}}" % (tmp_path / "train.src", tmp_path / "train.tgt"),  # noqa: UP031
        "src_vocab": tmp_path / "words.txt",
        "tgt_vocab": tmp_path / "words.txt",
        "save_model": tmp_path / "model",
        "encoder_type": "brnn",
        "decoder_type": "rnn",
        "layers": 1,
        "word_vec_size": 16,
        "hidden_size": 32,
        "dropout": "[0.0]",
        "optim": "adam",
        "learning_rate": 0.01,
        "batch_type": "sents",
        "batch_size": 64,
        "bucket_size": 1500,
        "num_workers": 0,
        "train_steps": 200,
        "save_checkpoint_steps": 200,
        "seed": 1,
    } | dict(OPENNMT_MODELS[name])
    (tmp_path / "config.yaml").write_text("".join(f"{key}: {value}\n" for key, value in options.items()))
    run(python, OPENNMT, "onmt.bin.train", "-config", tmp_path / "config.yaml")
    checkpoint, bundle = tmp_path / "model_step_200.pt", tmp_path / "bundle"
    main(["import", "OpenNMT-py", str(checkpoint), "--output", str(bundle)])

    def translations(beam_size: int, penalty: str, alpha: float) -> list[str]:
        options = {"model": checkpoint, "src": tmp_path / "dev.src", "output": tmp_path / "answers.txt"}
        options |= {"beam_size": beam_size, "length_penalty": penalty, "alpha": alpha, "max_length": MAX_LENGTH}
        arguments = [word for key, value in options.items() for word in (f"-{key}", value)]
        run(python, OPENNMT, "onmt.bin.translate", *arguments)
        return (tmp_path / "answers.txt").read_text().splitlines()

    for beam_size in (1, 4):
        assert answers(bundle, texts, beam_size) == translations(beam_size, "none", 0)
    # OpenNMT-py counts BOS in the length, Attendant doesn't.
    for penalty, alpha, offset in (("wu", 0.6, 6), ("avg", 1, 1)):
        hold_against_penalized(bundle, texts, translations(4, penalty, alpha), alpha, offset)


@pytest.mark.parametrize("name", JOEYNMT_MODELS)
def test_an_imported_joeynmt_model_gives_the_same_answers(name: str, tmp_path: Path) -> None:
    python, texts = python_of("joeynmt"), reversals(tmp_path)
    rnn, num_layers, attention, feeding = JOEYNMT_MODELS[name].split()
    settings = {"folder": tmp_path, "rnn": rnn, "num_layers": num_layers, "attention": attention, "feeding": feeding}
    for beam_size, alpha in ((1, -1), (4, 1.0)):
        text = JOEYNMT.format(**settings, beam_size=beam_size, alpha=alpha)
        (tmp_path / f"beam-{beam_size}.yaml").write_text(text)
    run(python, "-m", "joeynmt", "train", tmp_path / "beam-1.yaml", "--skip-test")
    main(["import", "joeynmt", str(tmp_path / "model"), "--output", str(tmp_path / "bundle")])
    for beam_size, length_penalty in ((1, 0.0), (4, 1.0)):
        config = tmp_path / f"beam-{beam_size}.yaml"
        theirs = run(python, "-m", "joeynmt", "translate", config, stdin="".join(f"{text}\n" for text in texts))
        assert answers(tmp_path / "bundle", texts, beam_size, length_penalty) == theirs.splitlines()
