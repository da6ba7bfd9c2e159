"""The recurrent cells, products inside a loop over time, and dropout.

The cells are functions from a step's products and the old state to the new state. They are made of ordinary operations:
a decoder runs them step by step, an export traces them, and autograd finds their gradients, of which derivatives by
hand were measured to be no faster.

Shapes: R rows, T steps, I inputs, H hidden size, G outputs of a product: 4 H (LSTM), 3 H (GRU) or H (tanh RNN).
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from attendant.training.kernels.hardware import product_dtype, usual_products, without_autocast

CellKind = Literal["lstm", "gru", "rnn"]

CellState = tuple[Tensor, ...]  # Tensors [R, H] in the order of `STATE_NAMES`.
STATE_NAMES: Final[dict[CellKind, tuple[str, ...]]] = {
    "lstm": ("hidden", "cell"),
    "gru": ("hidden",),
    "rnn": ("hidden",),
}

RNN_CLASSES: Final[dict[CellKind, type[nn.LSTM] | type[nn.GRU] | type[nn.RNN]]] = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "rnn": nn.RNN,
}
"""torch's layers: they hold the weights, in torch's order of the gates."""


class RecurrentWeights(NamedTuple):
    """W [G, I] and b [G] of the inputs, U [G, H] and b' [G] of the hidden state."""

    of_inputs: Tensor
    of_hidden: Tensor
    input_bias: Tensor
    hidden_bias: Tensor


def weights_of(rnn: nn.RNNBase, number: int = 0) -> RecurrentWeights:
    """Returns the weights of a layer in one direction; missing biases are zeros.

    Args:
        number: index of the layer and direction among all, direction by direction.
    """
    of_inputs, of_hidden, *biases = rnn.all_weights[number]
    if not biases:
        zeros = of_inputs.new_zeros(len(of_inputs))
        return RecurrentWeights(of_inputs, of_hidden, zeros, zeros)
    return RecurrentWeights(of_inputs, of_hidden, *biases)


def lstm(product: Tensor, state: CellState) -> CellState:
    """Computes long short-term memory (Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000).

    i, f, o = sigmoid(W x + U h + b); g = tanh(W_g x + U_g h + b_g); c' = f c + i g; h' = o tanh(c').

    Args:
        product: W x + U h + b, [R, G].
        state: hidden and cell, [R, H] each.

    Returns:
        the new state, [R, H] each, like the other cells.
    """
    _, cell = state
    input_gate, forget_gate, candidate, output_gate = product.chunk(4, -1)
    cell = forget_gate.sigmoid() * cell + input_gate.sigmoid() * candidate.tanh()
    return output_gate.sigmoid() * cell.tanh(), cell


def gru(projected: Tensor, recurrent: Tensor, state: CellState) -> CellState:
    """Computes a gated recurrent unit (Cho et al. 2014), with the reset gate after the recurrent product, as in cuDNN.

    r, z = sigmoid(W x + U h + b); n = tanh(W_n x + b_n + r (U_n h + b'_n)); h' = (1 - z) n + z h.

    Args:
        projected: W x + b, [R, G].
        recurrent: U h + b', [R, G].
        state: hidden, [R, H].
    """
    (hidden,) = state
    reset_input, update_input, candidate_input = projected.chunk(3, -1)
    reset_hidden, update_hidden, candidate_hidden = recurrent.chunk(3, -1)
    reset = (reset_input + reset_hidden).sigmoid()
    update = (update_input + update_hidden).sigmoid()
    candidate = (candidate_input + reset * candidate_hidden).tanh()
    return (candidate + update * (hidden - candidate),)


def adds(kind: CellKind) -> bool:
    """Returns True if the cell needs only the sum of its two products, of the inputs and of the hidden state."""
    return kind != "gru"


def next_state(kind: CellKind, products: Sequence[Tensor], state: CellState) -> CellState:
    """Returns the cell's new state.

    Args:
        products: [R, G] each: W x + U h + b; of a GRU, W x + b and U h + b'.
        state: the old state, [R, H] each.
    """
    match kind:
        case "lstm":
            return lstm(products[0], state)
        case "gru":
            return gru(products[0], products[1], state)
        case "rnn":
            # The simple recurrent network (Elman 1990): h' = tanh(W x + U h + b).
            return (products[0].tanh(),)


def step_of(weights: RecurrentWeights, kind: CellKind, inputs: Tensor, state: CellState) -> CellState:
    """Returns the state of a unidirectional layer after a step.

    Args:
        inputs: [R, I].
        state: the state before the step, [R, H] each.

    Returns:
        [R, H] each.
    """
    projected, recurrent = products_of(weights, inputs, state)
    return next_state(kind, (projected + recurrent,) if adds(kind) else (projected, recurrent), state)


