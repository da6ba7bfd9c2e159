"""Fuzzed input.

Hypothesis mutates sound inputs: messages of the API, recipes, files of pairs, tokenizers, bundles. Whatever it makes,
a server answers with a code that the API documents and goes on, and a reader returns or raises the one error that is
shown as a line. What Hypothesis finds wrong it keeps in tests/faults/seeds and tries again in each run.
"""

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from hypothesis.database import DirectoryBasedExampleDatabase

from attendant.runtime.bundle.bundle import open_bundle
from attendant.runtime.bundle.tokenizer import Tokenizer
from attendant.runtime.errors import UserError
from attendant.training.data.config import CorpusFiles
from attendant.training.data.pairs import read_pairs
from attendant.training.recipe.recipe import load_recipe
from attendant_client.v1 import seq2seq_pb2 as messages
from tests.faults.conftest import Figure, Start
from tests.faults.figures import at_least
from tests.server_process import ROOT

FEW = 60
"""Examples of each subject in an ordinary run; each has a handful of mutations."""

MANY = {"calls": 200_000, "recipes": 100_000, "pairs": 400_000, "tokenizers": 250_000, "bundles": 50_000}
"""At full size: a million."""

ALLOWED = {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "RESOURCE_EXHAUSTED", "UNIMPLEMENTED"}

SERVICE = "/attendant.v1.Seq2Seq/"
REQUESTS: tuple[tuple[str, bytes], ...] = (
    (
        "Generate",
        messages.GenerateRequest(
            request_id="one",
            text="badge",
            decoding=messages.DecodingOptions(beam_size=2, num_hypotheses=2, length_penalty=0.6, max_length=9),
            output=messages.OutputOptions(attention=True, token_log_probs=True),
        ).SerializeToString(),
    ),
    (
        "Generate",
        messages.GenerateRequest(
            tokens=messages.Tokens(tokens=["b", "a"]),
            decoding=messages.DecodingOptions(
                sampling=messages.SamplingOptions(temperature=0.5, top_k=3, seed=7),
                target_prefix=messages.Tokens(tokens=["B"]),
            ),
        ).SerializeToString(),
    ),
    ("Score", messages.ScoreRequest(source_text="jab", target_text="G AE B").SerializeToString()),
    ("GetModel", messages.GetModelRequest(model="tiny").SerializeToString()),
)

Mutation = tuple[str, int, bytes]
MUTATIONS = st.lists(
    st.tuples(st.sampled_from(("flip", "insert", "cut", "repeat")), st.integers(0, 1 << 20), st.binary(max_size=8)),
    min_size=1,
    max_size=6,
)


def mutated(content: bytes, mutations: list[Mutation]) -> bytes:
    """The content after some small harm; never more than twice as long and some bytes."""
    for what, number, extra in mutations:
        place = number % (len(content) + 1)
        if what == "flip" and place < len(content):
            content = content[:place] + bytes([content[place] ^ (1 + number % 255)]) + content[place + 1 :]
        elif what == "insert":
            content = content[:place] + extra + content[place:]
        elif what == "cut":
            content = content[:place] + content[place + 1 + number % 16 :]
        elif what == "repeat":
            content = content[:place] + content[max(0, place - 16) : place] + content[place:]
    return content


def fuzz(num_examples: int, check: Callable[[list[Mutation], int], None]) -> int:
    """Has Hypothesis call `check` with mutations and the number of the case; returns how many cases there were."""
    numbers = itertools.count()

    @seed(20)
    @settings(
        max_examples=num_examples,
        deadline=None,
        database=DirectoryBasedExampleDatabase(ROOT / "tests" / "faults" / "seeds"),
        suppress_health_check=list(HealthCheck),
    )
    @given(MUTATIONS)
    def each(mutations: list[Mutation]) -> None:
        check(mutations, next(numbers))

    each()
    return next(numbers)


