"""What a trained model in PyTorch gives a bundle: graphs to be traced, and the reference that certifies them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from attendant.export.origins.exportable import Exportable
from attendant.export.status import Say
from attendant.export.tracing.graphs import trace_graphs
from attendant.export.tracing.traced import TracedPair
from attendant.export.verification.certification import certify_traced
from attendant.export.verification.grid import GridComparison
from attendant.export.verification.plan import VerificationPlan
from attendant.export.verification.reference import NUM_REFERENCE
from attendant.runtime.bundle.manifest import (
    NAME_PATTERN,
    Certificate,
    DecodingDefaults,
    Evaluation,
    Limits,
    Manifest,
    Provenance,
    SpecialIds,
    search_of,
)
from attendant.runtime.bundle.tokenizer import SPECIAL_TOKENS, Tokenizer, special_ids
from attendant.runtime.errors import UserError
from attendant.runtime.onnx.session import RUNTIME_VERSION
from attendant.runtime.onnx.stepper import OnnxStepper
from attendant.training.model import Seq2Seq
from attendant.training.model.stepper import TorchStepper
from attendant.training.run.loading import LoadedRun

MAX_BEAM_SIZE = 32
"""A request's rows are memory and time of everybody's; more hypotheses than this have never helped quality."""

NUM_SOURCES = 256
"""Real sources looked at: for the comparison with PyTorch and to choose golden examples from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportableModel(Exportable):
    """A trained model with all that its bundle says of it."""

    model: Seq2Seq

    @property
    def architecture(self) -> Mapping[str, Any]:
        return {**self.model.config.model_dump(mode="json"), "num_parameters": self.model.num_parameters}

    @property
    def special_ids(self) -> SpecialIds:
        return special_ids(self.model.start_id)

    def graphs(self) -> TracedPair:
        """Raises UserError where the weights are more than one ONNX file can hold."""
        return trace_graphs(self.model)

    def certify(
        self, manifest: Manifest, stepper: OnnxStepper, graphs: TracedPair, *, plan: VerificationPlan, say: Say
    ) -> tuple[Certificate, ...]:
        grid = GridComparison(manifest, stepper, TorchStepper(self.model), self.encoder_sources(), plan, say)
        return (certify_traced(grid, self.model),)


def exportable_run(run: LoadedRun, name: str | None = None) -> ExportableModel:
    """Everything that a bundle says of this run.

    Args:
        name: the bundle's; None: the run directory's.

    Raises:
        UserError: the name can't be a bundle's.
    """
    recipe = run.recipe
    limits = limits_of(run.target_tokenizer, recipe.data.max_source_tokens, recipe.data.max_target_tokens)
    # The defaults are what the evaluation in the manifest was measured with.
    beam_size = min(recipe.evaluation.beam_size, limits.max_beam_size)
    measured = ("metric", "value", "protocol", "num_examples")
    return ExportableModel(
        name=bundle_name(name, run.path.resolve().name),
        model=run.model,
        source_tokenizer=run.source_tokenizer,
        target_tokenizer=run.target_tokenizer,
        append_eos=recipe.source.append_eos,
        limits=limits,
        decoding=DecodingDefaults(
            **search_of(recipe.evaluation) | {"beam_size": beam_size}, max_length_ratio=run.max_length_ratio
        ),
        provenance=Provenance(
            commit=run.commit,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            versions={**run.versions, **exporting_versions()},
            recipe=recipe.model_dump(mode="json"),
            data_digest=run.data_digest,
            checkpoint=run.checkpoint,
        ),
        evaluation=tuple(Evaluation(**{field: entry[field] for field in measured}) for entry in run.evaluation),
        sources=run.held_out_sources(NUM_SOURCES),
        validation=run.held_out_sources(NUM_REFERENCE, ("validation",)),
        validation_name=_validation_name(run),
    )


def limits_of(target_tokenizer: Tokenizer, max_source_tokens: int, max_target_tokens: int) -> Limits:
    """What a request may ask for."""
    max_beam_size = max(1, min(MAX_BEAM_SIZE, target_tokenizer.vocabulary_size - len(SPECIAL_TOKENS)))
    return Limits(
        max_source_tokens=max_source_tokens,
        max_target_tokens=max_target_tokens,
        max_beam_size=max_beam_size,
        max_num_hypotheses=max_beam_size,
    )


def exporting_versions() -> dict[str, str]:
    """Of what makes a bundle of a model."""
    return {"onnx": version("onnx"), "onnxruntime": RUNTIME_VERSION.split()[1]}


def _validation_name(run: LoadedRun) -> str:
    files = run.recipe.data.files("validation")
    return "" if files is None else ", ".join(map(str, files.paths))


def bundle_name(given: str | None, folder: str) -> str:
    """Returns the name that was given, or one made of a folder's. Raises UserError if it can't be a bundle's."""
    name = given or re.sub(r"[^a-z0-9._-]+", "-", folder.lower()).strip("-._")
    if not re.fullmatch(NAME_PATTERN, name):
        what = f"--name {given}" if given else f"the folder {folder!r} gives no name"
        raise UserError(
            f"{what}: a bundle's name has 1 to 64 of a-z, 0-9, '.', '_' and '-' and begins with a letter or digit; "
            "give another by --name"
        )
    return name
