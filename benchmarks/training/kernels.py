"""What each kernel of a training step gains: forward and backward, beside the plain way, in turns.

python -m benchmarks.training.kernels [--rounds N]
"""

import argparse
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attendant.training.kernels.cells import STATE_NAMES, CellKind, CellState
from attendant.training.kernels.loss import smoothed_cross_entropy
from attendant.training.kernels.output_loss import output_loss
from attendant.training.kernels.products import fast_products
from attendant.training.model.cells import CellLoop, DecoderCell
from attendant.training.model.dropout import Dropout

ROWS, STEPS, HIDDEN, VOCABULARY = 64, 20, 512, 8000
CPU = torch.device("cpu")
Work = Callable[[], Tensor]


def loop(kind: CellKind, *, looped: bool) -> Work:
    """A decoder's cell that is fed its own output, T times."""
    cell = DecoderCell(kind, HIDDEN, HIDDEN, HIDDEN)
    known = torch.randn(STEPS, ROWS, HIDDEN)

    def work() -> Tensor:
        state: CellState = (torch.zeros(ROWS, HIDDEN),) * len(STATE_NAMES[kind])
        steps = CellLoop(cell, known, ROWS, STEPS) if looped else None
        for each in known:
            state = cell.step(torch.cat([each, state[0]], 1), state) if steps is None else steps.step(state[0], state)
        return state[0].sum()

    return work


def loss(*, together: bool) -> Work:
    inputs, target_ids = torch.randn(ROWS * STEPS, HIDDEN), torch.randint(3, VOCABULARY, (ROWS * STEPS,))
    layer = nn.Linear(HIDDEN, VOCABULARY)
    if together:
        return lambda: output_loss(inputs, layer.weight, layer.bias, target_ids, label_smoothing=0.1)
    return lambda: smoothed_cross_entropy(F.linear(inputs, layer.weight, layer.bias), target_ids, label_smoothing=0.1)


def linear() -> Work:
    layer, inputs = nn.Linear(HIDDEN, 4 * HIDDEN), torch.randn(ROWS * STEPS, HIDDEN)
    return lambda: layer(inputs).sum()


def dropout(*, ours: bool) -> Work:
    inputs, module = torch.randn(ROWS, STEPS, HIDDEN, requires_grad=True), Dropout(0.3)
    return lambda: torch.sum(module(inputs) if ours else F.dropout(inputs, 0.3))


def seconds(work: Work, precision: str, *, fast: bool = True) -> float:
    begun = time.process_time()  # of one thread: what others take of the machine does not count
    with fast_products(CPU) if fast else nullcontext():
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            total = work()
        total.backward()  # type: ignore[no-untyped-call]
    return time.process_time() - begun


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training.kernels", description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    arguments = parser.parse_args()
    rounds = arguments.rounds
    torch.set_num_threads(1)
    torch.manual_seed(0)
    product = linear()
    pairs: dict[str, tuple[Callable[[], float], Callable[[], float]]] = {
        "products": (
            lambda: seconds(product, arguments.precision),
            lambda: seconds(product, arguments.precision, fast=False),
        )
    }

    def compare(name: str, ours: Work, plain: Work) -> None:
        pairs[name] = (
            lambda: seconds(ours, arguments.precision),
            lambda: seconds(plain, arguments.precision),
        )

    for kind in STATE_NAMES:
        compare(f"looped, {kind}", loop(kind, looped=True), loop(kind, looped=False))
    compare("output_loss", loss(together=True), loss(together=False))
    compare("dropout", dropout(ours=True), dropout(ours=False))
    sizes = f"{ROWS} rows, {STEPS} steps, {HIDDEN} units, {VOCABULARY} symbols"
    print(f"{sizes}, one thread, {arguments.precision}; processor time, medians of {rounds} rounds\n")
    print("| kernel | ms | plain, ms | times as fast |\n|---|---|---|---|")
    for name, works in pairs.items():
        found: tuple[list[float], list[float]] = ([], [])
        for place in range(rounds + 2):
            for times, work in zip(found, works, strict=True):
                took = work()
                if place >= 2:
                    times.append(took)
        ours, plain = (statistics.median(times) * 1000 for times in found)
        print(f"| {name} | {ours:.2f} | {plain:.2f} | {plain / ours:.2f} |", flush=True)


if __name__ == "__main__":
    main()
