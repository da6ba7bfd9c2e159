"""Origins of a bundle: a trained run, a checkpoint of another toolkit, or another bundle.

Every origin gives an `Exportable`, from which bundle_writer.py makes a bundle. A model in PyTorch is a `TraceableModel`
(tracing.py) in an `ExportableModel`. A new bundle takes over the fp32 graphs of another one as they are, or its int8
graphs if it has no others; they keep their certificates.
"""

import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeVar

import onnx
import torch
from pydantic import ValidationError

from attendant.export.calibration import NOT_CALIBRATED, Calibrated, HeldOut, held_out_of_run
from attendant.export.graph import TracedGraph, TracedPair
from attendant.export.importing import fairseq, g2p_en, joeynmt, opennmt
from attendant.export.importing.checkpoint import Reader, fill
from attendant.export.tracing import TraceableModel, trace_graphs, traceable
from attendant.export.verification.certification import GridComparison, certify_traced
from attendant.export.verification.probes import VerificationPlan
from attendant.export.verification.quality import NUM_REFERENCE
from attendant.runtime.bundle.bundle import Bundle
from attendant.runtime.bundle.manifest import (
    MAX_TOKENS,
    NAME_PATTERN,
    Certificate,
    DecodingDefaults,
    Evaluation,
    Limits,
    Manifest,
    Precision,
    Provenance,
    Reference,
    SpecialIds,
    search_of,
)
from attendant.runtime.bundle.tokenizer import BOS_ID, EOS_ID, SPECIAL_TOKENS, UNK_ID, Tokenizer
from attendant.runtime.errors import UserError
from attendant.runtime.files import sha256_of
from attendant.runtime.onnx.session import RUNTIME_VERSION, graph_bytes
from attendant.runtime.onnx.stepper import OnnxStepper, refuse_inexact
from attendant.runtime.requests import unknown_symbols
from attendant.training.model import Seq2Seq
from attendant.training.run.loading import LoadedRun
from attendant.training.table import requirement

logger = logging.getLogger(__name__)

MAX_BEAM_SIZE = 32
"""A request's rows take memory and time of all requests; more hypotheses than this have never improved quality."""

NUM_SOURCES = 256  # Real sources for the comparison with PyTorch and as candidates for golden examples.
WARNED_UNKNOWN_SHARE: Final = 0.2
"""Share of unknown tokens in the held-out sources above which a warning is logged. Some are usual with words."""

