"""The model that is measured: the sizes of a small translation model, seeded random weights, a bundle like any other.

Speed does not depend on what the weights say, but for one thing: when a sentence ends. So the end symbol's bias is so
low that no hypothesis ends before its length limit, and every system decodes the same number of steps.
"""

import functools
import hashlib
from pathlib import Path

import torch

from attendant.export.bundle_writer import write_bundle
from attendant.export.origins.from_model import ExportableModel
from attendant.export.verification.plan import VerificationPlan
from attendant.runtime.bundle.manifest import DecodingDefaults, Limits, Precision, Provenance
from attendant.runtime.bundle.tokenizer import EOS_ID
from attendant.training.data.tokenization import tokenizer_of
from attendant.training.model import AttentionConfig, DecoderConfig, EncoderConfig, ModelConfig, Seq2Seq
from benchmarks import ROOT
from benchmarks.job import NUM_SPECIAL_SYMBOLS, Job, sentences, word_of
from benchmarks.workload import Workload

NAME = "mt"
SEED = 1
MAX_TOKENS = 128
MAX_BEAM_SIZE = 8
EOS_BIAS = -50.0
PEAKEDNESS = 40.0
"""What the output weights are multiplied by: a fresh model's distribution is so flat that the order of its candidates
hangs on rounding, and no golden example could be chosen."""

SMALL_PLAN = VerificationPlan(
    batch_sizes=(1, 3, 33), source_lengths=(40, 1, 13, 8, 20), num_steps=3, num_decoded=8, num_alone=4, max_length=12
)
"""The graphs are verified as any export's, on a smaller grid: models are certified elsewhere, here one is timed."""

MAKERS = (
    "export/**/*.py",
    "training/model/*.py",
    "training/kernels/*.py",
    "training/data/tokenization.py",
    "runtime/bundle/*.py",
)
"""The code that a bundle's graphs and manifest follow from."""


@functools.cache
def mt_bundle(workload: Workload, cache: Path, precisions: tuple[Precision, ...] = ("fp32", "int8")) -> Path:
    """The bundle's folder; made where the cache has none that this very code made. One run measures one bundle."""
    path = cache / "bundles" / f"{NAME}-{workload.hidden_size}-{'-'.join(precisions)}-{_digest()}"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bundle(mt_exportable(workload), path, precisions=precisions, plan=SMALL_PLAN)
    return path


def mt_model(workload: Workload) -> Seq2Seq:
    config = ModelConfig(
        cell="lstm",
        embedding_size=workload.embedding_size,
        hidden_size=workload.hidden_size,
        dropout=0.0,
        encoder=EncoderConfig(num_layers=workload.num_layers, hidden_size=workload.hidden_size // 2),
        attention=AttentionConfig(score="general"),
        decoder=DecoderConfig(num_layers=workload.num_layers, input_feeding=True),
    )
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        model = Seq2Seq(config, workload.vocabulary_size, workload.vocabulary_size)
    with torch.no_grad():
        assert model.output.weight is not None
        model.output.weight.mul_(PEAKEDNESS)
        model.output.bias[EOS_ID] = EOS_BIAS
    return model.eval()


def mt_exportable(workload: Workload) -> ExportableModel:
    tokenizer = tokenizer_of("word", map(word_of, range(NUM_SPECIAL_SYMBOLS, workload.vocabulary_size)))
    job = Job(num_sentences=64, num_tokens=workload.num_tokens, vocabulary_size=workload.vocabulary_size)
    return ExportableModel(
        name=NAME,
        model=mt_model(workload),
        source_tokenizer=tokenizer,
        target_tokenizer=tokenizer,
        append_eos=True,
        limits=Limits(
            max_source_tokens=MAX_TOKENS,
            max_target_tokens=MAX_TOKENS,
            max_beam_size=MAX_BEAM_SIZE,
            max_num_hypotheses=MAX_BEAM_SIZE,
        ),
        decoding=DecodingDefaults(beam_size=1, length_penalty=0.6),
        provenance=Provenance(
            commit="", created="", versions={}, recipe={}, data_digest="", checkpoint="seeded random weights"
        ),
        sources=[source[:-1] for source in sentences(job)],
    )


def _digest() -> str:
    found = hashlib.sha256(Path(__file__).read_bytes())
    for path in sorted(path for maker in MAKERS for path in ROOT.glob(maker)):
        found.update(path.read_bytes())
    return found.hexdigest()[:12]
