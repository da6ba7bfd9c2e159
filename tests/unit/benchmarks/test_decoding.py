"""Measuring in process: jobs, workers, failures, recorded calls of graphs, another checkout."""

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
from benchmarks.decoding import Decoder, against, engine_requests, own_decoder, reading_ms, throughput, workers
from benchmarks.harness import Unavailable, measure
from benchmarks.job import EOS_ID, Job, program, sentences
from benchmarks.own_worker import GraphCalls, replay
from benchmarks.workload import QUICK, Context

ECHO = """
import sys
from benchmarks.job import answer_jobs
print("noise of a toolkit")
answer_jobs(lambda sources, job: sys.stderr.write(f"{{len(sources)}} "){options})
"""
ENDS_AFTER_SIX = """
import sys
from benchmarks.job import answer_jobs
def decode(sources, job, calls=[]):
    calls.append(job)
    if len(calls) > 5:
        sys.exit("no memory left")
answer_jobs(decode)
"""
JOB = Job(num_sentences=10, num_tokens=6, vocabulary_size=16, batch_size=2)


def decoder(code: str, num_workers: int = 1) -> Decoder:
    command = sys.executable, "-c", code
    return Decoder(key="one", name="a system", command=lambda: command, batch_sizes=(2,), num_workers=num_workers)


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(workload=QUICK, cache=tmp_path, quick=True)


def test_sentences_depend_on_the_seed_and_have_an_end_symbol() -> None:
    sources = sentences(JOB)
    assert sources == sentences(JOB) != sentences(replace(JOB, seed=2))
    assert {len(source) for source in sources} == {6} and {source[-1] for source in sources} == {EOS_ID}
    assert all(EOS_ID < token_id < 16 for source in sources for token_id in source[:-1])


def test_a_job_is_shared_out_whole() -> None:
    parts = [JOB.share(number, 3) for number in range(3)]
    assert [part.num_sentences for part in parts] == [4, 3, 3]
    assert sentences(parts[0])[:3] != sentences(parts[1]), "the workers decode different sentences"


def test_all_workers_answer_and_printed_lines_are_no_answers() -> None:
    noisy = ECHO.format(options="").replace("sys.stderr.write", "print")
    with workers(decoder(noisy, num_workers=2)) as pool:
        samples = pool.run(JOB)
    assert samples["sentences"] == 10 and samples["batch"] == 2
    assert samples["speed"] > 0 and 0 <= samples["ms"] < 1000


@pytest.mark.parametrize(
    ("options", "batch_size", "sizes"),
    [("", 2, "2 2 1"), (", batches_itself=True", 2, "5"), (", batches_itself=True", 1, "1 1 1 1 1")],
)
def test_a_toolkit_that_batches_gets_all_sentences_unless_each_is_timed(
    options: str, batch_size: int, sizes: str
) -> None:
    with workers(decoder(ECHO.format(options=options))) as pool:
        pool.run(replace(JOB, num_sentences=5, batch_size=batch_size))
        (process,) = pool._processes
        assert process.output().removeprefix("noise of a toolkit\n").strip() == sizes


def test_a_worker_that_can_not_start_has_a_reason() -> None:
    with pytest.raises(Unavailable, match="no such model"), workers(decoder("raise SystemExit('no such model')")):
        pass


def test_a_system_that_fails_keeps_its_row_and_the_others_are_measured(context: Context) -> None:
    def fail() -> list[str]:
        raise Unavailable("no wheel for this machine")

    decoders = decoder(ENDS_AFTER_SIX), decoder(ECHO.format(options=""))
    failing, fine = measure([each.system({"": replace(JOB, num_sentences=2)}, 0.001) for each in decoders], 5)
    assert failing.problem == "no memory left" and not failing.samples
    assert fine.problem is None and len(fine.samples["speed"]) == 5
    part = throughput(context, [Decoder(key="lost", name="a peer", command=fail)], beam_size=1)
    assert part.rows == [["a peer", *[None] * 4, "not measured: no wheel for this machine"]] and not part.figures


@pytest.mark.parametrize("bare", [False, True])
def test_our_own_workers_decode(bare: bool, tiny: Path, context: Context) -> None:
    command = program("own_worker:work", path=str(tiny), precision="fp32", num_threads=1, bare=bare)
    with workers(replace(own_decoder(context, "fp32"), command=lambda: command)) as pool:
        samples = pool.run(Job(num_sentences=3, num_tokens=5, vocabulary_size=12, batch_size=1))
    assert samples["sentences"] == 3 and samples["ms"] > 0


def test_a_replay_repeats_the_calls_of_a_decoding(tiny: Path) -> None:
    bundle, watcher = open_bundle(tiny), GraphCalls()
    stepper = OnnxStepper(bundle, "fp32", "cpu", 1, open_session=watcher.open)
    options = DecodingOptions(max_length=4, min_length=4)
    recorded = watcher.calls = []
    hypotheses = decode_all(stepper, [[4, 5, 3], [6, 3]], options, bundle.manifest.special_ids)
    # One encoding, then a step per token and the one that decides how it ends.
    assert len(recorded) == 6 and watcher.seconds > 0
    again = watcher.calls = []
    replay(recorded)
    assert [call[1] for call in again] == [call[1] for call in recorded]
    plain = OnnxStepper(bundle, "fp32", "cpu", 1)
    assert decode_all(plain, [[4, 5, 3], [6, 3]], options, bundle.manifest.special_ids) == hypotheses


def test_requests_of_an_engine_have_their_steps() -> None:
    requests = list(engine_requests([[4, 3], [5, 3]], [2, 7, 9], beam_size=2))
    assert [(request.source_ids, request.options.max_length) for request in requests] == [
        ((4, 3), 1),
        ((5, 3), 6),
        ((4, 3), 8),
    ]
    assert reading_ms(QUICK) > 0


def test_a_folder_that_is_no_checkout_is_refused(context: Context, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--against must name another checkout"):
        against(replace(context, options=Namespace(against=tmp_path)))
