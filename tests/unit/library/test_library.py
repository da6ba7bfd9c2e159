"""Tests of `attendant.load`: the same answers as from the server, in this process."""

import pickle
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attendant
from attendant_client import Answers
from tests.paths import ROOT

BUNDLE = ROOT / "models" / "g2p-en"


@pytest.fixture(scope="module")
def model() -> attendant.Model:
    return attendant.load(BUNDLE)


def test_a_text_has_an_answer_with_all_fields(model: attendant.Model) -> None:
    answer = model.generate("phoneme", beam_size=4, num_hypotheses=3, token_log_probs=True)
    assert answer.best.text == "F OW1 N IY0 M" and answer.best.tokens == ("F", "OW1", "N", "IY0", "M")
    assert len(answer.hypotheses) == 3 and answer.hypotheses[1].score <= answer.best.score
    assert answer.best.finish_reason == "EOS"
    assert sum(answer.best.token_log_probs) == pytest.approx(answer.best.log_prob)
    assert (answer.model, answer.version) == (model.name, model.version)
    assert answer.timings.steps >= 6


def test_a_list_is_decoded_together_and_answered_in_its_order(model: attendant.Model) -> None:
    words = ["face", "knowledgeable", "a", ["b", "a", "d", "g", "e"]]
    answers = model.generate(words, beam_size=2)
    assert [answer.best.text for answer in answers] == [
        model.generate([word], beam_size=2)[0].best.text for word in words
    ]
    assert [answer.best.score for answer in answers] == [
        model.generate([word], beam_size=2)[0].best.score for word in words
    ]
    assert answers[0].timings.mean_batch_rows > 2
    assert model.generate([]) == []
    assert isinstance(answers, Answers) and isinstance(model.score(["face"], ["F"]), Answers)


def test_threads_share_a_model(model: attendant.Model) -> None:
    """Threads switch as often as possible, so that arrays that several threads write to are noticed."""
    words = ["face", "knowledgeable", "a", "badge", "onnx"]
    requests = [(words[number % 5 :], 1 + number % 3) for number in range(60)]

    def answer(request: tuple[list[str], int]) -> list[tuple[str, float]]:
        sources, beam_size = request
        return [(each.best.text, each.best.score) for each in model.generate(sources, beam_size=beam_size)]

    expected, interval = list(map(answer, requests)), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(answer, requests)) == expected
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.parametrize("beam_size", [1, 4])
def test_a_stream_grows_into_the_answer(model: attendant.Model, beam_size: int) -> None:
    options = attendant.Options(beam_size=beam_size, num_hypotheses=beam_size)
    stream = model.stream("knowledgeable", **options)
    with pytest.raises(RuntimeError, match="read to its end"):
        _ = stream.generation
    deltas = list(stream)
    answer = stream.generation
    assert len(deltas) > 1
    assert sum([delta.tokens for delta in deltas], ()) == answer.best.tokens
    assert "".join(delta.text for delta in deltas) == answer.best.text
    whole = model.generate("knowledgeable", **options)
    assert [hypothesis.score for hypothesis in answer.hypotheses] == [
        hypothesis.score for hypothesis in whole.hypotheses
    ]
    with pytest.raises(attendant.InvalidArgument):
        model.stream("", **options)


def test_attention_is_an_array(model: attendant.Model) -> None:
    answer = model.generate("face", attention=True)
    weights = answer.best.attention
    assert isinstance(weights, np.ndarray)
    assert weights.shape == (len(answer.best.tokens) + 1, len(answer.source_tokens))
    assert weights.sum(1) == pytest.approx(1.0, abs=1e-4)
    assert model.generate("face").best.attention is None
    scored = model.score("face", "F EY1 S", attention=True)
    assert scored.attention is not None and scored.attention.shape == (4, 5)
    again, other = model.generate("face", attention=True).best, model.generate("badge", attention=True).best
    assert answer.best == again != other and {answer.best, again, other} == {again, other}
    assert scored == model.score("face", "F EY1 S", attention=True) != model.score("face", "F EY1 S")


