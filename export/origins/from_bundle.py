"""The parts of a bundle that a new one takes over: its fp32 graphs as they are, or its int8 graphs if it has no others.

Graphs keep the certificates that they have. Only int8 graphs whose factors have 8 bits change: every processor computes
what is exported, so they are halved, and certified against the former ones.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import onnx

from attendant.export.origins.exportable import Exportable
from attendant.export.rewriting.int8.halving import halve
from attendant.export.status import Say
from attendant.export.tracing.traced import TracedGraph, TracedPair
from attendant.export.verification.certification import certify_rewritten
from attendant.export.verification.grid import GridComparison
from attendant.export.verification.plan import VerificationPlan
from attendant.runtime.bundle.bundle import Bundle
from attendant.runtime.bundle.graph_content import wide_factors
from attendant.runtime.bundle.manifest import Certificate, GraphSpec, Manifest, Precision, SpecialIds
from attendant.runtime.errors import UserError
from attendant.runtime.onnx.stepper import OnnxStepper


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportableBundle(Exportable):
    """A published bundle, to be published anew with other precisions. No weights of PyTorch are needed.

    Attributes:
        halves: the base is int8, and its factors are halved.
    """

    bundle: Bundle
    halves: bool = False

    @property
    def base(self) -> Precision:
        return "fp32" if "fp32" in self.bundle.manifest.graphs else "int8"

    @property
    def architecture(self) -> Mapping[str, Any]:
        return self.bundle.manifest.model

    @property
    def special_ids(self) -> SpecialIds:
        return self.bundle.manifest.special_ids

    def graphs(self) -> TracedPair:
        """Returns the bundle's own graphs of its base, with halved factors if it `halves`."""
        pair = self.bundle.manifest.graphs[self.base]
        certificates = [one for one in self.bundle.manifest.certificates if one.precision == self.base]
        plain = TracedPair(
            encoder=self._graph(pair.encoder),
            decoder_step=self._graph(pair.decoder_step),
            state=pair.state,
            min_queries=pair.min_queries,
            arithmetic=certificates[0].arithmetic if certificates else {},
        )
        return halve(plain) if self.halves else plain

    def certify(
        self, manifest: Manifest, stepper: OnnxStepper, graphs: TracedPair, *, plan: VerificationPlan, say: Say
    ) -> tuple[Certificate, ...]:
        """Returns the bundle's own certificates, because graphs that stay are the same, byte for byte.

        Those of halved int8 graphs are compared with the former ones.
        """
        own = self.bundle.manifest.certificates
        if not self.halves:
            return tuple(one for one in own if one.precision in ("fp32", self.base))
        former = OnnxStepper(self.bundle, "int8")
        pair = self.bundle.manifest.graphs["int8"]
        grid = GridComparison(manifest, stepper, former, self.encoder_sources(), plan, say, former=pair)
        kept = (one for one in own if one.precision == "fp32")
        return (*kept, certify_rewritten(grid, graphs.arithmetic))

    def _graph(self, spec: GraphSpec) -> TracedGraph:
        model = onnx.load(self.bundle.path / spec.file)
        return TracedGraph(model=model, opset=spec.opset, inputs=spec.inputs, outputs=spec.outputs)


def exportable_bundle(bundle: Bundle, name: str | None = None) -> ExportableBundle:
    """Everything that the bundle says of itself.

    Args:
        name: the new bundle's; None: the same.

    Raises:
        UserError: it has no graphs that others can be made of.
    """
    manifest = bundle.manifest
    if not manifest.graphs.keys() & {"fp32", "int8"}:
        raise UserError(f"the bundle {bundle.path} has no fp32 graphs to make others of: export its run")
    halves = "fp32" not in manifest.graphs and bool(wide_factors(bundle.path, manifest.graphs["int8"]))
    kept = ("fp32",) if halves or "fp32" in manifest.graphs else ("fp32", "int8")
    sources = dict.fromkeys(example.source_tokens for example in bundle.golden)
    return ExportableBundle(
        bundle=bundle,
        halves=halves,
        name=name or manifest.name,
        source_tokenizer=bundle.source_tokenizer,
        target_tokenizer=bundle.target_tokenizer,
        append_eos=manifest.source.append_eos,
        limits=manifest.limits,
        decoding=manifest.decoding,
        provenance=manifest.provenance,
        evaluation=tuple(one for one in manifest.evaluation if one.precision in kept),
        references={name: one for name in manifest.graphs if (one := manifest.reference_of(name)) is not None},
        sources=[bundle.source_tokenizer.ids_of(tokens) for tokens in sources],
    )
