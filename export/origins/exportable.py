"""What a bundle is made of, wherever it came from: a trained model, or another bundle."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from attendant.export.status import Say
from attendant.export.tracing.traced import TracedPair
from attendant.export.verification.plan import VerificationPlan
from attendant.runtime.bundle.manifest import (
    Certificate,
    DecodingDefaults,
    Evaluation,
    Limits,
    Manifest,
    Precision,
    Provenance,
    Reference,
    SpecialIds,
)
from attendant.runtime.bundle.tokenizer import EOS_ID, Tokenizer
from attendant.runtime.onnx.stepper import OnnxStepper


@dataclass(frozen=True, slots=True, kw_only=True)
class Exportable(ABC):
    """Everything that a bundle says of itself, except its graphs of other precisions than its base.

    Attributes:
        name: the bundle's, by which requests name the model.
        append_eos: whether the encoder is given EOS after the source.
        sources: token ids of real sources, without EOS: the graphs are verified on them, golden examples come from
            them; random ones do where there are none.
        validation: token ids of held-out sources, without EOS, on which reference distributions are taken.
        validation_name: what they are.
        references: the origin's own of each precision, which are kept if there are no such sources.
    """

    name: str
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
    references: Mapping[Precision, Reference] = field(default_factory=dict)

    @property
    @abstractmethod
    def architecture(self) -> Mapping[str, Any]:
        """The manifest's description of the model."""

    @property
    @abstractmethod
    def special_ids(self) -> SpecialIds: ...

    @property
    def base(self) -> Precision:
        """The precision of `graphs`: fp32, of which all others are made, or int8, of which no other can be made."""
        return "fp32"

    @abstractmethod
    def graphs(self) -> TracedPair:
        """Returns the graphs of the base."""

    @abstractmethod
    def certify(
        self, manifest: Manifest, stepper: OnnxStepper, graphs: TracedPair, *, plan: VerificationPlan, say: Say
    ) -> tuple[Certificate, ...]:
        """Returns the certificates of `graphs`, as `stepper` runs them.

        Raises:
            VerificationFailed: they are not what PyTorch, or the graphs that they were made of, compute.
            UserError: this host can't compute the graphs that they were made of.
        """

    def encoder_sources(self) -> list[list[int]]:
        """The sources as the encoder takes them."""
        ending = [EOS_ID] if self.append_eos else []
        return [[*source, *ending] for source in self.sources if source]