def test_scores_are_those_of_the_answers(model: attendant.Model) -> None:
    best = model.generate("face", beam_size=1).best
    score = model.score("face", best.tokens)
    assert score.log_prob == best.log_prob and score.target_tokens == best.tokens
    many = model.score(["face", "badge"], [best.tokens, "B AE1 JH"], include_eos=False)
    assert [len(score.token_log_probs) for score in many] == [3, 3]
    with pytest.raises(ValueError, match="target: has 1 items, must have as many as source, which has 2"):
        model.score(["face", "badge"], ["F"])
    with pytest.raises(TypeError, match="target='F EY1 S': must be a list, as source is"):
        model.score(["face"], "F EY1 S")
    with pytest.raises(TypeError, match="target=nan") as refused:
        model.score(["face", "badge"], ["F", float("nan")])  # type: ignore[list-item]
    assert "source 1" in refused.value.__notes__[0]


def test_a_tuple_is_the_tokens_of_one_source_as_to_the_client(model: attendant.Model) -> None:
    face = ("f", "a", "c", "e")
    assert model.generate(face).best.tokens == model.generate([face])[0].best.tokens == ("F", "EY1", "S")
    assert model.score(face, "F EY1 S").log_prob == model.score([face], ["F EY1 S"])[0].log_prob


def test_violations_are_those_of_the_server(model: attendant.Model) -> None:
    with pytest.raises(attendant.InvalidArgument) as refused:
        model.generate("face", beam_size=99, length_penalty=0.123, target_prefix=["nope"])
    assert {violation.field: violation.description for violation in refused.value.violations} == {
        "decoding.beam_size": "is 99, must be 1 to 32",
        "decoding.target_prefix.tokens[0]": (
            "is 'nope', must be in the vocabulary; a text belongs into target_prefix_text"
        ),
    }
    with pytest.raises(attendant.InvalidArgument, match=r"^source 1: text is 0 tokens long"):
        model.generate(["face", " "])
    answers = model.generate(["", "face"], return_errors=True, beam_size=1)
    assert [type(answer).__name__ for answer in answers] == ["InvalidArgument", "Generation"]
    with pytest.raises(attendant.InvalidArgument, match=r"target_tokens\.tokens"):
        model.score("face", ["nope"])
    with pytest.raises(TypeError, match="there is no option beams; choose from alternatives, attention, beam_size"):
        model.generate("face", beams=4)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="beam_size='4'"):
        model.generate("face", beam_size="4")  # type: ignore[call-overload]


def test_a_notebook_shows_hypotheses_and_attention(model: attendant.Model) -> None:
    plain, drawn = model.generate("face")._repr_html_(), model.generate("face", attention=True)._repr_html_()
    assert plain.count("<table>") == 1 and "F EY1 S" in plain
    assert drawn.count("<table>") == 2 and drawn.count("rgba(31") == 4 * 5
    assert "&lt;/s&gt;" in drawn and "</s>" not in drawn
    assert model.score("face", "F EY1 S", attention=True)._repr_html_().count("<table>") == 2


class Frame(list[str]):
    """A data frame, which is iterated over by its columns."""

    columns = ("text",)


