"""Checks a published bundle again, on this host."""

from collections.abc import Sequence
from pathlib import Path

from export.from_run import exportable_run
from export.verification import Say, say_nothing, verify
from runtime.bundle import Bundle, open_bundle
from runtime.errors import UserError, VerificationFailed
from runtime.golden import check_golden
from runtime.manifest import Provider
from runtime.onnx_stepper import OnnxStepper
from training.checkpoint import load_run


def recheck(
    path: Path, provider: Provider = "cpu", run: tuple[Path, str] | None = None, *, say: Say = say_nothing
) -> list[str]:
    """Opens the bundle as a server does, and decodes its golden examples in every precision.

    Args:
        run: a run directory and which of its checkpoints; its model is then compared with the graphs.

    Returns:
        What holds, one line each.

    Raises:
        BundleRefused: a file is not what the manifest says.
        VerificationFailed: a golden example, or PyTorch, differs.
    """
    bundle = open_bundle(path)
    held = [f"{len(bundle.manifest.files)} files are what the manifest of {bundle.manifest.version} says"]
    for precision in sorted(bundle.manifest.graphs):
        say(f"decoding the golden examples in {precision}")
        stepper = OnnxStepper(bundle, precision, provider)
        if differences := check_golden(bundle, stepper, precision, provider):
            raise VerificationFailed(f"{path}: {precision} on {provider}: golden examples differ", differences)
        num_examples = sum(example.precision == precision for example in bundle.golden)
        held.append(f"{precision} on {provider}: {num_examples} golden examples hold")
        if run is not None and precision == "fp32":
            held.append(f"{precision} on {provider}: {_compare(bundle, stepper, run, say)}")
    return held


def _compare(bundle: Bundle, stepper: OnnxStepper, run: tuple[Path, str], say: Say) -> str:
    exportable = exportable_run(load_run(*run), bundle.manifest.name)
    _refuse_other_model(bundle, exportable.model.state_tensors(), exportable.provenance.checkpoint, run[0])
    certificate = verify(bundle.manifest, stepper, exportable.model, exportable.encoder_sources(), say=say)
    tokens = certificate.tokens
    return (
        f"{tokens.num_identical} of {tokens.num_compared} decodings identical to PyTorch's, {tokens.num_excused} "
        f"differ by a tie; largest error {max(certificate.errors.values()):.1e}"
    )


def _refuse_other_model(bundle: Bundle, state: Sequence[object], checkpoint: str, run: Path) -> None:
    """A bundle of other weights would differ in every number; this says so in one line."""
    exported = bundle.manifest.provenance.checkpoint
    if tuple(state) != bundle.manifest.graphs["fp32"].state or checkpoint != exported:
        raise UserError(f"{run} holds the weights {checkpoint}, the bundle was exported from {exported}: name its run")
