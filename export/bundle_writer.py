"""From a model to a published bundle: traced, written aside, verified by what serves it, renamed."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from export.exportable import Exportable
from export.golden import NUM_TRIED, choose_golden
from export.graphs import TracedGraph, trace_graphs
from export.plan import FULL_PLAN, VerificationPlan
from export.probes import random_source
from export.publication import published
from export.verification import Say, say_nothing, verify
from runtime.bundle import GOLDEN_NAME, SOURCE_TOKENIZER_NAME, TARGET_TOKENIZER_NAME, Bundle, open_bundle
from runtime.errors import VerificationFailed
from runtime.files import sha256_of
from runtime.golden import check_golden, golden_text
from runtime.manifest import MANIFEST_NAME, Certificate, FileEntry, GraphPair, GraphSpec, Manifest
from runtime.onnx_stepper import OnnxStepper


def write_bundle(
    exportable: Exportable,
    output: Path,
    *,
    force: bool = False,
    plan: VerificationPlan = FULL_PLAN,
    say: Say = say_nothing,
) -> Bundle:
    """Publishes the bundle at `output`.

    Raises:
        UserError: `output` is occupied, or the model is too large.
        VerificationFailed: the graphs, or the golden examples, are not what PyTorch computes. Nothing is left behind.
    """
    with published(output, force=force) as folder:
        say("tracing the encoder and the decoder step")
        graphs = _write_graphs(exportable, folder)
        for name, tokenizer in (
            (SOURCE_TOKENIZER_NAME, exportable.source_tokenizer),
            (TARGET_TOKENIZER_NAME, exportable.target_tokenizer),
        ):
            (folder / name).write_text(tokenizer.to_text(), encoding="utf-8")
        draft = _manifest(exportable, graphs, (), {})
        stepper = OnnxStepper(_draft_bundle(exportable, draft, folder))
        sources = exportable.encoder_sources()
        certificate = verify(draft, stepper, exportable.model, sources, plan=plan, say=say)
        say("choosing golden examples")
        golden = choose_golden(
            draft,
            stepper,
            exportable.source_tokenizer,
            exportable.target_tokenizer,
            sources or _random_sources(draft),
        )
        (folder / GOLDEN_NAME).write_text(golden_text(golden), encoding="utf-8")
        manifest = _manifest(exportable, graphs, (certificate,), _entries(folder)).signed()
        (folder / MANIFEST_NAME).write_text(manifest.to_text(), encoding="utf-8")
        say("opening the bundle as a server does")
        _open_as_served(folder)
    return open_bundle(output)


def _write_graphs(exportable: Exportable, folder: Path) -> GraphPair:
    traced = trace_graphs(exportable.model)
    (folder / "fp32").mkdir()
    return GraphPair(
        encoder=_write_graph(traced.encoder, folder, "fp32/encoder.onnx"),
        decoder_step=_write_graph(traced.decoder_step, folder, "fp32/decoder_step.onnx"),
    )


def _write_graph(graph: TracedGraph, folder: Path, file: str) -> GraphSpec:
    content = graph.to_bytes()
    (folder / file).write_bytes(content)
    return GraphSpec(
        file=file,
        sha256=hashlib.sha256(content).hexdigest(),
        opset=graph.opset,
        inputs=graph.inputs,
        outputs=graph.outputs,
    )


def _manifest(
    exportable: Exportable, graphs: GraphPair, certificates: tuple[Certificate, ...], files: Mapping[str, FileEntry]
) -> Manifest:
    num_parameters = sum(parameter.numel() for parameter in exportable.model.parameters())
    return Manifest(
        name=exportable.name,
        model={**exportable.model.config.model_dump(mode="json"), "num_parameters": num_parameters},
        source=exportable.source_side,
        target=exportable.target_side,
        special_ids=exportable.special_ids,
        state=exportable.model.state_tensors(),
        graphs={"fp32": graphs},
        default_precision={"cpu": "fp32", "cuda": "fp32"},
        limits=exportable.limits,
        decoding=exportable.decoding,
        provenance=exportable.provenance,
        evaluation=exportable.evaluation,
        certificates=certificates,
        files=dict(files),
    )


def _draft_bundle(exportable: Exportable, manifest: Manifest, folder: Path) -> Bundle:
    """What the stepper needs to run graphs that have no certificate yet, and so are no bundle yet."""
    return Bundle(
        path=folder,
        manifest=manifest,
        source_tokenizer=exportable.source_tokenizer,
        target_tokenizer=exportable.target_tokenizer,
        golden=(),
    )


def _random_sources(manifest: Manifest) -> list[list[int]]:
    random = np.random.default_rng(0)
    longest = min(12, manifest.limits.max_source_tokens) + manifest.source.append_eos
    return [random_source(manifest, int(random.integers(2, longest + 1)), random) for _ in range(NUM_TRIED)]


def _entries(folder: Path) -> dict[str, FileEntry]:
    return {
        path.relative_to(folder).as_posix(): FileEntry(size=path.stat().st_size, sha256=sha256_of(path))
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def _open_as_served(folder: Path) -> None:
    bundle = open_bundle(folder)
    differences = check_golden(bundle, OnnxStepper(bundle), "fp32", "cpu")
    if differences:
        raise VerificationFailed("the golden examples don't hold on a second run", differences)
