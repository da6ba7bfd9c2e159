"""Reference distributions: what a bundle's answers look like on held-out texts, for servers to compare theirs with."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from attendant.export.status import Say
from attendant.runtime.answers import SIGNALS, distribution_of, signals_of
from attendant.runtime.bundle.bundle import Bundle
from attendant.runtime.bundle.manifest import Manifest, Precision, Reference, search_of
from attendant.runtime.bundle_stepper import BundleStepper
from attendant.runtime.decoding.batch import decode_all
from attendant.runtime.decoding.options import DecodingOptions, default_max_length

NUM_REFERENCE: Final = 1000
"""Texts decoded: with ten bins the index is then about 0.01 by chance, and 0.25 is a shift."""

MIN_REFERENCE: Final = 100
"""With fewer a distribution is noise, and none is better."""


def references_of(
    bundle: Bundle, steppers: Iterable[BundleStepper], sources: Sequence[Sequence[int]], data_name: str, say: Say
) -> dict[Precision, Reference]:
    """Returns the distributions of each stepper's precision; none if there are too few sources. See `_reference_of`."""
    found = {one.precision: _reference_of(bundle, one, sources, data_name, say) for one in steppers}
    return {precision: reference for precision, reference in found.items() if reference is not None}


def with_references(manifest: Manifest, references: Mapping[Precision, Reference]) -> Manifest:
    """Returns the manifest with these distributions: the default precision's apart from the others."""
    default = manifest.default_precision.get("cpu", "fp32")
    others = {precision: reference for precision, reference in references.items() if precision != default}
    return manifest.model_copy(update={"reference": references.get(default), "references": others})


def _reference_of(
    bundle: Bundle, stepper: BundleStepper, sources: Sequence[Sequence[int]], data_name: str, say: Say
) -> Reference | None:
    """Decodes the sources as a request that sets no option is decoded.

    Args:
        sources: ids without EOS; what a request may not give is left out.

    Returns:
        The distributions; None where there are too few sources.
    """
    manifest = bundle.manifest
    asked = [source for source in sources if 0 < len(source) <= manifest.limits.max_source_tokens][:NUM_REFERENCE]
    if len(asked) < MIN_REFERENCE:
        return None
    say(f"decoding {len(asked)} held-out texts in {stepper.precision}, for reference")
    options = [
        DecodingOptions(**search_of(manifest.decoding), max_length=default_max_length(manifest, len(source)))
        for source in asked
    ]
    encoded = [bundle.source_ids(source) for source in asked]
    found = decode_all(stepper, encoded, options, manifest.special_ids)
    values = [
        signals_of(ids, len(source), hypotheses[0])
        for ids, source, hypotheses in zip(encoded, asked, found, strict=True)
    ]
    return Reference(
        num_examples=len(asked),
        precision=stepper.precision,
        data=data_name,
        signals={
            name: distribution_of(column) for name, column in zip(SIGNALS, zip(*values, strict=True), strict=True)
        },
    )
