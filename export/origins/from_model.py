"""What a model in PyTorch gives a bundle: graphs to be traced, and the reference that certifies them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attendant.export.origins.exportable import Exportable
from attendant.export.status import Say
from attendant.export.tracing.graphs import trace_graphs
from attendant.export.tracing.traced import TracedPair
from attendant.export.verification.certification import certify_traced
from attendant.export.verification.plan import VerificationPlan
from attendant.runtime.bundle.manifest import Certificate, Manifest, SpecialIds
from attendant.runtime.bundle.tokenizer import special_ids
from attendant.runtime.onnx.stepper import OnnxStepper
from attendant.training.model import Seq2Seq


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportableModel(Exportable):
    """A trained model with all that its bundle says of it."""

    model: Seq2Seq

    @property
    def architecture(self) -> Mapping[str, Any]:
        num_parameters = sum(parameter.numel() for parameter in self.model.parameters())
        return {**self.model.config.model_dump(mode="json"), "num_parameters": num_parameters}

    @property
    def special_ids(self) -> SpecialIds:
        return special_ids(self.model.start_id)

    def graphs(self) -> TracedPair:
        """Raises UserError where the weights are more than one ONNX file can hold."""
        return trace_graphs(self.model)

    def certify(
        self, manifest: Manifest, stepper: OnnxStepper, *, plan: VerificationPlan, say: Say
    ) -> tuple[Certificate, ...]:
        return (certify_traced(manifest, stepper, self.model, self.encoder_sources(), plan=plan, say=say),)
