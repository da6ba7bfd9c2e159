"""int8 over lists of target symbols: the same bits in any company, and what the whole vocabulary gives of the list.

The writer's own certification holds every script and decoding alone against batches, and against the whole vocabulary.
"""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import export.bundle_writer
from export.bundle_writer import write_bundle
from export.graph_files import SHORTLIST_NAME
from export.int8.quantization import QuantizedPair, quantize
from export.recheck import recheck
from export.shortlist.tables import make_shortlist
from export.traced import TracedPair
from runtime.bundle import Bundle, BundleRefused, open_bundle
from runtime.decoding.offline import decode_all
from runtime.decoding.options import DecodingOptions
from runtime.errors import VerificationFailed
from runtime.onnx_stepper import OnnxStepper
from runtime.shortlist import Shortlist
from runtime.stepper import StepOutput
from runtime.tokenizer import EOS_ID, SPECIAL_TOKENS
from tests.bundles import LETTERS, SOUNDS, TINY_PLAN, tiny_exportable
from training.data.corpus import Corpus, TokenSequences

SOURCES, TARGETS = len(SPECIAL_TOKENS) + len(LETTERS), len(SPECIAL_TOKENS) + len(SOUNDS)
SIZE = 9
MODELS: dict[str, dict[str, Any]] = {
    "lstm": {"attention_score": "general", "decoder_input_feeding": True, "decoder_num_layers": 2},
    "gru": {"cell": "gru", "attention_score": "additive", "attention_query": "previous", "decoder_joining": "addition"},
}


def shortlist() -> Shortlist:
    """Each letter stands for the sound at its own place."""
    random = np.random.default_rng(0)
    letters = np.arange(len(SPECIAL_TOKENS), SOURCES)
    words = [random.choice(letters, random.integers(1, 6)).tolist() for _ in range(100)]
    corpus = Corpus(TokenSequences.of([*word, EOS_ID] for word in words), TokenSequences.of(words), 0)
    return make_shortlist(corpus, SOURCES, TARGETS, SIZE)


@pytest.fixture(scope="module", params=list(MODELS))
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    exportable = tiny_exportable(weight_bound=0.5, **MODELS[request.param])
    # A list of nine holds no beam of ten.
    exportable = dataclasses.replace(exportable, limits=exportable.limits.model_copy(update={"max_beam_size": 4}))
    folder = tmp_path_factory.mktemp("listed") / "bundle"
    return write_bundle(exportable, folder, precisions=("fp32", "int8"), plan=TINY_PLAN, shortlist=shortlist())


def test_the_bundle_says_what_its_step_looks_at(bundle: Bundle) -> None:
    spec = bundle.manifest.graphs["int8"].shortlist
    assert spec is not None
    assert (spec.file, spec.size) == (SHORTLIST_NAME, SIZE)
    assert bundle.manifest.graphs["fp32"].shortlist is None
    certificate = bundle.manifest.certificates[1]
    assert certificate.batch_invariant
    assert "over the 9 symbols of the source's list" in certificate.arithmetic["model.output.weight"]
    assert certificate.errors["list/log_probs"] <= 1e-5
    assert {example.precision for example in bundle.golden} == {"fp32", "int8"}
    assert any(line.startswith("int8 on cpu: ") for line in recheck(bundle.path))


def test_joining_a_running_batch_changes_no_bit(bundle: Bundle) -> None:
    stepper, special_ids = OnnxStepper(bundle, "int8"), bundle.manifest.special_ids
    random = np.random.default_rng(3)
    sources = [random.integers(4, SOURCES, length).tolist() for length in random.integers(1, 40, 40)]
    options = [
        DecodingOptions(max_length=20, beam_size=int(beam), min_length=int(least), suppress_unk=bool(least % 2))
        for beam, least in zip(random.choice([1, 2, 4], 40), random.integers(0, 6, 40), strict=True)
    ]
    together = decode_all(stepper, sources, options, special_ids, max_rows=24)
    for source, option, hypotheses in zip(sources, options, together, strict=True):
        (alone,) = decode_all(stepper, [source], option, special_ids)
        assert alone == hypotheses


def step(stepper: OnnxStepper, sources: list[list[int]], forced: list[int], banned: list[list[int]]) -> StepOutput:
    start = np.full(len(sources), 2, np.int64)
    return stepper.step(
        stepper.encode(sources),
        start,
        num_candidates=1000,
        forced_ids=np.array(forced, np.int64),
        banned_ids=np.array(banned, np.int64),
    )[0]


