"""Which stepper runs a bundle's graphs on a provider, and which graphs a provider doesn't run."""

from collections.abc import Mapping
from typing import Final, Protocol

from attendant.runtime.bundle.bundle import Bundle
from attendant.runtime.bundle.manifest import Precision, Provider
from attendant.runtime.device.stepper import DeviceStepper
from attendant.runtime.errors import UserError
from attendant.runtime.onnx.integer_products import refuse_inexact
from attendant.runtime.onnx.stepper import OnnxStepper
from attendant.runtime.stepper import Stepper

UNSERVED: Final[Mapping[tuple[Precision, Provider], str]] = {
    ("fp16", "cpu"): (
        "onnxruntime's CPU kernels have no fp16: it computes in fp32 between conversions of every tensor, several "
        "times slower than fp32 itself (https://github.com/microsoft/onnxruntime/issues/25824): it is for CUDA"
    ),
    ("int8", "cuda"): (
        "its integer products have CPU kernels only, and every step would copy its state to the CPU and back"
    ),
}


class BundleStepper(Stepper, Protocol):
    """A stepper that says what it runs."""

    precision: Precision
    provider: Provider


def refuse_unserved(bundle: Bundle, precision: Precision, provider: Provider) -> None:
    """Raises UserError if a provider would run these graphs far slower than it should, or this host wrongly."""
    if reason := UNSERVED.get((precision, provider)):
        others = [one for one in bundle.manifest.graphs if (one, provider) not in UNSERVED]
        remedy = f"choose precision {' or '.join(others)}" if others else "the bundle has no other precision"
        raise UserError(f"precision {precision} is not served on {provider}: {reason}; {remedy}")
    refuse_inexact(bundle, precision)


def default_precision(bundle: Bundle, provider: Provider) -> Precision:
    """Returns the precision that serves unless the caller chooses another.

    It is the one that the manifest names for the provider. If it names none, or an int8 that this host can't compute,
    it is fp32; if the bundle has no fp32 either, whichever it has, and `open_stepper` says why that is not served.
    """
    graphs = bundle.manifest.graphs
    plain: Precision = "fp32" if "fp32" in graphs else next(iter(graphs))
    preferred = bundle.manifest.default_precision.get(provider, plain)
    try:
        refuse_inexact(bundle, preferred)
    except UserError:
        return plain
    return preferred


def why_not_default(bundle: Bundle, precision: Precision, provider: Provider) -> str:
    """Returns why a precision serves that is not the one that the manifest names; an empty string if it is."""
    preferred = bundle.manifest.default_precision.get(provider)
    if preferred in (precision, None):
        return ""
    try:
        refuse_inexact(bundle, preferred)
    except UserError as refusal:
        return refusal.summary
    return f"chosen by --precision; the bundle's default is {preferred}"


def open_stepper(
    bundle: Bundle,
    precision: Precision = "fp32",
    provider: Provider = "cpu",
    num_threads: int | None = None,
    *,
    cuda_graphs: bool = False,
) -> BundleStepper:
    """The stepper that serves: on CUDA the state stays on the device.

    Raises:
        UserError: the bundle has no such precision, the host no such provider, or the two don't go together.
        BundleRefused: the graphs' real inputs or outputs differ from the manifest; one line each.
    """
    if precision in bundle.manifest.graphs:
        refuse_unserved(bundle, precision, provider)
    if provider == "cuda":
        return DeviceStepper(bundle, precision, provider, num_threads, cuda_graphs=cuda_graphs)
    return OnnxStepper(bundle, precision, provider, num_threads)
