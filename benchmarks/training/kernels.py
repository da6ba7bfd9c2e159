"""What each kernel of a training step gains: forward and backward, beside the plain way, in turns."""

import time
from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attendant.training.kernels.cells import STATE_NAMES, CellKind, CellState, Dropout
from attendant.training.kernels.hardware import fast_products
from attendant.training.kernels.loss import output_loss, smoothed_cross_entropy
from attendant.training.model.decoder import CellLoop, DecoderCell
from benchmarks.command import Context
from benchmarks.harness.measurement import Columns, Visit, measure, part_of, running_system
from benchmarks.harness.results import Part

ROWS, STEPS, HIDDEN, VOCABULARY = 64, 20, 512, 8000
NUM_ROUNDS, NUM_WARM_UPS = 15, 2
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
        return lambda: output_loss(inputs, layer.weight, layer.bias, target_ids, label_smoothing=0.1)[0]
    return lambda: smoothed_cross_entropy(F.linear(inputs, layer.weight, layer.bias), target_ids, label_smoothing=0.1)


def linear() -> Work:
    layer, inputs = nn.Linear(HIDDEN, 4 * HIDDEN), torch.randn(ROWS * STEPS, HIDDEN)
    return lambda: layer(inputs).sum()


def dropout(*, ours: bool) -> Work:
    inputs, module = torch.randn(ROWS, STEPS, HIDDEN, requires_grad=True), Dropout(0.3)
    return lambda: torch.sum(module(inputs) if ours else F.dropout(inputs, 0.3))


def kernels(context: Context) -> Part:
    """Kernels of a training step.

    Forward and backward of each on one thread, beside the plain way and in turns with it: medians of processor time.
    64 rows, 20 steps, 512 units, 8,000 symbols.
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    product = linear()
    # Products are the same: it is what runs them that differs.
    pairs = {"products": (product, product)}
    pairs |= {f"looped, {kind}": (loop(kind, looped=True), loop(kind, looped=False)) for kind in STATE_NAMES}
    pairs["output_loss"] = loss(together=True), loss(together=False)
    pairs["dropout"] = dropout(ours=True), dropout(ours=False)
    systems = []
    for precision in ("fp32", "bf16"):
        for name, (ours, plain) in pairs.items():
            visits = {"_ours": _visit(ours, precision), "_plain": _visit(plain, precision, fast=name != "products")}
            systems.append(running_system(f"{precision}_{name}", f"{name}, {precision}", visits))
    found = measure(systems, NUM_WARM_UPS + (1 if context.quick else NUM_ROUNDS))
    columns: Columns = {
        "ms": "ms_ours",
        "plain, ms": "ms_plain",
        "times as fast": lambda one: one.median("ms_plain") / one.median("ms_ours"),
    }
    return part_of(found, columns, what="kernel")


def _visit(work: Work, precision: str, *, fast: bool = True) -> Visit:
    """Milliseconds of processor time of one thread: what others take of the machine does not count.

    Args:
        fast: with the fast products.
    """

    def visit(number: int) -> dict[str, float]:
        begun = time.process_time()
        with fast_products(CPU) if fast else nullcontext():
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
                total = work()
            total.backward()  # type: ignore[no-untyped-call]
        return {"ms": 1e3 * (time.process_time() - begun)} if number > NUM_WARM_UPS else {}

    return visit
