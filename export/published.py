"""Publishes a folder completely or not at all; and the commands that check, show and sign a bundle.

Nothing here needs PyTorch or onnx, except the comparison with a run. Only `verify` needs onnxruntime.
"""

import argparse
import contextlib
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, get_args

from attendant.runtime.bundle.bundle import GOLDEN_NAME, Bundle, open_bundle
from attendant.runtime.bundle.manifest import (
    MANIFEST_NAME,
    SIGNATURE_NAME,
    Certificate,
    FileEntry,
    Manifest,
    Precision,
    Provider,
)
from attendant.runtime.bundle.signature import open_signed_bundle, sign_bundle
from attendant.runtime.command import require
from attendant.runtime.errors import UserError, VerificationFailed, escaped, shown, some_lines
from attendant.runtime.files import new_folder, path_of, read_text, sha256_of
from attendant.runtime.process import LOAD_MIB, LOAD_SECONDS, limited

if TYPE_CHECKING:
    from attendant.export.origins import ExportableModel
    from attendant.runtime.bundle_stepper import BundleStepper

logger = logging.getLogger(__name__)


def refuse_occupied(output: Path, *, force: bool, marker: str = MANIFEST_NAME) -> None:
    """Raises UserError if an output exists or would be an extra file of a bundle, before any work is done for it.

    `force` replaces only a folder with the file `marker`, which every folder of this kind has.
    """
    for folder in Path(os.path.realpath(output)).parents:  # `resolve` raises if links lead in a circle
        if (folder / MANIFEST_NAME).is_file() and (folder / GOLDEN_NAME).is_file():
            raise UserError(
                f"{output} is inside the bundle {folder}, which may have no other files: name another folder"
            )
    if not output.exists() and not output.is_symlink():
        return
    if not force:
        raise UserError(f"{output} exists already: add --force to replace it, or name another folder")
    if output.is_symlink():
        state = "is a link"
    elif os.path.ismount(output):
        state = "is a mount point"
    elif output.is_dir() and ((output / marker).is_file() or not any(output.iterdir())):
        return
    else:
        state = f"has no {marker}"
    raise UserError(f"{output} exists and {state}, so --force leaves it: remove it yourself, or name another folder")


def refuse_options(options: argparse.Namespace, names: Iterable[str], reason: str) -> None:
    """Raises UserError if one of these options is given."""
    for name in names:
        if getattr(options, name) is not None:
            raise UserError(f"--{name.replace('_', '-')} {reason}")


@contextlib.contextmanager
def publish(output: Path, *, force: bool, marker: str = MANIFEST_NAME) -> Iterator[Path]:
    """Yields a new folder, which becomes `output` when the block succeeds, and is removed when it fails. Raises
    UserError: `output` is occupied, or can't be written.
    """
    refuse_occupied(output, force=force, marker=marker)
    with new_folder(output.absolute(), put=partial(_take_place, force=force, marker=marker)) as folder:
        yield folder


