"""A bundle as requests meet it."""

from dataclasses import dataclass

from attendant.runtime.bundle import graph_io
from attendant.runtime.bundle.bundle import Bundle
from attendant.runtime.bundle.manifest import Limits, Manifest, Precision
from attendant.runtime.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BundleModel:
    """A bundle's graphs in one precision, and what may be asked of them; equal to nothing but itself.

    Attributes:
        limits: in force here: the manifest's, or what a budget of rows leaves of them.
    """

    bundle: Bundle
    precision: Precision
    limits: Limits

    @property
    def manifest(self) -> Manifest:
        return self.bundle.manifest

    @property
    def name(self) -> str:
        return self.manifest.name

    @property
    def has_attention(self) -> bool:
        return graph_io.has_attention(self.manifest.graphs[self.precision].decoder_step)


def limits_in_force(manifest: Manifest, max_rows: int) -> Limits:
    """The manifest's limits, where no beam is wider than the rows that the engine has in all."""
    limits = manifest.limits
    return limits.model_copy(
        update={
            "max_beam_size": min(limits.max_beam_size, max_rows),
            "max_num_hypotheses": min(limits.max_num_hypotheses, max_rows),
        }
    )


def refuse_few_rows(manifest: Manifest, max_rows: int) -> None:
    """Raises UserError where requests that set nothing would need more rows than there are."""
    if max_rows < (beam_size := manifest.decoding.beam_size):
        raise UserError(
            f"max_rows is {max_rows}: {manifest.name} searches with {beam_size} live hypotheses by default, so it must "
            f"be at least {beam_size}"
        )