def test_every_item_that_is_no_source_has_its_error_in_its_place(model: attendant.Model) -> None:
    items: list[Any] = ["face", None, "\ud800", 7, float("nan"), b"face", ["f", None], "", ["nope"], iter("face"), "a"]
    answers = model.generate(items, return_errors=True, beam_size=1)
    kinds = [type(answer).__name__ for answer in answers]
    assert kinds == ["Generation", *["InvalidArgument"] * 8, "Generation", "Generation"]
    assert answers[9].best.text == answers[0].best.text == "F EY1 S"
    assert "source=None: must be a text or its tokens" in str(answers[1])
    assert answers[1].violations[0].field == "tokens" and answers[2].violations[0].field == "text"
    assert all("\n" not in str(answer) and len(str(answer)) < 200 for answer in answers[1:9])
    with pytest.raises(TypeError, match="source 1: source=None: must be a text or its tokens"):
        model.generate(items)
    for ask in (model.generate, model.stream, lambda source: model.score(source, "F")):
        for wrong in (7, {"text": "face"}):
            with pytest.raises(TypeError, match=re.escape(f"source={wrong}: must be a text or its tokens")):
                ask(wrong)
        with pytest.raises(TypeError, match=r"source is a data frame: give the texts of a column"):
            ask(Frame())
    with pytest.raises(TypeError, match=r"target is a data frame"):
        model.score(["face"], Frame())
    with pytest.raises(ValueError, match="source 0: text="):
        model.generate(items[2:])
    with pytest.raises(TypeError, match="there is no option beams"):
        model.generate(items, return_errors=True, beams=4)  # type: ignore[call-overload]


def test_a_model_is_pickled_as_its_path_and_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(BUNDLE, tmp_path / "bundle")
    monkeypatch.chdir(tmp_path)
    first = attendant.load("bundle", threads=np.int64(1), max_rows=np.int64(64), precision="fp32")
    data = pickle.dumps(first)
    assert len(data) < 1000
    monkeypatch.chdir("/")
    again = pickle.loads(data)
    assert repr(again) == repr(first) and "fp32" in repr(again) and again.limits == first.limits
    answer = again.generate(["face"])[0]
    assert answer.best.score == first.generate("face").best.score
    kept = pickle.loads(pickle.dumps([answer, again.score("face", "F", attention=True)]))
    assert kept[0].best.text == "F EY1 S" and kept[1].attention.shape == (2, 5)
    shutil.rmtree(tmp_path / "bundle")
    shutil.copytree(ROOT / "models" / "normalize-numbers-en", tmp_path / "bundle")
    with pytest.raises(
        attendant.UserError, match=r"bundle: has version \w+ of .*, and the model was pickled with version"
    ):
        pickle.loads(data)


def test_a_function_that_holds_a_model_is_pickled_with_it(model: attendant.Model) -> None:
    cloudpickle = pytest.importorskip("cloudpickle")
    again = pickle.loads(cloudpickle.dumps(lambda word: model.generate(word).best.text))
    assert again("face") == "F EY1 S"


def test_errors_are_pickled_with_their_messages(model: attendant.Model, tmp_path: Path) -> None:
    refused = model.generate(["", None], return_errors=True)  # type: ignore[list-item]
    again = pickle.loads(pickle.dumps(refused))
    assert [(error.code, error.message, error.violations) for error in again] == [
        (error.code, error.message, error.violations) for error in refused
    ]
    with pytest.raises(attendant.UserError) as caught:
        attendant.load(tmp_path)
    unpickled = pickle.loads(pickle.dumps(caught.value))
    assert (type(unpickled), str(unpickled)) == (type(caught.value), str(caught.value))


def test_a_closed_model_raises() -> None:
    with attendant.load(BUNDLE) as opened:
        begun = opened.stream("face")
        steps = iter(opened.stream("face"))
        next(steps)
    list(steps)
    assert repr(opened).endswith("closed>") and opened.name == "g2p-en"
    opened.close()
    for ask in (
        lambda: opened.generate("face"),
        lambda: opened.generate([]),
        lambda: opened.score("face", "F"),
        lambda: opened.stream("face"),
        lambda: list(begun),
        lambda: pickle.dumps(opened),
    ):
        with pytest.raises(RuntimeError, match=r"the model g2p-en is closed; load it again with attendant\.load"):
            ask()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"provider": "gpu"}, "provider='gpu': must be cpu or cuda"),
        ({"precision": "fp8"}, "precision='fp8': must be fp32, int8 or fp16, or None for the bundle's own choice"),
        ({"threads": 0}, "threads=0: must be a whole number from 1 to 1024, or None for as many as this process"),
        ({"threads": True}, "threads=True: must be a whole number"),
        ({"max_rows": 0}, "max_rows=0: must be a whole number from 1"),
        ({"path": None}, "path=None: must be a path"),
        ({"path": ""}, "path='': must be a path"),
        ({"path": "a\0b"}, r"path='a\x00b': must be a path"),
    ],
)
def test_wrong_options_of_loading_name_the_choices(options: dict[str, Any], message: str) -> None:
    with pytest.raises(attendant.UserError) as caught:
        attendant.load(**{"path": BUNDLE, **options})
    assert str(caught.value).startswith(message)