def _take_place(folder: Path, output: Path, *, force: bool, marker: str) -> None:
    refuse_occupied(output, force=force, marker=marker)  # it may have appeared in the meantime
    replaced = folder.with_name(folder.name.replace(".partial-", ".replaced-"))
    try:
        if output.exists():
            output.rename(replaced)
        folder.rename(output)
    except BaseException:
        if replaced.exists() and not output.exists():
            replaced.rename(output)
        raise
    shutil.rmtree(replaced, ignore_errors=True)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Writes a bundle's manifest, with the entries of all its files and the digest."""
    files = {
        path.relative_to(folder).as_posix(): FileEntry(size=path.stat().st_size, sha256=sha256_of(path))
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    signed = manifest.model_copy(update={"files": files}).signed()
    (folder / MANIFEST_NAME).write_text(signed.to_text(), encoding="utf-8")


REFERENCES: Final = {"pytorch": "PyTorch's", "fp32": "the fp32 graphs'", "int8": "the former int8 graphs'"}
"""A certificate's reference -> its name in texts."""


def describe(bundle: Bundle) -> Iterator[str]:
    """Yields a description of the bundle, line by line."""
    manifest = bundle.manifest
    size = sum(entry.size for entry in manifest.files.values())
    yield f"{manifest.name}  version {manifest.version}  {_bytes(size)}  ({bundle.path})"
    yield ""
    yield from _model_lines(manifest)
    yield ""
    yield "evaluation"
    for entry in manifest.evaluation:
        difference = "" if entry.difference is None else f" ({entry.difference:+.4g} to fp32)"
        value = f"{entry.precision} {entry.metric} {entry.value:.4g}{difference}"
        yield f"  {value}  n={entry.num_examples}  {entry.protocol}"
    if not manifest.evaluation:
        yield "  none was recorded"
    for precision in manifest.graphs:
        if (reference := manifest.reference_of(precision)) is not None and reference.precision == precision:
            signals = ", ".join(reference.signals)
            yield f"  reference distributions, {precision}: {signals}  n={reference.num_examples}  {reference.data}"
    if (calibration := manifest.confidence) is not None:
        signals = ", ".join(calibration.signals)
        yield f"  confidence, {calibration.precision}: {signals}  n={calibration.num_examples}  {calibration.data}"
        yield f"    right: {calibration.right}; a warning below {calibration.warn_below:.2f}"
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
        text = ", ".join(f"{key} {part}" for key, part in value.items()) if isinstance(value, dict) else value
        yield f"  {name:<15} {text}"
    sizes = f"{manifest.source.vocabulary_size} source, {manifest.target.vocabulary_size} target symbols"
    sides = {"source": manifest.source.tokens_only, "target": manifest.target.tokens_only}
    outside = " and ".join(side for side, tokens_only in sides.items() if tokens_only)
    yield f"  vocabularies    {sizes}" + (f"; {outside}: tokens only, no texts" if outside else "")
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
        f"  grid            batches of {_listed(grid.batch_sizes)}; lengths {_listed(grid.source_lengths[:1])} to "
        f"{_listed(grid.source_lengths[-1:])}; beams {_listed(grid.beam_sizes)}; {grid.num_steps} teacher-forced steps"
    )
    if certificate.errors:
        worst = max(certificate.errors, key=lambda name: certificate.errors[name])
        own = certificate.reference_errors.get(worst)
        of_pytorch = "" if own is None else f"; PyTorch's own there {own:.1e}"
        yield f"  largest error   {certificate.errors[worst]:.1e} ({worst}){of_pytorch}"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A check that a bundle has passed, of its files, signature, golden examples on this host, or its run.

    Attributes:
        held: False if this host can't make the check; the text, which the command prints, has the reason.
    """

    subject: Literal["files", "signature", "golden", "run"]
    precision: Precision | None = None
    held: bool = True
    text: str

    def __str__(self) -> str:
        return self.text


def verify(
    bundle: str | os.PathLike[str],
    *,
    run: str | os.PathLike[str] | None = None,
    checkpoint: Literal["best", "last"] | None = None,
    provider: Provider = "cpu",
    signature: Sequence[Path] = (),
    load_seconds: float = LOAD_SECONDS,
    load_mib: int = LOAD_MIB,
) -> tuple[Check, ...]:
    """Opens the bundle as a server does, and decodes its golden examples in every precision.

    Args:
        run: the run that it was exported from. Its model is then compared with the fp32 graphs, and these with the
            int8 graphs.
        checkpoint: of the run; if None, the best.
        signature: public keys or certificates, one of which must have signed the bundle; if empty, it may be unsigned.
        load_seconds, load_mib: limits of opening it, and of checking each precision.

    Raises:
        BundleRefused: a file differs from the manifest.
        UserError: the run is not the one that the bundle was exported from, the provider is unknown or missing, this
            host can compute nothing of the bundle exactly, or an argument has a wrong type.
        VerificationFailed: a golden example, or PyTorch, differs.
    """
    from attendant.runtime.onnx.stepper import refuse_inexact  # noqa: PLC0415

    path = path_of("bundle", bundle)
    run_path = None if run is None else path_of("run", run)
    _refuse_wrong_types(provider, signature, load_seconds=load_seconds, load_mib=load_mib)
    signature = [path_of("signature", key) for key in signature]
    if run_path is None and checkpoint is not None:
        raise UserError("--checkpoint is for --run, a run to compare the graphs with")
    if run_path is not None:
        require("torch", "cpu,export")
        require("onnx", "cpu,export")
    within = partial(
        limited,
        subject=f"the bundle {path} is refused",
        seconds=load_seconds,
        mib=load_mib,
        remedy="; --load-seconds and --load-mib set the limits",
    )
    opened: Bundle = within(lambda: open_signed_bundle(path, signature))
    manifest = opened.manifest
    described = f"{len(manifest.files)} files match the manifest of {manifest.version}"
    checks = [Check(subject="files", text=described)]
    if signature:
        checks.append(Check(subject="signature", text=f"signed, as {' or '.join(map(str, signature))} confirms"))
    load = None if run_path is None else cache(partial(_exported_run, manifest, run_path, checkpoint or "best"))
    for precision in sorted(manifest.graphs):
        logger.info("decoding the golden examples in %s", precision)
        golden = partial(Check, subject="golden", precision=precision)
        if (precision, provider) == ("int8", "cuda"):
            checks.append(golden(held=False, text="int8 on cuda: not checked, since it is not served there"))
            continue
        try:
            refuse_inexact(opened, precision)
        except UserError as refusal:
            if len(manifest.graphs) == 1:
                raise
            checks.append(golden(held=False, text=f"int8 on cpu: not checked: {refusal}"))
            continue
        stepper, differences = within(partial(_checked, opened, precision, provider))
        if differences:
            raise VerificationFailed(
                f"{path}: {precision} on {provider}: golden examples differ", some_lines(differences)
            )
        num_examples = sum(example.precision == precision for example in opened.golden)
        how = ", through conversions: CUDA's kernels have not run" if (precision, provider) == ("fp16", "cpu") else ""
        checks.append(golden(text=f"{precision} on {provider}: {num_examples} golden examples hold{how}"))
        if load is not None and not (precision == "fp16" and "fp32" in manifest.graphs):
            compared = _compared_with_run(opened, precision, stepper, load)
            text = f"{precision} on {provider}: {compared}"
            checks.append(Check(subject="run", precision=precision, held="fp32" in manifest.graphs, text=text))
    return tuple(checks)


def _refuse_wrong_types(provider: object, signature: object, **limits: object) -> None:
    if provider not in get_args(Provider):
        raise UserError(f"provider={shown(provider)}: must be {' or '.join(get_args(Provider))}")
    if isinstance(signature, str | os.PathLike) or not isinstance(signature, Iterable):
        raise UserError(f"signature={shown(signature)}: must be a list of paths")
    for name, limit in limits.items():
        if not isinstance(limit, int | float) or not limit > 0:
            raise UserError(f"{name}={shown(limit)}: must be a number above 0")


def _checked(bundle: Bundle, precision: Precision, provider: Provider) -> "tuple[BundleStepper, list[str]]":
    """Returns the stepper of a precision, and the differences of its golden examples."""
    from attendant.runtime.bundle_stepper import check_decoding  # noqa: PLC0415
    from attendant.runtime.onnx.device import DeviceStepper  # noqa: PLC0415
    from attendant.runtime.onnx.stepper import OnnxStepper  # noqa: PLC0415

    # Not `open_stepper`: on the CPU fp16 is not served, but its graphs can be checked.
    stepper: BundleStepper = (
        DeviceStepper(bundle, precision, provider) if provider == "cuda" else OnnxStepper(bundle, precision)
    )
    return stepper, check_decoding(bundle, stepper, precision, provider)


def _exported_run(manifest: Manifest, path: Path, checkpoint: str) -> "ExportableModel":
    """Opens the run that a bundle was exported from. Raises UserError: its weights are others."""
    from attendant.export.origins import exportable_run  # noqa: PLC0415
    from attendant.training.run.loading import load_run  # noqa: PLC0415

    exportable = exportable_run(load_run(path, checkpoint), manifest.name)
    ours, theirs = exportable.provenance.checkpoint, manifest.provenance.checkpoint
    if exportable.model.state != manifest.graphs["fp32"].state or ours != theirs:
        # A bundle of other weights would differ in every number.
        raise UserError(
            f"{path} holds the weights {ours}, the bundle was exported from {theirs}: name its run and its --checkpoint"
        )
    return exportable


def _compared_with_run(
    bundle: Bundle, precision: Precision, stepper: "BundleStepper", load: "Callable[[], ExportableModel]"
) -> str:
    """Compares the fp32 graphs with the run's model, or the int8 graphs with the fp32 graphs; returns the result.

    Both are compared on the run's sources, as by the export: on others, graphs that passed there could fail here.
    `load` opens the run.
    """
    from attendant.export.verification.certification import GridComparison, certify_rewritten, certify_traced  # noqa: PLC0415
    from attendant.runtime.onnx.stepper import OnnxStepper  # noqa: PLC0415

    manifest = bundle.manifest
    if "fp32" not in manifest.graphs:
        return "not compared with the run, since the fp32 graphs were left out"
    exportable = load()
    sources = exportable.encoder_sources()
    if precision == "int8":
        tokens = certify_rewritten(GridComparison(manifest, stepper, OnnxStepper(bundle), sources), {}).tokens
        agreement = f"{tokens.num_identical} of {tokens.num_compared} decodings identical"
        return f"{agreement} to fp32's; the same bits alone and in batches"
    grid = GridComparison(manifest, stepper, exportable.model.reference, sources)
    certificate = certify_traced(grid, exportable.model.exact_reference())
    tokens = certificate.tokens
    return (
        f"{tokens.num_identical} of {tokens.num_compared} decodings identical to PyTorch's, {tokens.num_excused} "
        f"differ by a tie; largest error {max(certificate.errors.values()):.1e}"
    )


def show_verified(options: argparse.Namespace) -> str:
    """Checks a bundle. Returns the checks, one line each."""
    checks = verify(
        options.bundle,
        run=options.run,
        checkpoint=options.checkpoint,
        provider=options.provider,
        signature=options.signature,
        load_seconds=options.load_seconds,
        load_mib=options.load_mib,
    )
    return "\n".join(map(str, checks))


def inspect(options: argparse.Namespace) -> str:
    """Returns the manifest's contents."""
    bundle = limited(lambda: open_bundle(options.bundle), f"the bundle {options.bundle} is refused")
    # A manifest may contain control characters of a terminal.
    return "\n".join(map(escaped, describe(bundle)))


def sign(options: argparse.Namespace) -> str:
    """Writes model.sig. Returns a line with its path. Raises UserError: it exists, without --force; options that
    exclude each other; a bad key or bundle.
    """
    if (options.bundle / SIGNATURE_NAME).exists() and not options.force:
        raise UserError(f"{options.bundle / SIGNATURE_NAME} exists already: add --force to replace it")
    if options.certificate is not None and options.passphrase_file is not None:
        raise UserError("--passphrase-file: the key of a --certificate must not be encrypted")
    if options.chain and options.certificate is None:
        raise UserError("--chain: it leads from a --certificate to its authority, and there is none")
    password = None
    if options.passphrase_file is not None:
        file = options.passphrase_file
        password = read_text(file, f"--passphrase-file {file}").split("\n")[0]
    written = sign_bundle(
        options.bundle, options.key, certificate=options.certificate, chain=options.chain, password=password
    )
    return f"{written}: signed by {options.certificate or options.key}"


COMMANDS: Final = {"verify": show_verified, "inspect": inspect, "sign": sign}
