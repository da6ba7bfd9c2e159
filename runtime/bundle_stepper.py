"""Opens the stepper that serves a bundle on a provider, and checks its decoding by the bundle's golden examples."""

import logging
from collections import defaultdict
from collections.abc import Mapping
from typing import Final, Protocol

import numpy as np

from attendant.runtime.bundle.bundle import Bundle, BundleRefused, GoldenExample
from attendant.runtime.bundle.manifest import Precision, Provider
from attendant.runtime.decoding.batch import decode_all
from attendant.runtime.decoding.hypothesis import Hypothesis
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.errors import UserError, reason_of
from attendant.runtime.onnx.device import DeviceStepper
from attendant.runtime.onnx.stepper import OnnxStepper, refuse_inexact
from attendant.runtime.stepper import Stepper

log = logging.getLogger(__name__)

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
    """A stepper of a bundle's graphs."""

    precision: Precision
    provider: Provider


def default_precision(bundle: Bundle, provider: Provider) -> Precision:
    """Returns the precision that serves unless the caller chooses another.

    The manifest names it for the provider. If it names none, or an int8 of 8 bits, the default is fp32; if the bundle
    has no fp32 either, another one, for which `open_stepper` may raise the reason.
    """
    graphs = bundle.manifest.graphs
    plain: Precision = "fp32" if "fp32" in graphs else next(iter(graphs))
    preferred = bundle.manifest.default_precision.get(provider, plain)
    if preferred == plain:  # there is no other: the graphs need not be read for it
        return plain
    try:
        refuse_inexact(bundle, preferred)
    except UserError:
        return plain
    return preferred


def open_stepper(
    bundle: Bundle, precision: Precision = "fp32", provider: Provider = "cpu", num_threads: int | None = None
) -> BundleStepper:
    """Opens the stepper that serves. On CUDA, its state stays on the device.

    Raises:
        UserError: the bundle doesn't have the precision, the host not the provider, or the two can't be combined.
        BundleRefused: the graphs' real inputs or outputs differ from the manifest; one line each.
    """
    graphs = bundle.manifest.graphs
    if precision in graphs and (reason := UNSERVED.get((precision, provider))):
        others = [other for other in graphs if (other, provider) not in UNSERVED]
        remedy = f"choose precision {' or '.join(others)}" if others else "the bundle has no other precision"
        raise UserError(f"precision {precision} is not served on {provider}: {reason}; {remedy}")
    if provider == "cuda":
        return DeviceStepper(bundle, precision, provider, num_threads)
    return OnnxStepper(bundle, precision, provider, num_threads)


def open_checked(bundle: Bundle, precision: Precision, provider: Provider, num_threads: int) -> BundleStepper:
    """Opens the stepper that serves, and checks that it decodes the bundle's golden examples on this host.

    Raises:
        UserError: as `open_stepper`.
        BundleRefused: the graphs' inputs or outputs differ from the manifest, or their decodings from the examples.
    """
    stepper = open_stepper(bundle, precision, provider, num_threads)
    if differences := check_decoding(bundle, stepper, precision, provider):
        raise BundleRefused(bundle.path, differences)
    return stepper


def check_decoding(bundle: Bundle, stepper: Stepper, precision: Precision, provider: str) -> list[str]:
    """Decodes the bundle's golden examples on this host, after a check of the graphs' vocabularies.

    Args:
        stepper: the bundle's graphs of `precision` on `provider`.

    Returns:
        One line per difference: a graph that fails, a vocabulary of another size, an example with other tokens or
        scores; empty if there is none.
    """
    graphs, decoded = bundle.graphs_in(precision), "the last symbols"
    try:
        if differences := _symbol_differences(bundle, stepper):
            return differences
        decoded = "the golden examples"
        return _golden_differences(bundle, stepper, precision, provider)
    # The graphs have never run: any exception is their fault.
    except Exception as error:
        log.debug("a check failed", exc_info=True)
        return [f"{graphs.encoder.file} and {graphs.decoder_step.file}: decoding {decoded} fails: {reason_of(error)}"]


def _symbol_differences(bundle: Bundle, stepper: Stepper) -> list[str]:
    """Checks that the graphs have all symbols of the tokenizers: a missing one would crash the engine."""
    manifest = bundle.manifest
    num_source, num_target = manifest.source.vocabulary_size, manifest.target.vocabulary_size
    last = np.array([num_target - 1], np.int64)
    state = stepper.encode([bundle.source_ids([num_source - 1])])
    start = np.array([manifest.special_ids.start], np.int64)
    output, state = stepper.step(state, start, num_candidates=num_target, forced_ids=last)
    if not np.array_equal(np.sort(output.candidate_ids[0]), np.arange(num_target)):
        return [f"{bundle.manifest.name}: the candidates of a step are not the {num_target} target symbols"]
    stepper.step(state, last, num_candidates=1)
    return []


def _golden_differences(bundle: Bundle, stepper: Stepper, precision: Precision, provider: str) -> list[str]:
    tolerance = score_tolerance(bundle, precision, provider)
    differences: list[str] = []
    groups: dict[DecodingOptions, list[tuple[int, GoldenExample, list[int]]]] = defaultdict(list)
    for number, example in enumerate(bundle.golden, 1):
        if example.precision != precision:
            continue
        ids = bundle.source_ids(bundle.source_tokenizer.ids_of(example.source_tokens))
        groups[options_of(example)].append((number, example, ids))
    for options, members in groups.items():
        hypotheses = decode_all(stepper, [ids for _, _, ids in members], options, bundle.manifest.special_ids)
        for (number, example, _), (best, *_) in zip(members, hypotheses, strict=True):
            tokens = bundle.target_tokenizer.tokens_of(best.token_ids)
            differences += _differences(number, example, tokens, best, tolerance)
    return differences


def score_tolerance(bundle: Bundle, precision: Precision, provider: str) -> float:
    """Returns the tolerance of the provider's certificate, else the largest one of this precision."""
    certificates = [each for each in bundle.manifest.certificates if each.precision == precision]
    own = [each for each in certificates if each.provider == provider]
    return max(certificate.score_tolerance for certificate in own or certificates)


def _differences(
    number: int, example: GoldenExample, tokens: list[str], best: Hypothesis, tolerance: float
) -> list[str]:
    name = f"golden example {number} ({' '.join(example.source_tokens)}; beam_size {example.beam_size})"
    if tuple(tokens) != example.target_tokens:
        return [f"{name}: tokens are '{' '.join(tokens)}', must be '{' '.join(example.target_tokens)}'"]
    return [
        f"{name}: {field} is {value:.6f}, must be {expected:.6f} within {tolerance:g}"
        for field, value, expected in (
            ("score", best.score, example.score),
            ("log_prob", best.log_prob, example.log_prob),
        )
        # Written so that NaN fails.
        if not abs(value - expected) <= tolerance * max(1.0, abs(expected))
    ]


def options_of(example: GoldenExample) -> DecodingOptions:
    return DecodingOptions(
        beam_size=example.beam_size,
        length_penalty=example.length_penalty,
        length_penalty_offset=example.length_penalty_offset,
        max_length=example.max_length,
    )