def test_forced_symbols_in_the_list_and_beside_it(bundle: Bundle) -> None:
    stepper, source = OnnxStepper(bundle, "int8"), [4, 5, 3]
    free = step(stepper, [source], [-1], [[-1]])
    assert free.candidate_ids.shape == (1, SIZE)
    assert np.exp(free.candidate_log_probs.astype(np.float64)).sum() == pytest.approx(1, abs=1e-5)
    known = dict(zip(free.candidate_ids[0].tolist(), free.candidate_log_probs[0].tolist(), strict=True))
    others = [symbol for symbol in range(4, TARGETS) if symbol not in known]
    assert others
    every = [*known, *others]
    found = step(stepper, [source] * len(every), every, [[-1]] * len(every)).forced_log_probs
    for symbol, value in zip(every, found.tolist(), strict=True):
        (single,) = step(stepper, [source], [symbol], [[-1]]).forced_log_probs.tolist()
        assert value == single  # whatever else is forced beside it
        if symbol in known:
            assert value == known[symbol]
        else:
            assert -50 < value < 0


def test_bans_in_the_list_and_beside_it(bundle: Bundle) -> None:
    stepper, source = OnnxStepper(bundle, "int8"), [4, 5, 3]
    free = step(stepper, [source], [-1], [[-1]])
    best = int(free.candidate_ids[0, 0])
    beside = next(symbol for symbol in range(4, TARGETS) if symbol not in free.candidate_ids[0])
    banned = step(stepper, [source] * 2, [best, beside], [[best, beside], [beside, -1]])
    assert banned.candidate_ids[0, :-1].tolist() == free.candidate_ids[0, 1:].tolist()
    assert int(banned.candidate_ids[0, -1]) == best
    assert banned.candidate_log_probs[0, -1] < -1e8
    assert np.array_equal(banned.candidate_log_probs[1], free.candidate_log_probs[0])
    assert (banned.forced_log_probs < -1e8).all()


def with_lists_of_neighbours(pair: TracedPair) -> None:
    """Each row takes the first source's symbols."""
    graph = pair.decoder_step.model.graph
    node = next(node for node in graph.node if "shortlist_places" in node.input)
    graph.initializer.append(numpy_helper.from_array(np.int64(0), "first"))
    zero = onnx.helper.make_node("Mul", [node.input[1], "first"], ["first_source"])
    node.input[1] = "first_source"
    graph.node.insert(list(graph.node).index(node), zero)


def with_another_normalizer(pair: TracedPair) -> None:
    """Of a forced symbol beside the list: as if the list had nothing."""
    graph = pair.decoder_step.model.graph
    node = next(node for node in graph.node if node.op_type == "Softplus")
    node.op_type = "Identity"


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (with_lists_of_neighbours, "step/log_probs: not the same bits alone and in company"),
        (with_another_normalizer, "list/forced_log_probs: off by"),
    ],
)
def test_wrong_steps_over_lists_are_refused(
    fault: Any, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def faulty(pair: TracedPair, shortlist_size: int | None = None) -> QuantizedPair:
        quantized = quantize(pair, shortlist_size)
        if shortlist_size is not None:
            fault(quantized.graphs)
        return quantized

    monkeypatch.setattr(export.bundle_writer, "quantize", faulty)
    exportable = tiny_exportable(weight_bound=0.5)
    with pytest.raises(VerificationFailed) as refusal:
        write_bundle(
            exportable, tmp_path / "bundle", precisions=("fp32", "int8"), plan=TINY_PLAN, shortlist=shortlist()
        )
    assert any(said in line for line in refusal.value.differences), refusal.value
    assert list(tmp_path.iterdir()) == []


def test_tables_that_are_not_what_the_manifest_says_are_refused(bundle: Bundle) -> None:
    path = bundle.path / SHORTLIST_NAME
    content = path.read_bytes()
    try:
        path.write_bytes(content[:-4])
        with pytest.raises(BundleRefused, match=r"shortlist\.bin: \d+ bytes, the manifest says"):
            open_bundle(bundle.path)
        with pytest.raises(BundleRefused, match=r"shortlist\.bin: \d+ bytes, its sizes in the manifest make"):
            OnnxStepper(bundle, "int8")
    finally:
        path.write_bytes(content)