@pytest.fixture(params=["few", pytest.param("many", marks=pytest.mark.reliability)])
def size(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


def cases(size: str, subject: str) -> int:
    return MANY[subject] if size == "many" else FEW


def test_calls(size: str, start: Start, figure: Figure) -> None:
    codes: dict[str, int] = {}
    with start() as running, grpc.insecure_channel(running.target) as channel:
        calls = {method: channel.unary_unary(SERVICE + method) for method, _ in REQUESTS}

        def check(mutations: list[Mutation], number: int) -> None:
            method, content = REQUESTS[number % len(REQUESTS)]
            try:
                calls[method](mutated(content, mutations), timeout=60)
                code = "OK"
            except grpc.RpcError as error:
                code = error.code().name
            assert code in ALLOWED, code
            codes[code] = codes.get(code, 0) + 1

        num_cases = fuzz(cases(size, "calls"), check)
        calls["Generate"](REQUESTS[0][1], timeout=60)
        metrics = running.metrics()
        waiting = sum(value for name, value in metrics.items() if name.startswith("attendant_requests_waiting{"))
        assert waiting == 0 and "Traceback" not in running.log()
    assert codes.keys() >= {"OK", "INVALID_ARGUMENT"}, "the mutations are of both kinds"
    figure("calls", num_cases, at_least(cases(size, "calls")), "cases")


def test_recipes(size: str, tmp_path: Path, figure: Figure) -> None:
    recipes = [path.read_bytes() for path in sorted((ROOT / "recipes").glob("*.toml"))]
    path = tmp_path / "recipe.toml"

    def check(mutations: list[Mutation], number: int) -> None:
        path.write_bytes(mutated(recipes[number % len(recipes)], mutations))
        refused_or_read(lambda: load_recipe(path))

    figure("recipes", fuzz(cases(size, "recipes"), check), at_least(cases(size, "recipes")), "cases")


def test_pairs(size: str, tmp_path: Path, figure: Figure) -> None:
    content = "abc\tA B\nfäce\tF EY S\r\nja b\tJH AE\n".encode()
    path = tmp_path / "pairs.tsv"

    def check(mutations: list[Mutation], _: int) -> None:
        path.write_bytes(mutated(content, mutations))
        refused_or_read(lambda: list(read_pairs(CorpusFiles(tsv=str(path)))))

    figure("files of pairs", fuzz(cases(size, "pairs"), check), at_least(cases(size, "pairs")), "cases")


def test_tokenizers(size: str, tiny_bundle_path: Path, figure: Figure) -> None:
    content = (tiny_bundle_path / "source_tokenizer.json").read_bytes()

    def check(mutations: list[Mutation], _: int) -> None:
        text = mutated(content, mutations).decode("utf-8", "replace")
        try:
            Tokenizer.from_text(text).encode("badge")
        except (ValueError, UserError):
            return

    figure("tokenizers", fuzz(cases(size, "tokenizers"), check), at_least(cases(size, "tokenizers")), "cases")


def test_bundles(size: str, tiny_bundle_path: Path, tmp_path: Path, figure: Figure) -> None:
    """One file of a bundle at a time; its digests are what an honest copy's are."""
    folder = Path(shutil.copytree(tiny_bundle_path, tmp_path / "bundle"))
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    sound = {path: path.read_bytes() for path in files}

    def check(mutations: list[Mutation], number: int) -> None:
        path = files[number % len(files)]
        content = mutated(sound[path], mutations)
        path.write_bytes(content)
        try:
            if content == sound[path]:
                open_bundle(folder)
            else:
                with pytest.raises(UserError):
                    open_bundle(folder)
        finally:
            path.write_bytes(sound[path])

    figure("bundles", fuzz(cases(size, "bundles"), check), at_least(cases(size, "bundles")), "cases")


def refused_or_read(read: Callable[[], object]) -> None:
    """Any other exception fails the test; an error that a user sees is text without control characters."""
    try:
        read()
    except UserError as error:
        assert all(line.isprintable() for line in str(error).splitlines())
