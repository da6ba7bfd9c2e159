"""Fuzzed input.

Hypothesis mutates valid inputs: messages of all methods, recipes, files of pairs, tokenizers, bundles. For each input,
a server must answer with a documented code and keep serving, and a reader must return or raise the error that is shown
as one line. Hypothesis stores failing inputs in tests/faults/seeds and tries them again in each run.
"""

import json
import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from hypothesis.database import DirectoryBasedExampleDatabase

from attendant.runtime.bundle.bundle import open_bundle
from attendant.runtime.bundle.manifest import MANIFEST_NAME
from attendant.runtime.bundle.tokenizer import Tokenizer
from attendant.runtime.errors import UserError
from attendant.server.inference.v2 import open_inference_pb2 as inference
from attendant.training.data.config import CorpusFiles
from attendant.training.data.pairs import read_pairs
from attendant.training.recipe import load_recipe
from attendant_client.v1 import seq2seq_pb2 as messages
from tests.faults.conftest import Figure, Start
from tests.faults.crafting import seal
from tests.faults.figures import at_least
from tests.paths import ROOT

FEW = {"calls": 600, "recipes": 100, "pairs": 200, "tokenizers": 200, "bundles": 100}
"""Numbers of cases in an ordinary run; each case has a few mutations."""

MANY = {"calls": 20_000, "recipes": 10_000, "pairs": 40_000, "tokenizers": 25_000, "bundles": 5_000}
"""Numbers of cases at full size: 100,000 in total."""

EXAMPLES_PER_SEED = 10_000
"""Number of examples per run of Hypothesis, which keeps all of them in memory: 11 kB each."""

ALLOWED = {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "RESOURCE_EXHAUSTED", "UNIMPLEMENTED"}

ONE = messages.GenerateRequest(
    request_id="one",
    text="badge",
    decoding=messages.DecodingOptions(beam_size=2, num_hypotheses=2, length_penalty=0.6, max_length=9),
    output=messages.OutputOptions(attention=True, token_log_probs=True),
)
OTHER = messages.GenerateRequest(
    tokens=messages.Tokens(tokens=["b", "a"]),
    decoding=messages.DecodingOptions(
        sampling=messages.SamplingOptions(temperature=0.5, top_k=3, seed=7),
        target_prefix=messages.Tokens(tokens=["B"]),
    ),
)
TENSOR = inference.ModelInferRequest(
    model_name="tiny",
    id="three",
    parameters={"beam_size": inference.InferParameter(int64_param=2)},
    inputs=[{"name": "text", "datatype": "BYTES", "shape": [2], "contents": {"bytes_contents": [b"jab", b"face"]}}],
    outputs=[{"name": "text"}, {"name": "attention"}],
)
REQUESTS = (
    ("attendant.v1.Seq2Seq/Generate", ONE),
    ("attendant.v1.Seq2Seq/Generate", OTHER),
    ("attendant.v1.Seq2Seq/GenerateStream", OTHER),
    ("attendant.v1.Seq2Seq/GenerateBatch", ONE),
    ("attendant.v1.Seq2Seq/GenerateBatches", messages.GenerateManyRequest(requests=[OTHER, ONE])),
    ("attendant.v1.Seq2Seq/GenerateMany", messages.GenerateManyRequest(requests=[ONE, OTHER])),
    ("attendant.v1.Seq2Seq/Score", messages.ScoreRequest(source_text="jab", target_text="G AE B")),
    ("attendant.v1.Seq2Seq/GetModel", messages.GetModelRequest(model="tiny")),
    ("inference.GRPCInferenceService/ModelInfer", TENSOR),
    ("inference.GRPCInferenceService/ModelMetadata", inference.ModelMetadataRequest(name="tiny", version="1")),
    ("inference.GRPCInferenceService/RepositoryIndex", inference.RepositoryIndexRequest(ready=True)),
)

MUTATION_BYTES = 8


def mutated(content: bytes, harm: bytes) -> bytes:
    """Returns the content with the mutations that `harm` encodes; each adds at most 16 bytes."""
    for begin in range(0, len(harm), MUTATION_BYTES):
        what, number, extra = harm[begin] % 4, int.from_bytes(harm[begin + 1 : begin + 5]), harm[begin + 5 :][:3]
        place = number % (len(content) + 1)
        if what == 0 and place < len(content):  # flipped
            content = content[:place] + bytes([content[place] ^ (1 + number % 255)]) + content[place + 1 :]
        elif what == 1:  # inserted
            content = content[:place] + extra + content[place:]
        elif what == 2:  # cut
            content = content[:place] + content[place + 1 + number % 16 :]
        elif what == 3:  # repeated
            content = content[:place] + content[max(0, place - 16) : place] + content[place:]
    return content


def fuzz(num_examples: int, check: Callable[[int, bytes], None]) -> None:
    """Lets Hypothesis call `check` with a number that chooses the kind of input, and with the encoded mutations."""
    for first in range(0, num_examples, EXAMPLES_PER_SEED):

        @seed(20 + first)
        @settings(
            max_examples=min(EXAMPLES_PER_SEED, num_examples - first),
            deadline=None,
            database=DirectoryBasedExampleDatabase(ROOT / "tests" / "faults" / "seeds"),
            suppress_health_check=list(HealthCheck),
        )
        @given(st.binary(min_size=1 + MUTATION_BYTES, max_size=1 + 6 * MUTATION_BYTES))
        def each(drawn: bytes) -> None:
            check(drawn[0], drawn[1:])

        each()


