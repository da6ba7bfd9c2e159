"""The workload of all systems: the sizes of the model, its bundle of random weights, sentences and requests.

The values of weights affect speed only through the end of sentences. So the end symbol's bias is so low that no
hypothesis ends before its length limit, and every system decodes the same number of steps.
"""

import argparse
import hashlib
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attendant.export.bundle_writer import write_bundle
from attendant.export.origins import ExportableModel
from attendant.export.tracing import traceable
from attendant.export.verification.probes import VerificationPlan
from attendant.runtime.bundle.manifest import DecodingDefaults, Limits, Precision, Provenance
from attendant.runtime.bundle.tokenizer import EOS_ID
from attendant.training.data.tokenization import tokenizer_of
from attendant.training.model import DecoderConfig, EncoderConfig, ModelConfig, Seq2Seq
from benchmarks import DATA, ROOT
from benchmarks.job import NUM_SPECIAL_SYMBOLS, Job, sentences, word_of

MAX_TOKENS = 128
MAX_BEAM_SIZE = 8
NUM_REQUESTS = 512
EOS_BIAS = -50.0
PEAKEDNESS = 40.0
"""Factor of the output weights: a fresh model's distribution is so flat that rounding decides the order of candidates,
and no golden example could be chosen."""

SMALL_PLAN = VerificationPlan(
    batch_sizes=(1, 3, 33), source_lengths=(40, 1, 13, 8, 20), num_steps=3, num_decoded=8, num_alone=4, max_length=12
)
"""Exports are verified on a small grid: here a model is timed, not certified."""

MAKERS = (
    *("export/**/*.py", "training/model/**/*.py", "training/kernels/**/*.py", "training/data/tokenization.py"),
    *("runtime/bundle/**/*.py", "benchmarks/own_models.py"),
)
"""The code that makes a bundle."""

LENGTHS = DATA / "lengths.json"
"""Lengths of 1,000 pairs of sentences, English and French: 5 to 80 words and punctuation marks, drawn at random from
the test split that recipes/translate-debdocs-en-fr fetches."""

Work = list[tuple[list[int], int]]
"""Sentences, as ids with their end symbol, and the decoder steps of each."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """A translation model like those of Luong et al. 2015, and its batches.

    Attributes:
        vocabulary_size, embedding_size: sizes of each side, the four special symbols included.
        hidden_size: width of the decoder, and of both encoder directions together.
        dropout: probability in training, at the places where each toolkit applies dropout.
        batch_sentences: sentences of a training batch.
        num_tokens: source positions and target positions of a sentence, the target's end symbol included.
        num_batches: batches of an epoch of training.
        window_steps: training steps between two readings of the clock.
    """

    vocabulary_size: int = 8000
    embedding_size: int = 256
    hidden_size: int = 512
    num_layers: int = 2
    dropout: float = 0.2
    batch_sentences: int = 64
    num_tokens: int = 20
    num_batches: int = 300
    window_steps: int = 5

    @property
    def batch_tokens(self) -> int:
        """Target positions of a batch."""
        return self.batch_sentences * self.num_tokens

    def job(self, num_sentences: int = 256, *, beam_size: int = 1, batch_size: int = 64, seed: int = 1) -> Job:
        """Returns a job with sentences of the workload's length."""
        return Job(num_sentences, self.num_tokens, self.vocabulary_size, beam_size, batch_size, seed)


QUICK = Workload(
    vocabulary_size=200, embedding_size=32, hidden_size=64, batch_sentences=8, num_batches=40, window_steps=20
)
"""Sizes that are too small to measure speed, but show that everything runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The settings of a run.

    Attributes:
        cache: the folder of environments and models, kept between runs.
        quick: tiny sizes, which only show that everything runs.
    """

    workload: Workload
    cache: Path
    quick: bool = False
    options: argparse.Namespace = field(default_factory=argparse.Namespace)

    @property
    def bundle(self) -> Path:
        """The bundle of the workload's sizes; made at the first use."""
        return mt_bundle(self)

    @property
    def num_rounds(self) -> int:
        return 1 if self.quick else 5

    @property
    def visit_seconds(self) -> float:
        return 0.1 if self.quick else 1.5