def products_of(weights: RecurrentWeights, inputs: Tensor, state: CellState) -> tuple[Tensor, Tensor]:
    """Returns W x + b and U h + b' of a step, [R, G] each."""
    projected = F.linear(inputs, weights.of_inputs, weights.input_bias)
    return projected, F.linear(state[0], weights.of_hidden, weights.hidden_bias)


def unroll(rnn: nn.RNNBase, inputs: Tensor, state: CellState | None = None) -> Tensor:
    """Runs a unidirectional layer over all steps of every row.

    Args:
        inputs: [R, T, I].
        state: the first state, [R, H] each. If None, it is zeros.

    Returns:
        hidden states [R, T, H].
    """
    first = None if state is None else tuple(part.unsqueeze(0) for part in state)
    outputs: Tensor = rnn(inputs, first[0] if first is not None and len(first) == 1 else first)[0]
    return outputs


def unroll_unequal(rnn: nn.RNNBase, inputs: Tensor, lengths: Tensor) -> tuple[Tensor, CellState]:
    """Runs a unidirectional layer, from a state of zeros, over each row's own number of steps.

    Args:
        inputs: [R, T, I].
        lengths: [R] int64, at least 1.

    Returns:
        hidden states [R, T, H], zeros beyond the lengths; and the states at each row's last step, [R, H] each.
    """
    packed = pack_padded_sequence(inputs, lengths.cpu(), batch_first=True, enforce_sorted=False)
    outputs, states = rnn(packed)
    padded, _ = pad_packed_sequence(outputs, batch_first=True, total_length=inputs.shape[1])
    return padded, tuple(state.squeeze(0) for state in states)


class LoopedProduct:
    """y_t = x_t W' + a_t for t = 0, 1, ... T - 1; or the sum of several products, x_t W' + z_t U' + a_t.

    Autograd alone would compute a gradient of W's size at every step and add them up, which takes most of a training
    loop's time. Here each step only computes the gradient of x_t; W's is one product over all steps, sum_t y_t' x_t.

    Args:
        addends: a, [T, B, G], independent of the loop. The products are in its type.
        weights: W, U, ..., all of them [G, I] for all rows, or all [B, G, I].
    """

    def __init__(self, addends: Tensor, *weights: Tensor) -> None:
        self._steps = _Steps(addends.detach(), [weight.detach().to(addends.dtype) for weight in weights])
        self._end: Tensor = _AllSteps.apply(self._steps, addends, *weights)  # type: ignore[no-untyped-call]

    def __call__(self, *inputs: Tensor) -> Tensor:
        """Returns the next step's y [B, G] of x [B, I], z, ..., one for each matrix."""
        product: Tensor = _OneStep.apply(self._steps, self._end, *inputs)  # type: ignore[no-untyped-call]
        return product


def looped_linear(layer: nn.Linear, num_rows: int, num_steps: int) -> LoopedProduct:
    """Returns the layer as a looped product."""
    bias = layer.weight.new_zeros(layer.out_features) if layer.bias is None else layer.bias
    return LoopedProduct(at_every_step(bias, num_rows, num_steps), layer.weight)


def at_every_step(bias: Tensor, num_rows: int, num_steps: int) -> Tensor:
    """Returns a bias [G] as addends [T, B, G], in the type of products."""
    return bias.to(product_dtype(bias)).expand(num_steps, num_rows, -1)


