"""The model in process: as it is served, and as it was trained."""

from attendant.runtime.bundle.bundle import open_bundle
from attendant.runtime.decoding.batch import decode_all
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.onnx.stepper import OnnxStepper
from attendant.runtime.stepper import Stepper
from attendant.training.model.stepper import TorchStepper
from attendant.training.run.loading import load_run
from benchmarks.job import Job, answer_jobs
from benchmarks.pronunciation.words import BUNDLE, RUN, words


def attendant() -> None:
    """In int8, on one thread."""
    _answer(OnnxStepper(open_bundle(BUNDLE), "int8", "cpu", 1))


def torch() -> None:
    """In fp32, by the same search."""
    _answer(TorchStepper(load_run(RUN).model))


def _answer(stepper: Stepper) -> None:
    bundle = open_bundle(BUNDLE)
    options = DecodingOptions(max_length=bundle.manifest.limits.max_target_tokens)

    def pronounce(batch: list[str], job: Job) -> None:
        sources = [bundle.source_ids(bundle.source_tokenizer.encode(word)) for word in batch]
        found = decode_all(stepper, sources, options, bundle.manifest.special_ids, max_rows=job.batch_size)
        for hypotheses in found:
            bundle.target_tokenizer.decode(hypotheses[0].token_ids)

    answer_jobs(pronounce, batches_itself=True, sources=words)
