"""What a bundle is made of, wherever it came from."""

from collections.abc import Sequence
from dataclasses import dataclass

from runtime.manifest import DecodingDefaults, Evaluation, Limits, Provenance, SourceSide, SpecialIds, TargetSide
from runtime.tokenizer import EOS_ID, Tokenizer, special_ids
from training.model import Seq2Seq


@dataclass(frozen=True, slots=True, kw_only=True)
class Exportable:
    """A trained model with all that its bundle says of it.

    Attributes:
        name: the bundle's, by which requests name the model.
        append_eos: whether the encoder is given EOS after the source.
        sources: token ids of real sources, without EOS: the graphs are verified on them, golden examples come from
            them; random ones do where there are none.
    """

    name: str
    model: Seq2Seq
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    append_eos: bool
    limits: Limits
    decoding: DecodingDefaults
    provenance: Provenance
    evaluation: tuple[Evaluation, ...] = ()
    sources: Sequence[Sequence[int]] = ()

    @property
    def special_ids(self) -> SpecialIds:
        return special_ids(self.model.start_id)

    @property
    def source_side(self) -> SourceSide:
        return SourceSide(vocabulary_size=self.source_tokenizer.vocabulary_size, append_eos=self.append_eos)

    @property
    def target_side(self) -> TargetSide:
        return TargetSide(vocabulary_size=self.target_tokenizer.vocabulary_size)

    def encoder_sources(self) -> list[list[int]]:
        """The sources as the encoder takes them."""
        ending = [EOS_ID] if self.append_eos else []
        return [[*source, *ending] for source in self.sources if source]