READERS: Final[Mapping[str, Reader]] = {
    "fairseq": fairseq.read,
    "g2p_en": g2p_en.read,
    "joeynmt": joeynmt.read,
    "opennmt-py": opennmt.read,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Exportable(ABC):
    """The contents of a bundle, except its graphs of other precisions than its base.

    Attributes:
        append_eos: the encoder gets EOS after the source.
        prepend_bos: it gets BOS before the source.
        sources: token ids of real sources, without EOS: the graphs are verified on them, and golden examples chosen
            from them. If empty, random sources are used.
        validation: token ids of held-out sources, without EOS, for reference distributions.
        validation_name: the name of these sources in the manifest.
        must_be_invariant: graphs whose bits depend on the batch are refused, not only stated in the certificate.
        encode_alone: see GraphPair of the manifest.
        base: the precision of `graphs`: fp32, from which all others are made, or int8, from which none can be made.
        references: the origin's own distributions, which are kept if `validation` is empty.
        held_out: pairs on which the confidence of answers is calibrated.
        calibrated: the origin's own calibration, which is kept if `held_out` is None.
    """

    name: str
    architecture: Mapping[str, Any]
    special_ids: SpecialIds
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    append_eos: bool
    limits: Limits
    decoding: DecodingDefaults
    provenance: Provenance
    evaluation: tuple[Evaluation, ...] = ()
    sources: Sequence[Sequence[int]] = ()
    validation: Sequence[Sequence[int]] = ()
    validation_name: str = ""
    must_be_invariant: bool = True
    encode_alone: bool = False
    prepend_bos: bool = False
    base: Precision = "fp32"
    references: Mapping[Precision, Reference] = field(default_factory=dict)
    held_out: HeldOut | None = None
    calibrated: Calibrated = NOT_CALIBRATED

    @abstractmethod
    def graphs(self) -> TracedPair:
        """Returns the graphs of the base precision."""

    @abstractmethod
    def certify(self, manifest: Manifest, stepper: OnnxStepper, plan: VerificationPlan) -> tuple[Certificate, ...]:
        """Returns the graphs' certificates; `stepper` runs them. Raises VerificationFailed: they are not the model."""

    def encoder_sources(self) -> list[list[int]]:
        """Returns the sources as the encoder takes them."""
        return [
            [*[BOS_ID] * self.prepend_bos, *source, *[EOS_ID] * self.append_eos] for source in self.sources if source
        ]


AnyExportable = TypeVar("AnyExportable", bound=Exportable)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportableModel(Exportable):
    """A trained model in PyTorch; `trace` makes its graphs."""

    model: TraceableModel
    trace: Callable[[TraceableModel], TracedPair] = trace_graphs

    def graphs(self) -> TracedPair:
        return self.trace(self.model)

    def certify(self, manifest: Manifest, stepper: OnnxStepper, plan: VerificationPlan) -> tuple[Certificate, ...]:
        sources, invariant = self.encoder_sources(), self.must_be_invariant
        grid = GridComparison(manifest, stepper, self.model.reference, sources, plan, must_be_invariant=invariant)
        return (certify_traced(grid, self.model.exact_reference()),)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportableBundle(Exportable):
    """A published bundle, to be published again with other precisions."""

    bundle: Bundle

    def graphs(self) -> TracedPair:
        pair = self.bundle.manifest.graphs[self.base]
        encoder, decoder_step = (
            TracedGraph(
                model=onnx.load_model_from_string(graph_bytes(self.bundle.path, spec)),
                opset=spec.opset,
                inputs=spec.inputs,
                outputs=spec.outputs,
            )
            for spec in (pair.encoder, pair.decoder_step)
        )
        return TracedPair(encoder=encoder, decoder_step=decoder_step, state=pair.state, min_queries=pair.min_queries)

    def certify(self, manifest: Manifest, stepper: OnnxStepper, plan: VerificationPlan) -> tuple[Certificate, ...]:
        """Returns the bundle's own certificates, since its graphs are the same bytes."""
        own = self.bundle.manifest.certificates
        return tuple(entry for entry in own if entry.precision in ("fp32", self.base))


def exportable_run(run: LoadedRun, name: str | None = None) -> ExportableModel:
    """Returns a run's exportable, by default with the folder's name. Raises UserError if it can't be a bundle's."""
    recipe, model = run.recipe, traceable(run.model)
    limits = limits_of(run.target_tokenizer, recipe.data.max_source_tokens, recipe.data.max_target_tokens)
    # The defaults are those of the evaluation in the manifest.
    beam_size = min(recipe.evaluation.beam_size, limits.max_beam_size)
    measured = ("metric", "value", "protocol", "num_examples")
    validation = recipe.data.files("validation")
    return ExportableModel(
        name=bundle_name(name, run.path.resolve().name),
        model=model,
        architecture=model.architecture,
        special_ids=model.special_ids,
        source_tokenizer=run.source_tokenizer,
        target_tokenizer=run.target_tokenizer,
        append_eos=recipe.source.append_eos,
        limits=limits,
        decoding=DecodingDefaults(
            **search_of(recipe.evaluation) | {"beam_size": beam_size}, max_length_ratio=run.max_length_ratio
        ),
        provenance=provenance_of(
            commit=run.versions["commit"],
            versions=run.versions,
            recipe=recipe.model_dump(mode="json"),
            data_digest=run.data["digest"],
            checkpoint=run.checkpoint,
        ),
        evaluation=tuple(Evaluation(**{field: entry[field] for field in measured}) for entry in run.evaluation),
        sources=run.held_out_sources(NUM_SOURCES),
        validation=run.held_out_sources(NUM_REFERENCE, ("validation",)),
        validation_name="" if validation is None else ", ".join(map(str, validation.paths)),
        held_out=held_out_of_run(run),
    )


def exportable_bundle(bundle: Bundle, name: str | None = None) -> ExportableBundle:
    """Returns a bundle's exportable; by default it has the same name.

    Raises:
        UserError: the bundle has no graphs from which others can be made, or int8 graphs that are not exact.
    """
    manifest = bundle.manifest
    if not manifest.graphs.keys() & {"fp32", "int8"}:
        raise UserError(f"the bundle {bundle.path} has no fp32 graphs to make others of: export its run")
    base: Precision = "fp32" if "fp32" in manifest.graphs else "int8"
    refuse_inexact(bundle, base)
    sources = dict.fromkeys(example.source_tokens for example in bundle.golden)
    return ExportableBundle(
        bundle=bundle,
        base=base,
        name=name or manifest.name,
        architecture=manifest.model,
        special_ids=manifest.special_ids,
        source_tokenizer=bundle.source_tokenizer,
        target_tokenizer=bundle.target_tokenizer,
        append_eos=manifest.source.append_eos,
        prepend_bos=manifest.source.prepend_bos,
        limits=manifest.limits,
        decoding=manifest.decoding,
        provenance=manifest.provenance,
        evaluation=tuple(entry for entry in manifest.evaluation if entry.precision in ("fp32", base)),
        encode_alone=any(pair.encode_alone for pair in manifest.graphs.values()),
        references={
            precision: entry
            for precision in manifest.graphs
            if (entry := manifest.reference_of(precision)) is not None and entry.precision == precision
        },
        calibrated=Calibrated(manifest.confidence, bundle.seen_bigrams),
        must_be_invariant=manifest.has_our_layers,
        sources=[bundle.source_tokenizer.ids_of(tokens) for tokens in sources],
    )


def exportable_checkpoint(
    toolkit: str,
    path: Path,
    output: Path,
    name: str | None = None,
    *,
    segmented: bool = False,
    texts: Sequence[str] = (),
    data: str = "",
) -> ExportableModel:
    """Returns the exportable of another toolkit's checkpoint.

    Args:
        output: the folder of the new bundle, whose name is the default for `name`.
        segmented: texts are segmented into the toolkit's symbols, separated by spaces.
        texts: real sources, on which the graphs are verified too; `data` is their name in the manifest.

    Raises:
        UserError: the checkpoint can't be read, or has a part that can't be represented; the name can't be a bundle's.
    """
    name = bundle_name(name, output.absolute().name)
    try:
        imported = READERS[toolkit](path, segmented)
    except ValidationError as error:
        problem = error.errors()[0]
        field = "".join(f"{name}: " for name in problem["loc"])
        raise UserError(f"{path}: its model can't be imported: {field}{requirement(problem)}") from None
    tokenizers = imported.source_tokenizer, imported.target_tokenizer
    widths = {side: imported.tensors[f"{side}_embedding.weight"].shape[1] for side in ("source", "target")}
    if widths["source"] != widths["target"]:
        raise UserError(
            f"{imported.file}: embeddings of width {widths['source']} for sources and {widths['target']} for targets "
            "can't be imported: both must have one width"
        )
    filled = Seq2Seq(imported.config, *(tokenizer.vocabulary_size for tokenizer in tokenizers))
    fill(filled, imported.tensors, f"{imported.file}: the weights are not of the model that its settings describe")
    model = traceable(filled.eval())
    sources = held_out_sources(imported.source_tokenizer, texts, imported.max_source_tokens)
    limits = limits_of(imported.target_tokenizer, imported.max_source_tokens, imported.max_target_tokens)
    beam_size = min(imported.decoding.beam_size, limits.max_beam_size)
    return ExportableModel(
        name=name,
        model=model,
        architecture=model.architecture,
        special_ids=model.special_ids,
        source_tokenizer=imported.source_tokenizer,
        target_tokenizer=imported.target_tokenizer,
        append_eos=imported.append_eos,
        limits=limits,
        decoding=imported.decoding.model_copy(update={"beam_size": beam_size}),
        provenance=provenance_of(
            commit=f"imported from {toolkit}",
            versions={"torch": torch.__version__},
            recipe={"model": imported.config.model_dump(mode="json")},
            data_digest="",
            checkpoint=f"sha256:{sha256_of(imported.file)}",
        ),
        sources=sources,
        validation=sources,
        validation_name=data,
    )


def held_out_sources(tokenizer: Tokenizer, texts: Sequence[str], longest: int) -> list[list[int]]:
    """Returns the ids of texts of up to `longest` tokens. Warns if many tokens are unknown."""
    encoded = tokenizer.encode_batch(list(texts))
    num_tokens, num_unknown = sum(map(len, encoded)), sum(ids.count(UNK_ID) for ids in encoded)
    if num_unknown > WARNED_UNKNOWN_SHARE * num_tokens:
        pairs = zip(texts, encoded, strict=True)
        symbols = (symbol for text, ids in pairs for symbol in unknown_symbols(text, ids, tokenizer))
        logger.warning(
            "%.0f %% of the tokens of the held-out sources are unknown, e.g. %s: requests must have the form of the "
            "training's texts (capitals, punctuation, subwords)",
            100 * num_unknown / num_tokens,
            ", ".join(map(repr, islice(symbols, 4))),
        )
    return [ids for ids in encoded if 0 < len(ids) <= longest]


def with_defaults(exportable: AnyExportable, **defaults: float | None) -> AnyExportable:
    """Returns the exportable with other decoding defaults; those that are None stay as they are.

    A patience of 0 means none, as in a request.

    Raises:
        UserError: a value is out of its range, or the beam is wider than the bundle's limit.
    """
    chosen: dict[str, float | None] = {name: value for name, value in defaults.items() if value is not None}
    if chosen.get("patience") == 0:
        chosen["patience"] = None
    try:
        decoding = DecodingDefaults.model_validate(exportable.decoding.model_dump() | chosen)
    except ValidationError as error:
        problem = error.errors()[0]
        option = str(problem["loc"][0]).replace("_", "-")
        raise UserError(f"--{option} {problem['input']}: {requirement(problem)}") from None
    if not exportable.decoding.num_hypotheses <= decoding.beam_size <= exportable.limits.max_beam_size:
        least, most = exportable.decoding.num_hypotheses, exportable.limits.max_beam_size
        raise UserError(f"--beam-size {decoding.beam_size}: this model's beams have {least} to {most} hypotheses")
    return replace(exportable, decoding=decoding)


def limits_of(target_tokenizer: Tokenizer, max_source_tokens: int, max_target_tokens: int) -> Limits:
    """Returns the limits of requests, at most those of the format; the vocabulary and MAX_BEAM_SIZE limit beams."""
    max_beam_size = max(1, min(MAX_BEAM_SIZE, target_tokenizer.vocabulary_size - len(SPECIAL_TOKENS)))
    return Limits(
        max_source_tokens=min(max_source_tokens, MAX_TOKENS),
        max_target_tokens=min(max_target_tokens, MAX_TOKENS),
        max_beam_size=max_beam_size,
        max_num_hypotheses=max_beam_size,
    )


def provenance_of(*, versions: Mapping[str, str], **fields: Any) -> Provenance:
    """Returns the origin of the weights, with the time and the versions of this export."""
    exporting = {"onnx": version("onnx"), "onnxruntime": RUNTIME_VERSION.split()[1]}
    created = datetime.now(UTC).isoformat(timespec="seconds")
    return Provenance(created=created, versions={**versions, **exporting}, **fields)


def bundle_name(name: str | None, folder: str) -> str:
    """Returns the name, or one made from a folder's name if it is None. Raises UserError if it can't be a bundle's."""
    valid = re.sub(r"[^a-z0-9._-]+", "-", folder.lower()).strip("-._") if name is None else name
    if not isinstance(valid, str) or not re.fullmatch(NAME_PATTERN, valid):
        source = f"--name {name!r}" if name is not None else f"the folder {folder!r} gives no name"
        raise UserError(
            f"{source}: a bundle's name has 1 to 64 of a-z, 0-9, '.', '_' and '-' and begins with a letter or digit; "
            "give another by --name"
        )
    return valid