@pytest.fixture(params=["few", pytest.param("many", marks=[pytest.mark.reliability, pytest.mark.timeout(3600)])])
def cases(request: pytest.FixtureRequest) -> dict[str, int]:
    return MANY if request.param == "many" else FEW


@pytest.fixture
def tried(cases: dict[str, int], figure: Figure) -> Callable[[str, Counter[str]], None]:
    """Returns a function that records the number of a subject's cases and checks that their outcomes differ."""

    def record(subject: str, outcomes: Counter[str]) -> None:
        assert len(outcomes) > 1, outcomes
        figure(subject, outcomes.total(), at_least(cases[subject]), "cases")

    return record


def test_mutated_requests_are_answered_or_refused(cases: dict[str, int], start: Start, tried: Any) -> None:
    """Applies each example's mutations to a request of every kind, all in flight at once."""
    codes: Counter[str] = Counter()
    contents = [(f"/{method}", request.SerializeToString()) for method, request in REQUESTS]
    with start() as running, grpc.insecure_channel(running.target) as channel:
        methods: dict[str, Any] = {path: channel.unary_stream(path) for path, _ in contents}

        def check(_: int, harm: bytes) -> None:
            calls = [methods[path](mutated(content, harm), timeout=60) for path, content in contents]
            for call in calls:
                with suppress(grpc.RpcError):
                    list(call)
            ended = [call.code().name for call in calls]
            assert ALLOWED.issuperset(ended), ended
            codes.update(ended)

        fuzz(cases["calls"] // len(contents), check)
        check(0, b"")
        metrics = running.metrics()
        waiting = sum(value for name, value in metrics.items() if name.startswith("attendant_requests_waiting{"))
        assert waiting == 0 and "Traceback" not in running.log()
    assert codes.keys() >= {"OK", "INVALID_ARGUMENT"}
    tried("calls", codes)


def test_mutated_recipes_are_read_or_refused(cases: dict[str, int], tmp_path: Path, tried: Any) -> None:
    recipes = [path.read_bytes() for path in sorted((ROOT / "recipes").glob("*/recipe.toml"))]
    path = tmp_path / "recipe.toml"
    outcomes: Counter[str] = Counter()

    def check(choice: int, harm: bytes) -> None:
        path.write_bytes(mutated(recipes[choice % len(recipes)], harm))
        outcomes[refused_or_read(lambda: load_recipe(path))] += 1

    fuzz(cases["recipes"], check)
    tried("recipes", outcomes)


def test_mutated_pairs_are_read_or_refused(cases: dict[str, int], tmp_path: Path, tried: Any) -> None:
    content = "abc\tA B\nfäce\tF EY S\r\nja b\tJH AE\n".encode()
    path = tmp_path / "pairs.tsv"
    outcomes: Counter[str] = Counter()

    def check(_: int, harm: bytes) -> None:
        path.write_bytes(mutated(content, harm))
        outcomes[refused_or_read(lambda: list(read_pairs(CorpusFiles(tsv=str(path)))))] += 1

    fuzz(cases["pairs"], check)
    tried("pairs", outcomes)


def test_mutated_tokenizers_are_read_or_refused(cases: dict[str, int], tiny_bundle_path: Path, tried: Any) -> None:
    content = (tiny_bundle_path / "source_tokenizer.json").read_bytes()
    outcomes: Counter[str] = Counter()

    def check(_: int, harm: bytes) -> None:
        try:
            tokenizer = Tokenizer.from_text(mutated(content, harm).decode("utf-8", "replace"))
            tokenizer.check_encoding()
        except ValueError:
            outcomes["refused"] += 1
        else:
            tokenizer.encode("badge")
            outcomes["read"] += 1

    fuzz(cases["tokenizers"], check)
    tried("tokenizers", outcomes)


def test_mutated_bundles_are_opened_or_refused(
    cases: dict[str, int], tiny_bundle_path: Path, tmp_path: Path, tried: Any
) -> None:
    """Mutates one file of a bundle at a time; in half of the cases, updates the digests."""
    folder = Path(shutil.copytree(tiny_bundle_path, tmp_path / "bundle"))
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    sound = {path: path.read_bytes() for path in files}
    manifest = folder / MANIFEST_NAME
    outcomes: Counter[str] = Counter()

    def check(choice: int, harm: bytes) -> None:
        half, number = divmod(choice, 128)
        path = files[number % len(files)]
        content = mutated(sound[path], harm)
        path.write_bytes(content)
        if half:
            with suppress(ValueError, LookupError, TypeError, AttributeError):  # a manifest that can't be signed
                seal(folder)
        try:
            outcome = refused_or_read(lambda: open_bundle(folder))
        finally:
            path.write_bytes(sound[path])
            manifest.write_bytes(sound[manifest])
        if not half and outcome == "read":  # the same manifest may be written differently
            assert content == sound[path] or (path == manifest and json.loads(content) == json.loads(sound[path]))
        outcomes[outcome] += 1

    fuzz(cases["bundles"], check)
    tried("bundles", outcomes)


def refused_or_read(read: Callable[[], object]) -> str:
    """Returns the outcome; any other exception fails the test.

    Checks that the message of a user's error has no control characters.
    """
    try:
        read()
    except UserError as error:
        assert all(line.isprintable() for line in str(error).splitlines())
        return "refused"
    return "read"
