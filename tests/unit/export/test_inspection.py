"""Tests of `attendant.inspect`: graphs and PyTorch give the same values, which satisfy the papers' equations."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import attendant
from attendant.export.inspection import Subject
from attendant.runtime.bundle.tokenizer import special_ids
from attendant.runtime.inspection import Inspection
from attendant.training.evaluation.evaluating import TextModel
from attendant.training.model import Seq2Seq
from attendant.training.model.inspection import watched
from attendant.training.model.stepper import TorchStepper
from tests.bundles import KINDS, letter_tokenizer, sound_tokenizer, tiny_model
from tests.paths import ROOT

MODELS = ROOT / "models"
ARRAYS = ("log_probs", "memory", "keys", "hidden", "cell", "query", "scores", "weights", "context", "p_gen")


def in_torch(model: Seq2Seq) -> Subject:
    record: dict = {}
    letters = letter_tokenizer()
    text_model = TextModel(
        stepper=TorchStepper(watched(model, record)),
        source_tokenizer=letters,
        target_tokenizer=letters if model.config.shared_embeddings else sound_tokenizer(),
        special_ids=special_ids(model.start_id),
        append_eos=True,
        max_length=48,
    )
    return Subject(model=text_model, record=record, has_mask=True)


def assert_alike(a: Inspection, b: Inspection, atol: float = 1e-4) -> None:
    assert (a.source_tokens, a.target_tokens) == (b.source_tokens, b.target_tokens)
    for name in ARRAYS:
        x, y = getattr(a, name), getattr(b, name)
        assert (x is None) == (y is None), name
        if x is not None:
            assert x.dtype == y.dtype == np.float32
            np.testing.assert_allclose(x, y, atol=atol, rtol=atol, err_msg=name)
    assert a.gates.keys() == b.gates.keys()
    for name, gate in a.gates.items():
        np.testing.assert_allclose(gate, b.gates[name], atol=atol, err_msg=name)


@pytest.mark.parametrize("kind", ["luong", "bahdanau", "see", "unequal sizes", "fixed vector"])
def test_inspecting_the_graphs_gives_pytorchs_values(kind: str, bundle_of_kind: Callable[[str], Path]) -> None:
    model, bundle = tiny_model(**KINDS[kind]), bundle_of_kind(kind)
    subject = in_torch(model)
    forced = ["B", "AA", "K"] if kind != "see" else ["b", "a", "j"]
    masks = [()] if kind == "fixed vector" else [(), (1, 2)]
    with attendant.load(bundle) as loaded:
        for target in (None, forced):
            for masked in masks:
                shown = attendant.inspect(bundle, "badge", target, masked_source_positions=masked)
                assert_alike(shown, subject.inspect("badge", target, masked))
                assert shown.source_tokens == (*"badge", "</s>")
                if target is not None:
                    assert shown.target_tokens == (*target, "</s>")
                if target is not None and not masked:
                    log_probs = loaded.score("badge", target).token_log_probs
                    assert log_probs == pytest.approx(shown.log_probs.tolist(), abs=1e-4)
        greedy = attendant.inspect(bundle, "badge")
        best = loaded.generate("badge", beam_size=1).best
        assert greedy.target_tokens[: len(best.tokens)] == best.tokens
    length, layers, hidden = len(greedy.target_tokens), model.config.decoder.num_layers, model.config.hidden_size
    assert greedy.hidden.shape == (length, layers, hidden)
    names = {"lstm": {"input", "forget", "candidate", "output"}, "gru": {"reset", "update", "candidate"}, "rnn": set()}
    assert greedy.gates.keys() == names[model.config.cell]
    assert all(gate.shape == (length, layers, hidden) for gate in greedy.gates.values())
    assert (greedy.p_gen is not None) == model.config.decoder.copying
    assert (greedy.scores is not None) == model.config.has_attention


def test_inspected_values_satisfy_the_papers_equations() -> None:
    shown = in_torch(tiny_model(weight_bound=0.8)).inspect("badge", None, (2,))
    # Luong et al. (2015), eq. 7 and 8: general scores, whose keys are W h_s, and the weighted mean of the memory.
    np.testing.assert_allclose(shown.scores, shown.query @ shown.keys.T, rtol=1e-4)
    np.testing.assert_array_equal(shown.query, shown.hidden[:, -1])
    masked = np.where(np.arange(6) == 2, -np.inf, shown.scores)
    exponentials = np.exp(masked - masked.max(1, keepdims=True))
    np.testing.assert_allclose(shown.weights, exponentials / exponentials.sum(1, keepdims=True), atol=1e-6)
    np.testing.assert_allclose(shown.context, shown.weights @ shown.memory, atol=1e-5)
    # The LSTM.
    gates, before = shown.gates, np.concatenate([np.full_like(shown.cell[:1], np.nan), shown.cell[:-1]])
    np.testing.assert_allclose(shown.hidden, gates["output"] * np.tanh(shown.cell), atol=1e-6)
    new = gates["forget"] * before + gates["input"] * gates["candidate"]
    np.testing.assert_allclose(shown.cell[1:], new[1:], atol=1e-5)


def test_inspecting_a_run_equals_inspecting_its_bundle() -> None:
    name = "normalize-numbers-en"
    run, bundle = MODELS / "runs" / name, MODELS / name
    source = "on 3 May"
    for target in (None, attendant.load(bundle).generate("on 4 May").best.text):
        assert_alike(attendant.inspect(run, source, target), attendant.inspect(bundle, source, target), atol=1e-3)
    shown = attendant.inspect(run, source, masked_source_positions=[3])
    assert not shown.weights[:, 3].any() and "\n  scores [" in repr(shown)


def test_inspecting_int8_shows_values_that_are_not_quantized() -> None:
    shown = attendant.inspect(MODELS / "summarize-debian", "a small text editor for programmers")
    assert shown.memory is None and shown.p_gen is not None
    assert shown.p_gen.min() >= 0 and shown.p_gen.max() <= 1 and len(set(shown.p_gen.tolist())) > 1
    np.testing.assert_allclose(
        np.exp(shown.scores) / np.exp(shown.scores).sum(1, keepdims=True), shown.weights, atol=1e-5
    )
    assert set(shown.gates) == {"input", "forget", "candidate", "output"}
    np.testing.assert_allclose(shown.hidden, shown.gates["output"] * np.tanh(shown.cell), atol=1e-5)
    assert shown.context.shape[1] == 256


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"source": ""}, "source: is empty"),
        ({"source": "..."}, r"source: is '\.\.\.', of which normalization leaves nothing"),
        ({"source": "3", "target": [3]}, r"target: is \[3\], must be a text or a list of tokens"),
        ({"source": "\ud800"}, r"source: is '\\ud800', must be a text without half a surrogate pair"),
        ({"source": "3", "target": ["\ud800"]}, r"target: is \['\\ud800'\], must be a text without half a surrogate"),
        ({"source": "3", "checkpoint": "last"}, "checkpoint: is last, must be None: the bundle"),
        ({"source": ["§"]}, r"source: has tokens that are not in the vocabulary: '§'"),
        ({"source": "3", "masked_source_positions": [9]}, r"masked_source_positions: is \[9\], must be positions"),
        ({"source": "3", "masked_source_positions": 0}, "masked_source_positions: is 0, must be places of tokens"),
        ({"source": "3", "precision": "int8"}, "precision int8 is not in the bundle"),
        ({"source": "3", "precision": ["fp32"]}, r"precision=\['fp32'\]: must be fp32 or int8 or fp16, or None"),
        ({"path": MODELS, "source": "3"}, "is neither a run"),
        ({"path": MODELS / "runs" / "normalize-numbers-en", "source": "3", "precision": "fp32"}, "is a run"),
    ],
)
def test_invalid_arguments_of_inspect_are_refused(how: dict, message: str) -> None:
    with pytest.raises(attendant.UserError, match=message):
        attendant.inspect(**{"path": MODELS / "normalize-numbers-en", **how})
