"""In-process measuring: jobs, workers that are asked in turns, and what becomes of one that fails."""

import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import pytest

from attendant.runtime.bundle.bundle import open_bundle
from attendant.runtime.decoding.batch import decode_all
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.errors import UserError
from attendant.runtime.onnx.stepper import OnnxStepper
from benchmarks.command import Context
from benchmarks.decoding.graph_calls import GraphCalls, replay
from benchmarks.decoding.in_process import Decoder, own_decoder, workers
from benchmarks.decoding.parts import against
from benchmarks.harness.measurement import Unavailable, measure
from benchmarks.job import EOS_ID, Job, sentences, share
from benchmarks.workload import QUICK

ECHO = """
from benchmarks.job import answer_jobs
print("noise of a toolkit")
answer_jobs(lambda sources, job: None{options})
"""
ENDS_AFTER_ONE = """
import sys
from benchmarks.job import answer_jobs
def decode(sources, job, asked=[]):
    asked.append(job)
    if len(asked) > 5:
        sys.exit("no memory left")
answer_jobs(decode)
"""
JOB = Job(num_sentences=10, num_tokens=6, vocabulary_size=16, batch_size=2)


def decoder(program: str, num_workers: int = 1) -> Decoder:
    command = sys.executable, "-c", program
    return Decoder(key="one", name="a system", command=lambda: command, batch_sizes=(2,), num_workers=num_workers)


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(workload=QUICK, cache=tmp_path, quick=True)


def test_sentences_are_the_same_for_the_same_seed_and_end_with_the_end_symbol() -> None:
    found = sentences(JOB)
    assert found == sentences(JOB) and found != sentences(Job(num_sentences=10, num_tokens=6, seed=2))
    assert {len(source) for source in found} == {6}
    assert {source[-1] for source in found} == {EOS_ID}
    assert all(EOS_ID < token_id < 16 for source in found for token_id in source[:-1])


def test_a_job_is_shared_out_whole() -> None:
    parts = [share(JOB, number, 3) for number in range(3)]
    assert [part.num_sentences for part in parts] == [4, 3, 3]
    assert sentences(parts[0])[:3] != sentences(parts[1]), "the workers decode different sentences"


def test_all_workers_answer_and_what_a_toolkit_prints_is_no_answer() -> None:
    with workers(decoder(ECHO.format(options=""), num_workers=2)) as pool:
        found = pool.run(JOB)
    assert found["sentences"] == 10 and found["batch"] == 2
    assert found["speed"] > 0 and 0 <= found["ms"] < 1000


@pytest.mark.parametrize(
    ("options", "batch_size", "sizes"),
    [("", 2, "2 2 1"), (", batches_itself=True", 2, "5"), (", batches_itself=True", 1, "1 1 1 1 1")],
)
def test_a_toolkit_that_batches_gets_all_sentences_unless_each_is_timed(
    options: str, batch_size: int, sizes: str, capfd: pytest.CaptureFixture[str]
) -> None:
    program = (
        ECHO.format(options=options)
        .replace("None", "sys.stderr.write(f'{len(sources)} ')")
        .replace("\n", "\nimport sys\n", 1)
    )
    with workers(decoder(program)) as pool:
        pool.run(replace(JOB, num_sentences=5, batch_size=batch_size))
        (process,) = pool._processes
        assert process.said().removeprefix("noise of a toolkit\n").strip() == sizes


def test_a_worker_that_can_not_start_says_why() -> None:
    with pytest.raises(Unavailable, match="no such model"), workers(decoder("raise SystemExit('no such model')")):
        pass


def test_a_system_that_fails_keeps_its_row_and_the_others_are_measured(context: Context) -> None:
    wanted = replace(context, quick=False)
    jobs = {"": replace(JOB, num_sentences=2)}
    decoders = decoder(ENDS_AFTER_ONE), decoder(ECHO.format(options=""))
    systems = [one.system(jobs, 0.001) for one in decoders]
    failing, fine = measure(systems, wanted.num_rounds)
    assert failing.problem == "no memory left" and not failing.samples
    assert fine.problem is None and fine.median("speed") > 0 and len(fine.samples["speed"]) == wanted.num_rounds


@pytest.mark.parametrize("mode", [[], ["bare"]])
def test_our_own_workers_decode(mode: list[str], tiny: Path, context: Context) -> None:
    ours = own_decoder(context, "fp32", bare=bool(mode))
    command = sys.executable, "-m", "benchmarks.decoding.attendant_worker", str(tiny), "fp32", "1", *mode
    with workers(replace(ours, command=lambda: command)) as pool:
        found = pool.run(Job(num_sentences=3, num_tokens=5, vocabulary_size=12, batch_size=1))
    assert found["sentences"] == 3 and found["ms"] > 0


def test_a_replay_makes_the_calls_of_a_decoding_again(tiny: Path) -> None:
    opened = open_bundle(tiny)
    watched = GraphCalls()
    stepper = OnnxStepper(opened, "fp32", "cpu", 1, open_session=watched.open)
    options = DecodingOptions(max_length=4, min_length=4)
    recorded = watched.kept = []
    found = decode_all(stepper, [[4, 5, 3], [6, 3]], options, opened.manifest.special_ids)
    # One encoding, then a step per token and the one that decides how it ends.
    assert len(recorded) == 6
    assert watched.seconds > 0
    again = watched.kept = []
    replay(recorded)
    assert [call[1] for call in again] == [call[1] for call in recorded]
    watched.kept, watched.seconds = None, 0.0
    decode_all(stepper, [[4, 3]], options, opened.manifest.special_ids)
    assert watched.seconds > 0
    plain = OnnxStepper(opened, "fp32", "cpu", 1)
    assert decode_all(plain, [[4, 5, 3], [6, 3]], options, opened.manifest.special_ids) == found, "watching is all"


def test_what_is_no_checkout_is_refused(context: Context, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--against must name another checkout"):
        against(replace(context, options=Namespace(against=tmp_path)))
