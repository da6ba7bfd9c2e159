"""The systems that decode: our stepper with and without CUDA graphs, PyTorch eager and compiled, in fp32 and fp16."""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from attendant.runtime.bundle.bundle import Bundle
from attendant.runtime.bundle.manifest import Precision, Provider
from attendant.runtime.device.buckets import Captures
from attendant.runtime.device.stepper import DeviceStepper
from attendant.runtime.stepper import DecoderState, Ids, StepOutput, Stepper, Taken
from attendant.training.model import Seq2Seq
from attendant.training.model.stepper import TorchStepper

CAPTURE_AFTER = 1
"""Steps before one is recorded: here every shape comes back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A way to decode.

    Attributes:
        make: the stepper; takes seconds.
        is_compiled: every shape is compiled by itself, which takes a minute or so.
    """

    name: str
    precision: Precision
    make: Callable[[], Stepper]
    is_compiled: bool = False


def our_systems(bundle: Bundle, provider: Provider) -> Iterator[System]:
    for precision in ("fp32", "fp16"):
        for cuda_graphs in (False, True):

            def make(precision: Precision = precision, cuda_graphs: bool = cuda_graphs) -> Stepper:
                captures = Captures(limit=256, after=CAPTURE_AFTER)
                return DeviceStepper(bundle, precision, provider, cuda_graphs=cuda_graphs, captures=captures)

            yield System(name=f"attendant{', CUDA graphs' if cuda_graphs else ''}", precision=precision, make=make)


def torch_systems(model: Seq2Seq, provider: Provider) -> Iterator[System]:
    # On the CPU nothing is measured that counts: compiling would only take long, and its LSTM has no fp16.
    choices: list[tuple[Precision, bool]] = [("fp32", False)]
    if provider == "cuda":
        choices += [("fp32", True), ("fp16", False), ("fp16", True)]
    for precision, compiled in choices:

        def make(precision: Precision = precision, compiled: bool = compiled) -> Stepper:
            copied: Any = copy.deepcopy(model)
            if compiled:
                copied.step = torch.compile(copied.step, mode="reduce-overhead")
            return (
                _Autocast(TorchStepper(copied, provider), provider)
                if precision == "fp16"
                else TorchStepper(copied, provider)
            )

        name = f"PyTorch {torch.__version__}, {'torch.compile' if compiled else 'eager'}"
        yield System(name=name, precision=precision, make=make, is_compiled=compiled)


class _Autocast:
    """A stepper of PyTorch's whose products are of fp16, chosen by PyTorch itself."""

    def __init__(self, stepper: TorchStepper, provider: Provider) -> None:
        self._stepper = stepper
        self._provider = provider

    @property
    def vocabulary_size(self) -> int:
        return self._stepper.vocabulary_size

    def encode(self, sources: Sequence[Sequence[int]]) -> DecoderState:
        with self._cast():
            return self._stepper.encode(sources)

    def step(
        self,
        given: DecoderState | Taken,
        previous_ids: Ids,
        *,
        num_candidates: int,
        forced_ids: Ids | None = None,
        banned_ids: Ids | None = None,
        attention: bool = False,
    ) -> tuple[StepOutput, DecoderState]:
        with self._cast():
            return self._stepper.step(
                given,
                previous_ids,
                num_candidates=num_candidates,
                forced_ids=forced_ids,
                banned_ids=banned_ids,
                attention=attention,
            )

    def select(self, given: DecoderState | Taken, rows: Ids) -> DecoderState:
        return self._stepper.select(given, rows)

    def concat(self, given: Sequence[DecoderState | Taken]) -> DecoderState:
        return self._stepper.concat(given)

    def _cast(self) -> torch.autocast:
        return torch.autocast(self._provider, dtype=torch.float16)
