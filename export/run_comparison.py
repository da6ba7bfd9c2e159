"""Compares a published bundle's graphs with the run that they were exported from."""

from collections.abc import Iterator
from pathlib import Path

from attendant.export.origins.from_bundle import exportable_bundle
from attendant.export.origins.from_model import exportable_run
from attendant.export.status import Say
from attendant.export.verification.certification import certify_rewritten, certify_traced
from attendant.export.verification.grid import GridComparison
from attendant.runtime.bundle.bundle import Bundle
from attendant.runtime.bundle.manifest import Certificate, Precision
from attendant.runtime.bundle_stepper import BundleStepper
from attendant.runtime.errors import UserError
from attendant.runtime.onnx.stepper import OnnxStepper
from attendant.training.model.stepper import TorchStepper
from attendant.training.run.loading import load_run


def compare_with_run(
    bundle: Bundle, precision: Precision, stepper: BundleStepper, run: Path, checkpoint: str, say: Say
) -> Iterator[str]:
    """Compares the fp32 graphs with the run's model, and the int8 graphs with the fp32 graphs.

    Yields:
        What holds, one line each.

    Raises:
        UserError: the run is not the one that the bundle was exported from.
        VerificationFailed: the graphs differ.
    """
    if "fp32" not in bundle.manifest.graphs:
        yield "not compared with the run, since the fp32 graphs were left out"
    elif precision == "fp32":
        yield _compare_fp32(bundle, stepper, run, checkpoint, say)
    elif precision == "int8":
        sources = exportable_bundle(bundle).encoder_sources()
        grid = GridComparison(bundle.manifest, stepper, OnnxStepper(bundle), sources, say=say)
        certificate = certify_rewritten(grid, {})
        yield f"{_agreement(certificate)} to fp32's; the same bits alone and in batches"


def _compare_fp32(bundle: Bundle, stepper: BundleStepper, run: Path, checkpoint: str, say: Say) -> str:
    manifest, exportable = bundle.manifest, exportable_run(load_run(run, checkpoint), bundle.manifest.name)
    ours, theirs = exportable.provenance.checkpoint, manifest.provenance.checkpoint
    if exportable.model.state_tensors() != manifest.graphs["fp32"].state or ours != theirs:
        # A bundle of other weights would differ in every number; this says so in one line.
        raise UserError(f"{run} holds the weights {ours}, the bundle was exported from {theirs}: name its run")
    grid = GridComparison(manifest, stepper, TorchStepper(exportable.model), exportable.encoder_sources(), say=say)
    certificate = certify_traced(grid, exportable.model)
    ties = f", {certificate.tokens.num_excused} differ by a tie"
    return f"{_agreement(certificate)} to PyTorch's{ties}; largest error {max(certificate.errors.values()):.1e}"


def _agreement(certificate: Certificate) -> str:
    return f"{certificate.tokens.num_identical} of {certificate.tokens.num_compared} decodings identical"