def equal_work(workload: Workload) -> Work:
    """Returns sentences of the workload's length, with as many decoder steps as source positions."""
    return [(source, workload.num_tokens) for source in sentences(workload.job(NUM_REQUESTS, seed=7))]


def real_work(workload: Workload) -> Work:
    """Returns random words with the source positions and decoder steps of LENGTHS."""
    work = []
    for seed, (num_tokens, num_steps) in enumerate(json.loads(LENGTHS.read_text(encoding="utf-8"))):
        job = Job(1, num_tokens=num_tokens, vocabulary_size=workload.vocabulary_size, seed=seed)
        work.append((sentences(job)[0], num_steps))
    random.Random(8).shuffle(work)
    return work


def mt_bundle(
    context: Context, name: str = "mt", precisions: Sequence[Precision] = ("fp32", "int8"), **changes: Any
) -> Path:
    """Returns the folder of a bundle of `mt_model(workload, **changes)`; makes it if the cache has none."""
    workload = context.workload
    tokenizer = tokenizer_of("word", map(word_of, range(NUM_SPECIAL_SYMBOLS, workload.vocabulary_size)))

    def write(path: Path) -> None:
        model = traceable(mt_model(workload, **changes))
        exportable = ExportableModel(
            name="mt",
            model=model,
            architecture=model.architecture,
            special_ids=model.special_ids,
            source_tokenizer=tokenizer,
            target_tokenizer=tokenizer,
            append_eos=True,
            limits=Limits(
                max_source_tokens=MAX_TOKENS,
                max_target_tokens=MAX_TOKENS,
                max_beam_size=MAX_BEAM_SIZE,
                max_num_hypotheses=MAX_BEAM_SIZE,
            ),
            decoding=DecodingDefaults(length_penalty=0.6),
            provenance=Provenance(
                commit="", created="", versions={}, recipe={}, data_digest="", checkpoint="seeded random weights"
            ),
            sources=[source[:-1] for source in sentences(workload.job(64))],
        )
        write_bundle(exportable, path, precisions=precisions, plan=SMALL_PLAN)

    return cached_bundle(context, "-".join([name, *precisions]), write)


def cached_bundle(context: Context, name: str, write: Callable[[Path], object]) -> Path:
    """Returns a bundle's folder; calls `write` with it if the cache has none of the same code and size."""
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for code in sorted(code for maker in MAKERS for code in ROOT.glob(maker)):
        digest.update(code.read_bytes())
    path = context.cache / "bundles" / f"{name}-{context.workload.hidden_size}-{digest.hexdigest()[:12]}"
    if not path.exists():
        write(path)
    return path


def print_bundle(workload: dict[str, float], cache: str) -> None:
    """Prints the bundle's folder: `--against` calls this in the other checkout."""
    print(Context(workload=Workload(**workload), cache=Path(cache)).bundle)  # type: ignore[arg-type]


def mt_model(workload: Workload, **changes: Any) -> Seq2Seq:
    """Returns a model with seeded random weights. Its configuration is the workload's, with these changes."""
    config = ModelConfig(
        embedding_size=workload.embedding_size,
        hidden_size=workload.hidden_size,
        encoder=EncoderConfig(num_layers=workload.num_layers, hidden_size=workload.hidden_size // 2),
        decoder=DecoderConfig(num_layers=workload.num_layers, input_feeding=True),
    )
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = Seq2Seq(config.model_copy(update=changes), workload.vocabulary_size, workload.vocabulary_size)
    assert model.output.weight is not None
    sharpen(model.output.weight, model.output.bias)
    return model.eval()


@torch.no_grad()
def sharpen(weight: Tensor, bias: Tensor) -> None:
    """Changes a model's output layer: it has a clear best candidate, and no hypothesis ends before its limit."""
    weight.mul_(PEAKEDNESS)
    bias[EOS_ID] = EOS_BIAS
