"""In-process measuring: jobs, workers that are asked in turns, and what becomes of one that fails."""

import sys
from pathlib import Path

import pytest

from attendant.runtime.bundle.bundle import open_bundle
from attendant.runtime.decoding.offline import decode_all
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.onnx.stepper import OnnxStepper
from benchmarks.decoding.job import EOS_ID, Job, batches, sentences, share
from benchmarks.decoding.measurement import measure
from benchmarks.decoding.pool import Pool, WorkerFailed
from benchmarks.decoding.replay import watched_graphs
from benchmarks.decoding.system import System, attendant, bare_graphs

ECHO = """
from benchmarks.decoding.job import answer_jobs
print("noise of a toolkit")
answer_jobs(lambda job: [0.5] * job.num_sentences)
"""
ENDS_AFTER_ONE = """
import sys
from benchmarks.decoding.job import answer_jobs
def run(job, asked=[]):
    asked.append(job)
    if len(asked) > 1:
        sys.exit("no memory left")
    return [0.5]
answer_jobs(run)
"""
JOB = Job(num_sentences=10, num_tokens=6, vocabulary_size=16, batch_size=2)


def system(program: str, **options: int) -> System:
    return System(name="a system", command=(sys.executable, "-c", program), batch_sizes=(2,), **options)


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


def test_batches_are_of_the_size_but_for_the_last() -> None:
    assert [len(batch) for batch in batches(sentences(JOB), 4)] == [4, 4, 2]


def test_all_workers_answer_and_what_a_toolkit_prints_is_no_answer() -> None:
    with Pool(system(ECHO, num_workers=2)) as pool:
        outcome = pool.run(JOB)
    assert outcome.latencies == [0.5] * 10
    assert outcome.speed == pytest.approx(10 / outcome.seconds)


def test_a_worker_that_can_not_start_says_why() -> None:
    with pytest.raises(WorkerFailed, match="no such model"), Pool(system("raise SystemExit('no such model')")):
        pass


def test_a_system_that_fails_keeps_its_row_and_the_others_are_measured() -> None:
    failing, fine = measure(
        [system(ENDS_AFTER_ONE), system(ECHO)], JOB, num_rounds=2, visit_seconds=0.001, say=lambda _: None
    )
    assert failing.problem == "no memory left" and failing.speed is None
    assert fine.problem is None and fine.speed is not None and len(fine.outcomes) == 2


@pytest.fixture(scope="module")
def bundle(tiny: Path) -> Path:
    return tiny


@pytest.mark.parametrize("make", [attendant, bare_graphs])
def test_our_own_workers_decode(make: type[System], bundle: Path) -> None:
    one = make(bundle, "fp32", num_workers=1, num_threads=1)  # type: ignore[call-arg]
    with Pool(one) as pool:
        assert len(pool.run(Job(num_sentences=3, num_tokens=5, vocabulary_size=12, batch_size=1)).latencies) == 3


def test_a_replay_makes_the_calls_of_a_decoding_again(bundle: Path) -> None:
    opened = open_bundle(bundle)
    stepper = OnnxStepper(opened, "fp32", "cpu", 1)
    options = DecodingOptions(max_length=4, min_length=4)
    with watched_graphs(keep=True) as recorded:
        decode_all(stepper, [[4, 5, 3], [6, 3]], options, opened.manifest.special_ids)
    # One encoding, then a step per token and the one that decides how it ends.
    assert len(recorded.calls) == 6
    assert recorded.seconds > 0
    with watched_graphs(keep=True) as again:
        recorded.replay()
    assert [call[1] for call in again.calls] == [call[1] for call in recorded.calls]
    with watched_graphs(keep=False) as none_kept:
        decode_all(stepper, [[4, 3]], options, opened.manifest.special_ids)
    assert not none_kept.calls and none_kept.seconds > 0
