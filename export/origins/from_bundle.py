"""What a bundle gives another one: its fp32 graphs as they are, with the certificates that they have."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import onnx

from attendant.export.origins.exportable import Exportable
from attendant.export.status import Say
from attendant.export.tracing.traced import TracedGraph, TracedPair
from attendant.export.verification.plan import VerificationPlan
from attendant.runtime.bundle.bundle import Bundle
from attendant.runtime.bundle.manifest import Certificate, GraphSpec, Manifest, SpecialIds
from attendant.runtime.errors import UserError
from attendant.runtime.onnx.stepper import OnnxStepper


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportableBundle(Exportable):
    """A published bundle, to be published anew with other precisions. No weights of PyTorch are needed."""

    bundle: Bundle

    @property
    def architecture(self) -> Mapping[str, Any]:
        return self.bundle.manifest.model

    @property
    def special_ids(self) -> SpecialIds:
        return self.bundle.manifest.special_ids

    def graphs(self) -> TracedPair:
        """The bundle's own. Raises UserError: it was published without fp32."""
        pair = self.bundle.manifest.graphs.get("fp32")
        if pair is None:
            raise UserError(f"the bundle {self.bundle.path} has no fp32 graphs to make others of: export its run")
        return TracedPair(
            encoder=self._graph(pair.encoder),
            decoder_step=self._graph(pair.decoder_step),
            state=pair.state,
            min_queries=pair.min_queries,
        )

    def certify(
        self, manifest: Manifest, stepper: OnnxStepper, *, plan: VerificationPlan, say: Say
    ) -> tuple[Certificate, ...]:
        """The bundle's own: the graphs are the same, byte for byte."""
        return tuple(one for one in self.bundle.manifest.certificates if one.precision == "fp32")

    def _graph(self, spec: GraphSpec) -> TracedGraph:
        model = onnx.load(self.bundle.path / spec.file)
        return TracedGraph(model=model, opset=spec.opset, inputs=spec.inputs, outputs=spec.outputs)


def exportable_bundle(bundle: Bundle, name: str | None = None) -> ExportableBundle:
    """Everything that the bundle says of itself.

    Args:
        name: the new bundle's; None: the same.
    """
    manifest = bundle.manifest
    sources = dict.fromkeys(example.source_tokens for example in bundle.golden)
    return ExportableBundle(
        bundle=bundle,
        name=name or manifest.name,
        source_tokenizer=bundle.source_tokenizer,
        target_tokenizer=bundle.target_tokenizer,
        append_eos=manifest.source.append_eos,
        limits=manifest.limits,
        decoding=manifest.decoding,
        provenance=manifest.provenance,
        evaluation=tuple(one for one in manifest.evaluation if one.precision == "fp32"),
        reference=manifest.reference,
        sources=[bundle.source_tokenizer.ids_of(tokens) for tokens in sources],
    )