class _Steps:
    """The shared data of a looped product's steps: their inputs and, in the backward pass, the gradients of their y.

    Several matrices are joined along I, and so are their inputs: one product is faster than several.
    """

    def __init__(self, addends: Tensor, weights: list[Tensor]) -> None:
        num_steps, num_rows, _ = addends.shape
        self.addends = addends
        self.sizes = [weight.shape[-1] for weight in weights]
        self.weight = weights[0] if len(weights) == 1 else torch.cat(weights, -1)
        self.inputs = self.weight.new_empty(num_steps, num_rows, sum(self.sizes))
        self.gradients = addends.new_empty(0)
        self.num_taken = 0
        self.steps_with_gradient: list[int] = []

    def product(self, step: int, inputs: Sequence[Tensor]) -> Tensor:
        """Returns y_t of x_t, z_t, ..., and keeps these."""
        kept = self.inputs[step]
        for place, each in zip(torch.split(kept, self.sizes, 1), inputs, strict=True):
            place.copy_(each)
        if self.weight.dim() == 2:
            return torch.addmm(self.addends[step], kept, self.weight.T)
        with usual_products():
            product = torch.baddbmm(self.addends[step].unsqueeze(1), kept.unsqueeze(1), self.weight.transpose(1, 2))
        return product.squeeze(1)

    def input_gradients(self, step: int, gradient: Tensor) -> tuple[Tensor, ...]:
        """Returns the gradients of a step's inputs from that of y_t."""
        if not self.steps_with_gradient or step >= self.steps_with_gradient[-1]:  # a backward pass begins
            self.gradients, self.steps_with_gradient = self.addends.new_empty(self.addends.shape), []
        self.steps_with_gradient.append(step)
        self.gradients[step] = gradient
        if self.weight.dim() == 2:
            return torch.split(torch.mm(gradient, self.weight), self.sizes, 1)
        with usual_products():
            return torch.split(torch.bmm(gradient.unsqueeze(1), self.weight).squeeze(1), self.sizes, 1)

    def weight_gradients(self) -> tuple[Tensor, ...]:
        """Returns the gradients of W, U, ..., from those of all y that the loss depends on."""
        for step in set(range(len(self.addends))).difference(self.steps_with_gradient):
            self.gradients[step] = 0
        if self.weight.dim() == 2:
            gradients = torch.mm(self.gradients.flatten(0, 1).T, self.inputs.flatten(0, 1))
        else:
            gradients = torch.bmm(self.gradients.permute(1, 2, 0), self.inputs.transpose(0, 1))
        return torch.split(gradients, self.sizes, -1)


class _OneStep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, steps: _Steps, end: Tensor, *inputs: Tensor) -> Tensor:
        del end  # an input for autograd alone, so that the backward pass of `_AllSteps` follows all steps'
        ctx.steps, ctx.step, ctx.dtypes = steps, steps.num_taken, [each.dtype for each in inputs]
        steps.num_taken += 1
        with without_autocast(inputs[0].device):
            return steps.product(ctx.step, inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        gradients = ctx.steps.input_gradients(ctx.step, gradient)
        return None, None, *(each.to(dtype) for each, dtype in zip(gradients, ctx.dtypes, strict=True))


class _AllSteps(torch.autograd.Function):
    """Takes no part in the forward pass. Its backward pass, after that of all steps, gives the weights' gradients."""

    @staticmethod
    def forward(ctx: Any, steps: _Steps, addends: Tensor, *weights: Tensor) -> Tensor:
        ctx.steps, ctx.dtypes = steps, [weight.dtype for weight in weights]
        return addends.new_empty(0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        del gradient  # it has no elements
        of_weights = zip(ctx.steps.weight_gradients(), ctx.dtypes, strict=True)
        return None, ctx.steps.gradients, *(each.to(dtype) for each, dtype in of_weights)


RANGE: Final = 2**16  # Number of values of 16 random bits.


class Dropout(nn.Module):
    """In training an element is zero with probability p, else divided by 1 - p (Srivastava et al. 2014).

    On a CPU, where torch draws one random number after another, each of 64 bits serves four elements: p is rounded to a
    multiple of 2^-16.

    Args:
        probability: p, in [0, 1).
    """

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.num_dropped = min(round(probability * RANGE), RANGE - 1)

    def forward(self, inputs: Tensor) -> Tensor:
        """Returns inputs [...] of floats with some elements dropped; the same tensor in evaluation mode."""
        if not self._drops:
            return inputs
        if inputs.device.type != "cpu":
            return F.dropout(inputs, self.num_dropped / RANGE)
        return self._drop(inputs, _kept(inputs.shape, self.num_dropped).to(inputs.dtype))

    def looped(self, like: Tensor, num_steps: int) -> Callable[[Tensor], Tensor]:
        """Returns `forward` for the steps of a loop, whose inputs [...] have the shape and type of `like`.

        Their random numbers are drawn at once.
        """
        if not self._drops or like.device.type != "cpu":
            return self.forward
        kept = iter(_kept((num_steps, *like.shape), self.num_dropped).to(like.dtype).unbind())
        return lambda inputs: self._drop(inputs, next(kept))

    @property
    def _drops(self) -> bool:
        return self.training and self.num_dropped > 0

    def _drop(self, inputs: Tensor, kept: Tensor) -> Tensor:
        return (inputs * kept).mul_(RANGE / (RANGE - self.num_dropped))


def _kept(shape: tuple[int, ...], num_dropped: int) -> Tensor:
    """Returns the elements that are kept, [*shape] bool on the CPU, drawn from torch's global generator."""
    num_elements = torch.Size(shape).numel()
    words = torch.empty(-(-num_elements // 4), dtype=torch.int64).random_(-(2**63), None)
    return (words.view(torch.int16)[:num_elements] >= num_dropped - RANGE // 2).view(shape)