def test_a_prompt_completes_the_public_names() -> None:
    shown = [name for name in dir(attendant) if not name.startswith("_")]
    others = {"export", "runtime", "server", "training", "recipes", *attendant._PLACES}
    assert set(shown) - others == set(attendant.server.library.__all__) and shown == sorted(shown)
    assert all(getattr(attendant, name).__name__ == name for name in attendant._PLACES)
    namespace: dict[str, Any] = {}
    exec("from attendant import *", namespace)
    assert namespace.keys() - {"__builtins__"} == set(attendant.server.library.__all__)
    with pytest.raises(AttributeError, match="nothing"):
        attendant.nothing  # noqa: B018


def test_bundles_that_can_not_be_loaded_are_refused(tmp_path: Path) -> None:
    with pytest.raises(attendant.UserError, match=r"manifest\.json"):
        attendant.load(tmp_path)
    with pytest.raises(attendant.UserError, match="fp16"):
        attendant.load(BUNDLE, precision="fp16")
    with pytest.raises(attendant.UserError, match="max_rows is 1: g2p-en searches with"):
        attendant.load(BUNDLE, max_rows=1)


PROGRAM = """
import sys
for name in ("torch", "attendant.training", "attendant.export", "onnx", "jinja2", "matplotlib"):
    sys.modules[name] = None
import attendant
assert not {"numpy", "onnxruntime", "grpc", "pydantic"} & sys.modules.keys(), "it is imported when it is asked for"
sys.modules["onnxruntime"] = None
try:
    attendant.load(sys.argv[1])
except ModuleNotFoundError as error:
    print(error)
del sys.modules["onnxruntime"]
print(attendant.load(sys.argv[1]).generate("phoneme").best.text, attendant.runtime.__name__)
del sys.modules["attendant.training"]
sys.modules["rich"] = None
try:
    class Mine(attendant.TrainingCallback): ...
except attendant.UserError as error:
    print(error)
"""


def test_the_library_needs_no_torch_and_imports_lazily() -> None:
    path = f"{ROOT}:{ROOT / 'client'}"
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, BUNDLE], env={"PYTHONPATH": path}, capture_output=True, text=True
    )
    no_runtime, answer, missing = run.stdout.splitlines()
    assert no_runtime == "onnxruntime is not installed: pip install 'attendant-seq2seq[cpu]', or with [gpu] for CUDA"
    assert answer == "F OW1 N IY0 M attendant.runtime", run.stderr
    assert re.fullmatch(
        r"attendant\.TrainingCallback: [\w.]+ is not installed: pip install '.*\[cpu,training\]'", missing
    )


DECODING = """
import sys, threading, attendant
model = attendant.load(sys.argv[1], threads=1)
decoding = threading.Semaphore(0)

def decode():
    while True:
        model.generate(["knowledgeable"] * 20, beam_size=4)
        decoding.release()

for _ in range(3):
    threading.Thread(target=decode, daemon=True).start()
for _ in range(4):
    decoding.acquire()
"""


def test_a_program_ends_in_order_while_daemon_threads_decode() -> None:
    run = subprocess.run(
        [sys.executable, "-c", DECODING, BUNDLE], env={"PYTHONPATH": f"{ROOT}:{ROOT / 'client'}"}, capture_output=True
    )
    assert (run.returncode, run.stderr) == (0, b"")
