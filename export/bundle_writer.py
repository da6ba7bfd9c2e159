"""From fp32 graphs to a published bundle: written aside, verified by what serves it, renamed."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from attendant.export.origins.exportable import Exportable
from attendant.export.publication import published
from attendant.export.rewriting.fp16 import convert
from attendant.export.rewriting.int8.quantization import quantize
from attendant.export.status import Say, say_nothing
from attendant.export.tracing.traced import TracedPair
from attendant.export.verification.certification import certify_rewritten
from attendant.export.verification.golden import NUM_TRIED, choose_golden
from attendant.export.verification.grid import GridComparison
from attendant.export.verification.plan import FULL_PLAN, VerificationPlan
from attendant.export.verification.probes import random_source
from attendant.export.verification.quality import doubt, preferred_precision, with_measured
from attendant.export.verification.reference import references_of, with_references
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
    MANIFEST_NAME,
    Certificate,
    Evaluation,
    FileEntry,
    GraphPair,
    Manifest,
    Precision,
    Provenance,
    Reference,
    SourceSide,
    TargetSide,
)
from attendant.runtime.bundle_stepper import BundleStepper, check_decoding
from attendant.runtime.commit import commit
from attendant.runtime.device.stepper import DeviceStepper
from attendant.runtime.errors import UserError, VerificationFailed
from attendant.runtime.files import sha256_of
from attendant.runtime.onnx.stepper import OnnxStepper
from attendant.runtime.stepper import Stepper
from attendant_client.version import VERSION

REWRITERS: Final[dict[Precision, Callable[[TracedPair], TracedPair]]] = {"int8": quantize, "fp16": convert}

Measure = Callable[[Mapping[Precision, Stepper]], tuple[Evaluation, ...]]
"""Measures steppers of several precisions on a test set."""


def write_bundle(
    exportable: Exportable,
    output: Path,
    *,
    precisions: Sequence[Precision] = ("fp32",),
    force: bool = False,
    plan: VerificationPlan = FULL_PLAN,
    measure: Measure | None = None,
    say: Say = say_nothing,
) -> Bundle:
    """Publishes the bundle at `output`.

    Args:
        precisions: that are published. All are made of the fp32 graphs and certified by them, published or not; an
            origin without fp32 graphs can only be published in its own precision.
        measure: takes the quality of every precision; None: nothing is measured.

    Raises:
        UserError: `output` is occupied, or the model is too large.
        VerificationFailed: the graphs, or the golden examples, are not what the reference computes, or int8 depends on
            a request's batch-mates. Nothing is left behind.
    """
    with published(output, force=force) as folder:
        _Draft(exportable, folder, plan, say).write(precisions, measure)
        say("opening the bundle as a server does")
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
    say: Say
    graphs: dict[Precision, GraphPair] = field(default_factory=dict)
    certificates: list[Certificate] = field(default_factory=list)
    golden: list[GoldenExample] = field(default_factory=list)

    def write(self, precisions: Sequence[Precision], measure: Measure | None) -> None:
        base = self.exportable.base
        if base != "fp32" and set(precisions) != {base}:
            raise UserError(
                f"the origin has only {base}, and no fp32 graphs to make others of: --precision {base} exports it "
                "anew; for others, export its run"
            )
        self._write_text(SOURCE_TOKENIZER_NAME, self.exportable.source_tokenizer.to_text())
        self._write_text(TARGET_TOKENIZER_NAME, self.exportable.target_tokenizer.to_text())
        self.say("making the graphs of the encoder and the decoder step")
        plain = self.exportable.graphs()
        reference = self._add(base, plain)
        self.certificates += self.exportable.certify(self._manifest(), reference, plain, plan=self.plan, say=self.say)
        self._choose_golden(reference)
        steppers: dict[Precision, BundleStepper] = {base: reference}
        for precision in REWRITERS:
            if precision in precisions and precision != base:
                steppers[precision] = self._add_rewritten(precision, plain, reference)
        # On the CPU it is too slow to be measured, and its quality there is not the GPU's.
        steppers.pop("fp16", None)
        measured = () if measure is None else measure(steppers)
        evaluation = with_measured(self.exportable.evaluation, measured)
        if "fp32" in self.graphs and "fp32" not in precisions:
            self._leave_out_fp32()
        self._write_text(GOLDEN_NAME, golden_text(tuple(self.golden)))
        references = self._references([one for name, one in steppers.items() if name in self.graphs])
        files = {
            path.relative_to(self.folder).as_posix(): FileEntry(size=path.stat().st_size, sha256=sha256_of(path))
            for path in sorted(self.folder.rglob("*"))
            if path.is_file()
        }
        manifest = with_references(self._manifest(evaluation, files), references)
        self._write_text(MANIFEST_NAME, manifest.signed().to_text())

    def _leave_out_fp32(self) -> None:
        """What the others were made of and certified by goes; its certificate, which theirs stands on, stays."""
        self.say("leaving out fp32")
        pair = self.graphs.pop("fp32")
        for graph in (pair.encoder, pair.decoder_step):
            (self.folder / graph.file).unlink()
        (self.folder / "fp32").rmdir()
        self.golden = [example for example in self.golden if example.precision != "fp32"]

    def _defaults(self, evaluation: Sequence[Evaluation]) -> dict[str, Precision]:
        """Provider -> what it serves unless it is told otherwise; none where it serves nothing of what is there."""
        choices: dict[str, tuple[Precision, ...]] = {
            "cpu": ("fp32" if self._doubt(evaluation) else preferred_precision(evaluation), "int8"),
            "cuda": ("fp32", "fp16"),
        }
        found = {
            provider: [one for one in precisions if one in self.graphs] for provider, precisions in choices.items()
        }
        return {provider: precisions[0] for provider, precisions in found.items() if precisions}

    def _doubt(self, evaluation: Sequence[Evaluation]) -> str:
        return doubt(evaluation, self.certificates, self.exportable.target_tokenizer.vocabulary_size)

    def _write_text(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text, encoding="utf-8")

    def _add_rewritten(self, precision: Precision, plain: TracedPair, reference: OnnxStepper) -> BundleStepper:
        """Rewrites, loads and certifies the graphs of another precision."""
        self.say(f"rewriting to {precision}")
        rewritten = REWRITERS[precision](plain)
        stepper: BundleStepper = self._add(precision, rewritten)
        if precision == "fp16":
            # On a GPU where there is one.
            with suppress(UserError):
                stepper = DeviceStepper(self._draft_bundle(), precision, "cuda")
        sources = self.exportable.encoder_sources()
        grid = GridComparison(self._manifest(), stepper, reference, sources, self.plan, self.say)
        self.certificates.append(certify_rewritten(grid, rewritten.arithmetic))
        self._choose_golden(stepper)
        return stepper

    def _add(self, precision: Precision, pair: TracedPair) -> OnnxStepper:
        """Writes the graphs and loads them.

        Raises:
            VerificationFailed: they are int8 graphs that not every processor computes exactly.
        """
        self.graphs[precision] = pair.write(self.folder, precision)
        if precision == "int8" and (lines := wide_factors(self.folder, self.graphs[precision])):
            raise VerificationFailed("the int8 graphs are refused: products would overflow without VNNI", lines)
        return OnnxStepper(self._draft_bundle(), precision)

    def _draft_bundle(self) -> Bundle:
        """Graphs that have no certificate yet are no bundle yet."""
        return Bundle(
            path=self.folder,
            manifest=self._manifest(),
            source_tokenizer=self.exportable.source_tokenizer,
            target_tokenizer=self.exportable.target_tokenizer,
            golden=(),
        )

    def _choose_golden(self, stepper: BundleStepper) -> None:
        self.say(f"choosing golden examples of {stepper.precision}")
        bundle = self._draft_bundle()
        self.golden += choose_golden(bundle, stepper, self.exportable.sources or _random_sources(bundle.manifest))

    def _references(self, steppers: Sequence[BundleStepper]) -> Mapping[Precision, Reference]:
        """Returns each precision's distributions on the origin's held-out sources; the origin's own if it has none."""
        origin = self.exportable
        if not origin.validation:
            return {name: one for name, one in origin.references.items() if name in self.graphs}
        return references_of(self._draft_bundle(), steppers, origin.validation, origin.validation_name, self.say)

    def _manifest(
        self,
        evaluation: tuple[Evaluation, ...] = (),
        files: Mapping[str, FileEntry] | None = None,
    ) -> Manifest:
        exportable = self.exportable
        return Manifest(
            name=exportable.name,
            model=dict(exportable.architecture),
            source=SourceSide(
                vocabulary_size=exportable.source_tokenizer.vocabulary_size, append_eos=exportable.append_eos
            ),
            target=TargetSide(vocabulary_size=exportable.target_tokenizer.vocabulary_size),
            special_ids=exportable.special_ids,
            graphs=self.graphs,
            default_precision=self._defaults(evaluation),
            limits=exportable.limits,
            decoding=exportable.decoding,
            provenance=_with_exporter(exportable.provenance),
            evaluation=evaluation,
            certificates=tuple(self.certificates),
            files=dict(files or {}),
        )


def _with_exporter(provenance: Provenance) -> Provenance:
    """Returns where the weights came from, with the version and commit that make this bundle of them."""
    return provenance.model_copy(
        update={"versions": {**provenance.versions, "exported_by": f"attendant {VERSION}, commit {commit()}"}}
    )


def _random_sources(manifest: Manifest) -> list[list[int]]:
    """Ids as requests give them, without EOS."""
    random, end = np.random.default_rng(0), int(manifest.source.append_eos)
    longest = min(12, manifest.limits.max_source_tokens) + end
    sources = [random_source(manifest, int(random.integers(2, longest + 1)), random) for _ in range(NUM_TRIED)]
    return [source[: len(source) - end] for source in sources]
