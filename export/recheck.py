"""Checks a published bundle again, on this host. Only a comparison with its run needs PyTorch and onnx."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from attendant.export.status import Say, say_nothing
from attendant.runtime.bundle.bundle import Bundle
from attendant.runtime.bundle.manifest import Precision, Provider
from attendant.runtime.bundle.signature import open_signed_bundle
from attendant.runtime.bundle_stepper import BundleStepper, check_decoding
from attendant.runtime.device.stepper import DeviceStepper
from attendant.runtime.errors import UserError, VerificationFailed, some_lines
from attendant.runtime.onnx.stepper import OnnxStepper, refuse_inexact
from attendant.runtime.process import LOAD_MIB, LOAD_SECONDS, limited


def recheck(
    path: Path,
    provider: Provider = "cpu",
    run: tuple[Path, str] | None = None,
    *,
    trusted: Sequence[Path] = (),
    limits: tuple[float, int] = (LOAD_SECONDS, LOAD_MIB),
    say: Say = say_nothing,
) -> list[str]:
    """Opens the bundle as a server does, and decodes its golden examples in every precision.

    Args:
        run: a run directory and which of its checkpoints; its model is then compared with the fp32 graphs, and those
            with the int8 graphs.
        trusted: public keys or certificates, of which one must have signed it; none: nobody need have.
        limits: seconds and MiB that opening it, and checking each precision, may take.

    Returns:
        What holds, one line each.

    Raises:
        BundleRefused: a file is not what the manifest says.
        UserError: the run is not the one that the bundle was exported from, the provider is not there, or this host
            can compute nothing of the bundle exactly.
        VerificationFailed: a golden example, or PyTorch, differs.
    """
    within = partial(
        limited,
        what=f"the bundle {path} is refused",
        seconds=limits[0],
        mib=limits[1],
        remedy="; --load-seconds and --load-mib say what it may take",
    )
    bundle: Bundle = within(lambda: open_signed_bundle(path, trusted))
    held = [f"{len(bundle.manifest.files)} files are what the manifest of {bundle.manifest.version} says"]
    if trusted:
        held.append(f"signed, as {' or '.join(map(str, trusted))} confirms")
    for precision in sorted(bundle.manifest.graphs):
        say(f"decoding the golden examples in {precision}")
        if (precision, provider) == ("int8", "cuda"):
            held.append("int8 on cuda: not checked, since it is not served there")
            continue
        try:
            refuse_inexact(bundle, precision)
        except UserError as refusal:
            if len(bundle.manifest.graphs) == 1:
                raise
            held.append(f"int8 on cpu: not checked: {refusal}")
            continue
        stepper, differences = within(partial(_checked, bundle, precision, provider))
        if differences:
            raise VerificationFailed(
                f"{path}: {precision} on {provider}: golden examples differ", some_lines(differences)
            )
        num_examples = sum(example.precision == precision for example in bundle.golden)
        how = ", through conversions: CUDA's kernels have not run" if (precision, provider) == ("fp16", "cpu") else ""
        held.append(f"{precision} on {provider}: {num_examples} golden examples hold{how}")
        if run is not None:
            from attendant.export.run_comparison import compare_with_run  # noqa: PLC0415  # PyTorch and onnx

            held += [
                f"{precision} on {provider}: {line}" for line in compare_with_run(bundle, precision, stepper, *run, say)
            ]
    return held


def _checked(bundle: Bundle, precision: Precision, provider: Provider) -> tuple[BundleStepper, list[str]]:
    """The stepper of a precision, and what differs."""
    # Not `open_stepper`: on the CPU fp16 is not served, but what there is of it can be checked.
    stepper: BundleStepper = (
        DeviceStepper(bundle, precision, provider) if provider == "cuda" else OnnxStepper(bundle, precision)
    )
    return stepper, check_decoding(bundle, stepper, precision, provider)
