"""Writes a bundle: in a temporary folder, verified by the loader and the stepper that serve, then renamed."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, get_args

import numpy as np

from attendant.export.calibration import calibrate
from attendant.export.graph import TracedPair
from attendant.export.origins import Exportable
from attendant.export.published import publish, write_manifest
from attendant.export.rewriting.fp16 import convert
from attendant.export.rewriting.int8 import quantize
from attendant.export.verification import quality
from attendant.export.verification.certification import GridComparison, certify_rewritten, outcomes_under_noise
from attendant.export.verification.probes import FULL_PLAN, VerificationPlan, random_source
from attendant.runtime.bundle.bundle import (
    GOLDEN_NAME,
    SOURCE_TOKENIZER_NAME,
    TARGET_TOKENIZER_NAME,
    Bundle,
    GoldenExample,
    golden_text,
    open_bundle,
)
from attendant.runtime.bundle.graph_content import wide_factors
from attendant.runtime.bundle.manifest import (
    Certificate,
    Evaluation,
    GraphPair,
    Manifest,
    Precision,
    SourceSide,
    TargetSide,
)
from attendant.runtime.bundle.tokenizer import SPECIAL_TOKENS, UNK_ID
from attendant.runtime.bundle_stepper import BundleStepper, check_decoding
from attendant.runtime.commit import commit
from attendant.runtime.decoding.batch import decode_all
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.errors import UserError, VerificationFailed
from attendant.runtime.onnx.device import DeviceStepper
from attendant.runtime.onnx.stepper import OnnxStepper
from attendant.runtime.spans import spell_stand_ins
from attendant_client.version import VERSION

logger = logging.getLogger(__name__)

REWRITERS: Final[dict[Precision, Callable[[TracedPair], TracedPair]]] = {"int8": quantize, "fp16": convert}

MARGIN: Final[Mapping[Precision, float]] = {"fp32": 1e-3, "int8": 2e-2, "fp16": 5e-2}
"""A golden example keeps its tokens when every log-probability moves by up to this: hosts differ by far less."""

NUM_TRIED = 32
NUM_KEPT = 12  # Golden examples of each beam size.
GOLDEN_BEAM_SIZE = 4
MAX_LENGTHS = (64, 16, 4)  # Tried in turn: a model that has learned little has no clear margins over many symbols.


def precisions_of(precisions: Precision | Sequence[Precision]) -> tuple[Precision, ...]:
    """Returns the precisions to publish. Raises UserError if there are none, or one is unknown."""
    if isinstance(precisions, str) or not isinstance(precisions, Iterable):
        precisions = (precisions,)
    names: tuple[Precision, ...] = tuple(precisions)
    known = get_args(Precision)
    for name in names or ("",):
        if name not in known:
            raise UserError(f"--precision {name}: must be of {', '.join(known)}")
    return names


def write_bundle(
    exportable: Exportable,
    output: Path,
    *,
    precisions: Sequence[Precision] = ("fp32",),
    force: bool = False,
    plan: VerificationPlan = FULL_PLAN,
    measurement: quality.QualityMeasurement | None = None,
) -> Bundle:
    """Publishes the bundle at `output`.

    All precisions are made from the fp32 graphs and certified against them, published or not; an origin without fp32
    graphs can only be published in its own precision. Without a measurement, nothing is measured.

    Raises:
        UserError: `output` is occupied, the model is too large or has no clear answer, or it protects spans by default
            and its vocabularies can't spell stand-ins.
        VerificationFailed: the graphs or the golden examples differ from the reference, or int8 depends on the batch.
            Nothing is published.
    """
    tokenizers = exportable.source_tokenizer, exportable.target_tokenizer
    if exportable.decoding.protect_spans and not spell_stand_ins(*tokenizers):
        raise UserError("--protect-spans: this model's vocabularies can't spell the stand-in {1}: leave it out")
    with publish(output, force=force) as folder:
        _Draft(exportable, folder, plan).write(precisions, measurement)
        logger.info("opening the bundle as a server does")
        bundle = open_bundle(folder)
        for precision in bundle.manifest.graphs:
            if differences := check_decoding(bundle, OnnxStepper(bundle, precision), precision, "cpu"):
                raise VerificationFailed(f"the golden examples of {precision} don't hold on a second run", differences)
    return open_bundle(output)


@dataclass(slots=True)
class _Draft:
    """A bundle that grows in its folder, precision by precision."""

    exportable: Exportable
    folder: Path
    plan: VerificationPlan
    graphs: dict[Precision, GraphPair] = field(default_factory=dict)
    certificates: list[Certificate] = field(default_factory=list)
    golden: list[GoldenExample] = field(default_factory=list)

    def write(self, precisions: Sequence[Precision], measurement: quality.QualityMeasurement | None) -> None:
        origin, base = self.exportable, self.exportable.base
        if base != "fp32" and set(precisions) != {base}:
            raise UserError(
                f"the origin has only {base}, and no fp32 graphs to make others of: --precision {base} exports it "
                "again; for others, export its run"
            )
        self._write_text(SOURCE_TOKENIZER_NAME, origin.source_tokenizer.to_text())
        self._write_text(TARGET_TOKENIZER_NAME, origin.target_tokenizer.to_text())
        logger.info("making the graphs of the encoder and the decoder step")
        plain = origin.graphs()
        reference = self._add(base, plain)
        self.certificates += origin.certify(self._manifest(), reference, self.plan)
        self._choose_golden(reference)
        steppers: dict[Precision, BundleStepper] = {base: reference}
        for precision in REWRITERS:
            if precision in precisions and precision != base:
                steppers[precision] = self._add_rewritten(precision, plain, reference)
        # The CPU is too slow to measure fp16, and computes it differently from a GPU.
        steppers.pop("fp16", None)
        evaluation = quality.with_measured(origin.evaluation, () if measurement is None else measurement.take(steppers))
        if "fp32" in self.graphs and "fp32" not in precisions:
            self._leave_out_fp32()
        self._write_text(GOLDEN_NAME, golden_text(tuple(self.golden)))
        references = {name: entry for name, entry in origin.references.items() if name in self.graphs}
        if origin.validation:
            remaining = [stepper for name, stepper in steppers.items() if name in self.graphs]
            references = quality.references_of(self._bundle(), remaining, origin.validation, origin.validation_name)
        calibrated = origin.calibrated
        if origin.held_out is not None:
            served = self._manifest(evaluation).default_precision.get("cpu", "fp32")
            calibrated = calibrate(self._bundle(), steppers[served], origin.held_out)
        calibrated.write(self.folder)
        manifest = quality.with_references(self._manifest(evaluation), references)
        write_manifest(self.folder, manifest.model_copy(update={"confidence": calibrated.calibration}))

    def _leave_out_fp32(self) -> None:
        """Removes the fp32 graphs, but not their certificate, on which the other certificates are based."""
        logger.info("leaving out fp32")
        pair = self.graphs.pop("fp32")
        for graph in (pair.encoder, pair.decoder_step):
            (self.folder / graph.file).unlink()
        (self.folder / "fp32").rmdir()
        self.golden = [example for example in self.golden if example.precision != "fp32"]

    def _write_text(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text, encoding="utf-8")

    def _add_rewritten(self, precision: Precision, plain: TracedPair, reference: OnnxStepper) -> BundleStepper:
        """Rewrites, loads and certifies the graphs of another precision. Raises UserError: graphs of a user's own have
        a form that can't be rewritten.
        """
        logger.info("rewriting to %s", precision)
        try:
            rewritten = REWRITERS[precision](plain)
        except AssertionError as error:
            if self.exportable.must_be_invariant:  # graphs of our own layers
                raise
            raise UserError(
                f"the graphs have a form that can't be rewritten to {precision}: leave it out of --precision"
            ) from error
        stepper: BundleStepper = self._add(precision, rewritten)
        if precision == "fp16":
            # On a GPU, if there is one.
            with suppress(UserError):
                stepper = DeviceStepper(self._bundle(), precision, "cuda")
        sources, invariant = self.exportable.encoder_sources(), self.exportable.must_be_invariant
        grid = GridComparison(self._manifest(), stepper, reference, sources, self.plan, must_be_invariant=invariant)
        self.certificates.append(certify_rewritten(grid, rewritten.arithmetic))
        self._choose_golden(stepper)
        return stepper

    def _add(self, precision: Precision, pair: TracedPair) -> OnnxStepper:
        """Writes the graphs and loads them. Raises VerificationFailed: they are int8 graphs that not every processor
        computes exactly.
        """
        written = pair.write(self.folder, precision)
        self.graphs[precision] = written.model_copy(update={"encode_alone": self.exportable.encode_alone})
        if precision == "int8" and (lines := wide_factors(self.folder, self.graphs[precision])):
            raise VerificationFailed("the int8 graphs are refused: products would overflow without VNNI", lines)
        return OnnxStepper(self._bundle(), precision)

    def _choose_golden(self, stepper: BundleStepper) -> None:
        logger.info("choosing golden examples of %s", stepper.precision)
        bundle = self._bundle()
        sources = self.exportable.sources
        if not sources:
            random = np.random.default_rng(0)
            begin, end = int(self.exportable.prepend_bos), int(self.exportable.append_eos)
            longest = min(12, self.exportable.limits.max_source_tokens) + begin + end
            sources = [
                source[begin : len(source) - end]
                for source in (
                    random_source(bundle.manifest, int(random.integers(min(2 + begin, longest), longest + 1)), random)
                    for _ in range(NUM_TRIED)
                )
            ]
        self.golden += choose_golden(bundle, stepper, sources)

    def _bundle(self) -> Bundle:
        """Returns the bundle with its present graphs, and without golden examples."""
        return Bundle(
            path=self.folder,
            manifest=self._manifest(),
            source_tokenizer=self.exportable.source_tokenizer,
            target_tokenizer=self.exportable.target_tokenizer,
            golden=(),
        )

    def _manifest(self, evaluation: tuple[Evaluation, ...] = ()) -> Manifest:
        """Returns the manifest of the present graphs, without files."""
        origin = self.exportable
        source, target = origin.source_tokenizer, origin.target_tokenizer
        num_targets = target.vocabulary_size
        trusted = not quality.doubt(evaluation, self.certificates, num_targets)
        # Provider -> its choices for a default, in order of preference.
        choices: dict[str, tuple[Precision, ...]] = {
            "cpu": (quality.preferred_precision(evaluation) if trusted else "fp32", "int8"),
            "cuda": ("fp32", "fp16"),
        }
        defaults = {
            provider: [precision for precision in precisions if precision in self.graphs]
            for provider, precisions in choices.items()
        }
        exporter = {"exported_by": f"attendant {VERSION}, commit {commit()}"}
        return Manifest(
            name=origin.name,
            model=dict(origin.architecture),
            source=SourceSide(
                vocabulary_size=source.vocabulary_size,
                append_eos=origin.append_eos,
                prepend_bos=origin.prepend_bos,
                tokens_only=not source.takes_texts,
            ),
            target=TargetSide(vocabulary_size=num_targets, tokens_only=not target.takes_texts),
            special_ids=origin.special_ids,
            graphs=self.graphs,
            default_precision={provider: available[0] for provider, available in defaults.items() if available},
            limits=origin.limits,
            decoding=origin.decoding,
            provenance=origin.provenance.model_copy(update={"versions": {**origin.provenance.versions, **exporter}}),
            evaluation=evaluation,
            certificates=tuple(self.certificates),
            files={},
        )


def choose_golden(
    bundle: Bundle, stepper: BundleStepper, sources: Sequence[Sequence[int]]
) -> tuple[GoldenExample, ...]:
    """Returns greedy and beam examples with margins so clear that their decoding is the same on any host.

    Sources, ids without EOS, that no request may have are left out.

    Raises:
        UserError: no source has a clear margin: the model's outcomes are ties.
    """
    manifest, margin = bundle.manifest, MARGIN[stepper.precision]
    candidates = [
        source
        for source in sources
        if 0 < len(source) <= manifest.limits.max_source_tokens
        and all(token_id == UNK_ID or token_id >= len(SPECIAL_TOKENS) for token_id in source)
    ][:NUM_TRIED]
    encoded = [bundle.source_ids(source) for source in candidates]
    for length in MAX_LENGTHS:
        examples: list[GoldenExample] = []
        for beam_size in (1, min(GOLDEN_BEAM_SIZE, manifest.limits.max_beam_size)):
            options = DecodingOptions(
                beam_size=beam_size,
                length_penalty=manifest.decoding.length_penalty,
                length_penalty_offset=manifest.decoding.length_penalty_offset,
                max_length=min(length, manifest.limits.max_target_tokens),
            )
            outcomes = outcomes_under_noise(stepper, encoded, options, manifest.special_ids, margin)
            kept = [place for place, tokens in enumerate(outcomes) if len(tokens) == 1][:NUM_KEPT]
            outputs = decode_all(stepper, [encoded[place] for place in kept], options, manifest.special_ids)
            examples += [
                GoldenExample(
                    precision=stepper.precision,
                    source_tokens=tuple(bundle.source_tokenizer.tokens_of(candidates[place])),
                    beam_size=beam_size,
                    length_penalty=options.length_penalty,
                    length_penalty_offset=options.length_penalty_offset,
                    max_length=options.max_length,
                    target_tokens=tuple(bundle.target_tokenizer.tokens_of(hypotheses[0].token_ids)),
                    score=hypotheses[0].score,
                    log_prob=hypotheses[0].log_prob,
                )
                for place, hypotheses in zip(kept, outputs, strict=True)
            ]
        if examples:
            return tuple(examples)
    raise UserError(
        f"no golden example can be chosen: of {len(candidates)} sources, none keeps its {stepper.precision} answer "
        f"when log-probabilities move by {margin:g}, as of a model without training: load trained weights, or give "
        "more held-out sources"
    )
