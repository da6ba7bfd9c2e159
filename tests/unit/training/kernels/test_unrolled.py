"""Steps by hand give what torch's own layers give, which go through autograd."""

import pytest
import torch
from torch import nn

from attendant.training.kernels.gates import GATES, CellKind, activate
from attendant.training.kernels.unrolled import unroll
from attendant.training.model.cells import RNN_CLASSES, STATE_NAMES

NUM_ROWS, NUM_STEPS, INPUT_SIZE, HIDDEN_SIZE = 3, 5, 4, 6
CELLS = list(RNN_CLASSES)


def layer(kind: CellKind) -> nn.RNNBase:
    torch.manual_seed(0)
    return RNN_CLASSES[kind](INPUT_SIZE, HIDDEN_SIZE, batch_first=True).double()


def random_inputs(kind: CellKind) -> list[torch.Tensor]:
    """The inputs and the first state's parts."""
    shapes = [(NUM_ROWS, NUM_STEPS, INPUT_SIZE), *[(NUM_ROWS, HIDDEN_SIZE)] * len(STATE_NAMES[kind])]
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("kind", CELLS)
def test_outputs_and_gradients(kind: CellKind) -> None:
    rnn = layer(kind)
    inputs, *state = random_inputs(kind)
    leaves = [inputs, *state, *rnn.parameters()]
    first = tuple(part.unsqueeze(0) for part in state)
    expected = rnn(inputs, first if len(first) > 1 else first[0])[0]
    found = unroll(kind, rnn, inputs, tuple(state))
    torch.testing.assert_close(found, expected)
    weighting = torch.randn_like(expected)
    gradients = [torch.autograd.grad((outputs * weighting).sum(), leaves) for outputs in (found, expected)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("kind", CELLS)
def test_gates_by_hand(kind: CellKind) -> None:
    gates, cell = GATES[kind], layer(kind)
    inputs, *state = random_inputs(kind)
    projected = inputs[:, 0] @ cell.weight_ih_l0.T + cell.bias_ih_l0
    recurrent = state[0] @ cell.weight_hh_l0.T + cell.bias_hh_l0
    products = (projected + recurrent,) if gates.adds else (projected, recurrent)
    new_state = activate(gates, products, tuple(state))
    first = tuple(part.unsqueeze(0) for part in state)
    expected = cell(inputs[:, :1], first if len(first) > 1 else first[0])[1]
    expected_state = tuple(part[0] for part in (expected if len(first) > 1 else (expected,)))
    torch.testing.assert_close(new_state, expected_state)
    weightings = [torch.randn_like(part) for part in new_state]
    leaves = [inputs, *state, *cell.parameters()]
    gradients = [
        torch.autograd.grad(sum((part * by).sum() for part, by in zip(parts, weightings, strict=True)), leaves)
        for parts in (new_state, expected_state)
    ]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("kind", CELLS)
def test_states_keep_32_bits_where_products_have_16(kind: CellKind) -> None:
    gates = GATES[kind]
    num_gates = {"lstm": 4, "gru": 3, "rnn": 1}[kind]
    products = [
        torch.randn(NUM_ROWS, num_gates * HIDDEN_SIZE).bfloat16().requires_grad_()
        for _ in range(1 if gates.adds else 2)
    ]
    state = [torch.randn(NUM_ROWS, HIDDEN_SIZE, requires_grad=True) for _ in STATE_NAMES[kind]]
    new_state = activate(gates, tuple(products), tuple(state))
    assert {part.dtype for part in new_state} == {torch.float32}
    sum(part.sum() for part in new_state).backward()
    assert {product.grad.dtype for product in products} == {torch.bfloat16}


@pytest.mark.parametrize("kind", ["gru", "rnn"])
def test_in_bfloat16(kind: CellKind) -> None:
    rnn = layer(kind).float()
    inputs, *state = (tensor.detach().float().requires_grad_() for tensor in random_inputs(kind))
    full = unroll(kind, rnn, inputs, tuple(state))
    with torch.autocast("cpu", torch.bfloat16):
        low = unroll(kind, rnn, inputs, tuple(state))
    assert low.dtype == torch.bfloat16
    torch.testing.assert_close(low.float(), full, rtol=0, atol=0.02)
    gradients = [torch.autograd.grad(outputs.float().square().sum(), rnn.weight_hh_l0)[0] for outputs in (full, low)]
    assert gradients[1].dtype == torch.float32
    assert torch.cosine_similarity(*(gradient.flatten() for gradient in gradients), dim=0) > 0.99
