"""Which stepper runs a bundle's graphs on a provider, and which graphs a provider doesn't run."""

from collections.abc import Mapping
from typing import Final, Protocol

from attendant.runtime.bundle.bundle import Bundle
from attendant.runtime.bundle.manifest import Manifest, Precision, Provider
from attendant.runtime.device.stepper import DeviceStepper
from attendant.runtime.errors import UserError
from attendant.runtime.onnx import integer_products
from attendant.runtime.onnx.stepper import OnnxStepper
from attendant.runtime.stepper import Stepper

UNSERVED: Final[Mapping[tuple[Precision, Provider], str]] = {
    ("fp16", "cpu"): (
        "onnxruntime's CPU kernels have no fp16: it computes in fp32 between conversions of every tensor, several "
        "times slower than fp32 itself (https://github.com/microsoft/onnxruntime/issues/25824); "
        "take --precision fp32 or int8, or --provider cuda"
    ),
    ("int8", "cuda"): (
        "its integer products have CPU kernels only, and every step would copy its state to the CPU and back; "
        "take --precision fp32 or fp16, or --provider cpu"
    ),
}


class BundleStepper(Stepper, Protocol):
    """A stepper that says what it runs."""

    precision: Precision
    provider: Provider


def refuse_unserved(precision: Precision, provider: Provider) -> None:
    """Raises UserError where a provider would run these graphs far slower than it should, or wrongly."""
    if reason := UNSERVED.get((precision, provider)):
        raise UserError(f"precision {precision} is not served on {provider}: {reason}")
    if precision == "int8" and not integer_products.are_exact():
        raise UserError(
            "precision int8 is not served on this processor: onnxruntime's products of integers overflow where AVX2 "
            "has no VNNI; take --precision fp32"
        )


def default_precision(manifest: Manifest, provider: Provider) -> Precision:
    """What the manifest names for the provider. Where it names nothing, or an int8 that this processor can't compute:
    fp32 or, where that was left out, what there is; `open_stepper` says why that is not served here.
    """
    plain: Precision = "fp32" if "fp32" in manifest.graphs else next(iter(manifest.graphs))
    precision = manifest.default_precision.get(provider, plain)
    return plain if precision == "int8" and not integer_products.are_exact() else precision


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
        refuse_unserved(precision, provider)
    if provider == "cuda":
        return DeviceStepper(bundle, precision, provider, num_threads, cuda_graphs=cuda_graphs)
    return OnnxStepper(bundle, precision, provider, num_threads)
