"""A recurrence over a whole sequence that is known beforehand.

Shapes: T steps, R rows, I inputs, H hidden size, G = 4 H (LSTM), 3 H (GRU) or H (tanh RNN).
"""

import itertools
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from attendant.training.kernels.gates import GATES, CellKind, CellState, Gates, full
from attendant.training.kernels.precision import without_autocast


def unroll(kind: CellKind, rnn: nn.RNNBase, inputs: Tensor, state: CellState) -> Tensor:
    """The hidden states [R, T, H] over inputs [R, T, I], from the first state's parts [R, H].

    torch has fused kernels for it, cuDNN's and for an LSTM on a CPU oneDNN's. On a CPU it leaves the other cells to
    autograd step by step; there the steps are ours, and each weight's gradient is one product over all of them.

    Args:
        rnn: a one-layer `nn.LSTM`, `nn.GRU` or `nn.RNN`, `batch_first`: the weights.
    """
    if kind == "lstm" or inputs.device.type != "cpu":
        first = tuple(part.unsqueeze(0) for part in state)
        outputs: Tensor = rnn(inputs, first if len(first) > 1 else first[0])[0]
        return outputs
    gates = GATES[kind]
    bias = rnn.bias_ih_l0 + rnn.bias_hh_l0 if gates.adds else rnn.bias_ih_l0
    projected = F.linear(inputs.transpose(0, 1).contiguous(), rnn.weight_ih_l0, bias)
    hidden: Tensor = _Unrolled.apply(  # type: ignore[no-untyped-call]
        gates, projected, rnn.weight_hh_l0, None if gates.adds else rnn.bias_hh_l0, *state
    )
    return hidden.transpose(0, 1)


class _Unrolled(torch.autograd.Function):
    """From projected inputs [T, R, G] to hidden states [T, R, H]."""

    @staticmethod
    def forward(
        ctx: Any, gates: type[Gates], projected: Tensor, weight: Tensor, bias: Tensor | None, *state: Tensor
    ) -> Tensor:
        ctx.dtypes = [None if tensor is None else tensor.dtype for tensor in (weight, bias, *state)]
        weight = weight.to(projected.dtype)
        bias = None if bias is None else bias.to(projected.dtype)
        hiddens = projected.new_empty(len(projected) + 1, *state[0].shape)  # before each step, and after the last
        hiddens[0] = state[0]
        state, steps = full(state), []
        with without_autocast(projected.device):
            for step, inputs in enumerate(projected.unbind()):
                recurrent = torch.addmm(inputs if bias is None else bias, hiddens[step], weight.T)
                state, kept = gates.forward(full((recurrent,) if bias is None else (inputs, recurrent)), state)
                hiddens[step + 1] = state[0]
                steps.append(kept)
        ctx.gates = gates
        ctx.save_for_backward(weight, hiddens, *itertools.chain.from_iterable(steps))
        return hiddens[1:]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        weight, hiddens, *kept = ctx.saved_tensors
        num_kept = len(kept) // len(gradient)
        steps = [kept[start : start + num_kept] for start in range(0, len(kept), num_kept)]
        of_projected = hiddens.new_empty(len(steps), hiddens.shape[1], len(weight))
        of_recurrent = of_projected if ctx.gates.adds else torch.empty_like(of_projected)
        (of_outputs,) = full((gradient,))
        of_state = tuple(torch.zeros_like(of_outputs[0]) for _ in ctx.dtypes[2:])
        for step in reversed(range(len(steps))):
            of_products, of_old = ctx.gates.backward(steps[step], (of_state[0] + of_outputs[step], *of_state[1:]))
            of_projected[step], of_recurrent[step] = of_products[0], of_products[-1]
            (of_hidden,) = full((torch.mm(of_recurrent[step], weight),))
            of_state = (of_hidden if of_old[0] is None else of_hidden.add_(of_old[0]), *of_old[1:])
        rows = of_recurrent.flatten(0, 1)
        of_weight = torch.mm(rows.T, hiddens[:-1].flatten(0, 1))
        of_bias = None if ctx.dtypes[1] is None else rows.sum(0)
        found = zip((of_weight, of_bias, *of_state), ctx.dtypes, strict=True)
        return None, of_projected, *(None if of is None else of.to(dtype) for of, dtype in found)
