"""A bundle in words."""

from collections.abc import Iterator, Sequence
from typing import Final

from attendant.runtime.bundle.bundle import Bundle
from attendant.runtime.bundle.manifest import Certificate, Manifest

REFERENCES: Final = {"pytorch": "PyTorch's", "fp32": "the fp32 graphs'", "int8": "the former int8 graphs'"}
"""Whose decodings a certificate's are compared with."""


def describe(bundle: Bundle) -> Iterator[str]:
    """What the manifest says, for people, line by line."""
    manifest = bundle.manifest
    size = sum(entry.size for entry in manifest.files.values())
    yield f"{manifest.name}  version {manifest.version}  {_bytes(size)}  ({bundle.path})"
    yield ""
    yield from _model_lines(manifest)
    yield ""
    yield "evaluation"
    for one in manifest.evaluation:
        difference = "" if one.difference is None else f" ({one.difference:+.4g} to fp32)"
        yield f"  {one.precision} {one.metric} {one.value:.4g}{difference}  n={one.num_examples}  {one.protocol}"
    if not manifest.evaluation:
        yield "  none was recorded"
    for precision in manifest.graphs:
        if (reference := manifest.reference_of(precision)) is not None and reference.precision == precision:
            signals = ", ".join(reference.signals)
            yield f"  reference distributions, {precision}: {signals}  n={reference.num_examples}  {reference.data}"
    for certificate in manifest.certificates:
        yield ""
        yield from _certificate_lines(certificate)
    served = manifest.default_precision.get("cpu", "nothing")
    yield f"  {len(bundle.golden)} golden examples; served on CPUs by default: {served}"
    yield ""
    yield "graphs"
    for precision, pair in manifest.graphs.items():
        yield f"  {precision}: state {', '.join(f'{tensor.input} ({tensor.scope})' for tensor in pair.state)}"
        for graph in (pair.encoder, pair.decoder_step):
            yield f"  {graph.file}  {_bytes(manifest.files[graph.file].size)}  opset {graph.opset}"
            for kind, specs in (("in", graph.inputs), ("out", graph.outputs)):
                for spec in specs:
                    yield f"    {kind:<3} {spec.name:<20} {spec.dtype:<8} [{_listed(spec.shape)}]"
    yield ""
    yield "provenance"
    made = manifest.provenance
    origin = {"commit": made.commit, "created": made.created, "checkpoint": made.checkpoint, "data": made.data_digest}
    for name, value in (origin | {name: made.versions[name] for name in sorted({*made.versions} - {"commit"})}).items():
        yield f"  {name:<11} {value}"


def _model_lines(manifest: Manifest) -> Iterator[str]:
    limits, decoding = manifest.limits, manifest.decoding
    yield "model"
    for name, value in manifest.model.items():
        shown = ", ".join(f"{key} {one}" for key, one in value.items()) if isinstance(value, dict) else value
        yield f"  {name:<15} {shown}"
    sizes = f"{manifest.source.vocabulary_size} source, {manifest.target.vocabulary_size} target symbols"
    yield f"  vocabularies    {sizes}"
    yield (
        f"  limits          {limits.max_source_tokens} source tokens, {limits.max_target_tokens} target tokens, "
        f"beam {limits.max_beam_size}, {limits.max_num_hypotheses} hypotheses"
    )
    defaults = decoding.model_dump(exclude_none=True)
    yield f"  defaults        {', '.join(f'{name} {value:g}' for name, value in defaults.items())}"


def _certificate_lines(certificate: Certificate) -> Iterator[str]:
    grid, tokens = certificate.grid, certificate.tokens
    yield f"certificate: {certificate.precision} on {certificate.provider}, {certificate.runtime_version}"
    yield f"  host            {certificate.host}"
    yield (
        f"  grid            batches of {_listed(grid.batch_sizes)}; lengths {grid.source_lengths[0]} to "
        f"{grid.source_lengths[-1]}; beams {_listed(grid.beam_sizes)}; {grid.num_steps} teacher-forced steps"
    )
    worst = max(certificate.errors, key=lambda name: certificate.errors[name])
    own = certificate.reference_errors.get(worst)
    beside = "" if own is None else f"; PyTorch's own there {own:.1e}"
    yield f"  largest error   {certificate.errors[worst]:.1e} ({worst}){beside}"
    whose = REFERENCES[certificate.reference]
    ties = f", {tokens.num_excused} differ by a tie" if certificate.reference == "pytorch" else ""
    yield f"  tokens          {tokens.num_identical} of {tokens.num_compared} decodings identical to {whose}{ties}"
    yield f"  alone = batched {'bit for bit' if certificate.batch_invariant else 'not bit for bit'}"
    for name, how in sorted(certificate.arithmetic.items()):
        yield f"  {name}: {how}"


def _listed(numbers: Sequence[object]) -> str:
    return ", ".join(map(str, numbers))


def _bytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 100_000 else f"{size / 1e3:.1f} kB"
