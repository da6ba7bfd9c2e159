"""Tests of the founding papers' models against their equations in numpy: the memory, the first state and three steps.

Shapes here: one source of S positions, vectors without a batch axis.
"""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from attendant.runtime.stepper import attention_layout
from attendant.training.kernels.cells import weights_of
from attendant.training.model import ModelConfig, Seq2Seq

Array = NDArray[np.float64]
State = tuple[Array, ...]

VOCABULARY = 11
SOURCE = [4, 9, 5, 7, 3]
TARGET = [2, 6, 8]


def sigmoid(values: Array) -> Array:
    return 1 / (1 + np.exp(-values))


def softmax(values: Array) -> Array:
    exponents = np.exp(values - values.max())
    return exponents / exponents.sum()


def numbers(tensor: torch.Tensor | None) -> Array:
    assert tensor is not None
    result: Array = tensor.detach().numpy()
    return result


def gru(weights: nn.RNNBase, inputs: Array, state: State) -> State:
    """Returns a GRU's next state (Cho et al. 2014), with the reset gate after the recurrent product, as in cuDNN."""
    of_inputs, of_hidden, input_bias, hidden_bias = map(numbers, weights_of(weights))
    reset_in, update_in, new_in = np.split(of_inputs @ inputs + input_bias, 3)
    reset_hidden, update_hidden, new_hidden = np.split(of_hidden @ state[0] + hidden_bias, 3)
    reset, update = sigmoid(reset_in + reset_hidden), sigmoid(update_in + update_hidden)
    new = np.tanh(new_in + reset * new_hidden)
    return ((1 - update) * new + update * state[0],)


def lstm(weights: nn.RNNBase, inputs: Array, state: State) -> State:
    """Returns an LSTM's next state (Hochreiter and Schmidhuber 1997), with the forget gate of Gers et al. 2000."""
    of_inputs, of_hidden, input_bias, hidden_bias = map(numbers, weights_of(weights))
    gates = np.split(of_inputs @ inputs + input_bias + of_hidden @ state[0] + hidden_bias, 4)
    entry, forget, new, output = sigmoid(gates[0]), sigmoid(gates[1]), np.tanh(gates[2]), sigmoid(gates[3])
    cell = forget * state[1] + entry * new
    return output * np.tanh(cell), cell


CELLS = {"gru": (gru, 1), "lstm": (lstm, 2)}


def direction(kind: str, weights: nn.RNNBase, inputs: list[Array]) -> list[State]:
    """Returns the states after each input; the first state is zero."""
    cell, num_parts = CELLS[kind]
    state, result = (np.zeros(weights.hidden_size),) * num_parts, []
    for each in inputs:
        state = cell(weights, each, state)
        result.append(state)
    return result


def plain_stack(kind: str, encoder: Any, inputs: list[Array]) -> tuple[list[Array], list[State]]:
    """Returns the outputs of the top layer and each layer's last state; the layers have one direction."""
    finals = []
    for layer in encoder.layers:
        states = direction(kind, layer.forward_rnn, inputs)
        inputs = [hidden for hidden, *_ in states]
        finals.append(states[-1])
    return inputs, finals


def linear(layer: Any, values: Array) -> Array:
    product = numbers(layer.weight) @ values
    return product if layer.bias is None else product + numbers(layer.bias)


def logits_of(model: Seq2Seq, readout: Array) -> Array:
    return numbers(model.output.weight) @ readout + numbers(model.output.bias + model.output.never)


class Paper:
    """A model and its inputs. The weights are large enough to show errors."""

    def __init__(self, **config: Any) -> None:
        torch.manual_seed(3)
        sizes = {"embedding_size": 5, "hidden_size": 6, "dropout": 0.0}
        self.model: Any = Seq2Seq(ModelConfig.model_validate(sizes | config), VOCABULARY, VOCABULARY).double().eval()
        for parameter in self.model.parameters():
            nn.init.normal_(parameter, std=0.5)
        self.source = [numbers(self.model.source_embedding.weight)[each] for each in SOURCE]
        self.target = [numbers(self.model.target_embedding.weight)[each] for each in TARGET]

    def check(self, first: list[State], logits: list[Array]) -> None:
        """Checks the first state of each decoder layer, and the logits after each symbol of TARGET."""
        with torch.inference_mode():
            encoded = self.model.encode(torch.tensor([SOURCE]), torch.tensor([len(SOURCE)]))
            rows = encoded.row_tensors
            for part, name in enumerate(self.model.decoder.state_names):
                np.testing.assert_allclose(numbers(rows[name])[0], [state[part] for state in first], rtol=1e-12)
            layout = [torch.from_numpy(each) for each in attention_layout(np.zeros(1, np.int64), 1)]
            for symbol, wanted in zip(TARGET, logits, strict=True):
                result, rows, _ = self.model.step(torch.tensor([symbol]), rows, encoded.source_tensors, *layout)
                np.testing.assert_allclose(numbers(result)[0], wanted, rtol=1e-10)


def test_rnnsearch_equals_its_equations() -> None:
    """Bahdanau et al. 2015, appendix A: bidirectional GRU, additive attention by the previous state, deep output."""
    paper = Paper(
        cell="gru",
        initialization="normal",
        encoder={"bidirectional": True, "hidden_size": 6},
        attention={"score": "additive", "query": "previous", "key_size": 4},
        decoder={"initial_state": "backward", "readout": "maxout"},
    )
    model, (layer,) = paper.model, paper.model.encoder.layers
    forward = [hidden for (hidden,) in direction("gru", layer.forward_rnn, paper.source)]
    backward = [hidden for (hidden,) in direction("gru", layer.backward_rnn, paper.source[::-1])][::-1]
    memory = [np.concatenate(pair) for pair in zip(forward, backward, strict=True)]
    state: State = (np.tanh(linear(model.bridge.layers[0], backward[0])),)  # A.2.2: s_0 = tanh(W_s h_1)
    first, logits = [state], []
    score = model.decoder.attention.score
    for symbol in paper.target:
        query = linear(score.project_query, state[0])  # A.1.2: e_ij = v . tanh(W_a s_(i-1) + U_a h_j)
        energies = [numbers(score.weight) @ np.tanh(query + linear(score.project_keys, each)) for each in memory]
        context = softmax(np.array(energies)) @ np.array(memory)
        state = gru(model.decoder.cells[0].rnn, np.concatenate([symbol, context]), state)
        deep = linear(model.decoder.readout.project, np.concatenate([context, state[0], symbol]))
        logits.append(logits_of(model, np.maximum(*np.split(deep, 2))))
    paper.check(first, logits)


def test_the_rnn_encoder_decoder_equals_its_equations() -> None:
    """Cho et al. 2014, appendix A: one direction; one vector is an input of every step and of the prediction."""
    paper = Paper(
        cell="gru",
        encoder={"bidirectional": False},
        attention={"score": "none"},
        decoder={"source_vector": True, "readout": "maxout"},
    )
    model = paper.model
    _, ((vector,),) = plain_stack("gru", model.encoder, paper.source)
    state: State = (np.tanh(linear(model.bridge.layers[0], vector)),)
    first, logits = [state], []
    for symbol in paper.target:
        state = gru(model.decoder.cells[0].rnn, np.concatenate([symbol, vector]), state)
        deep = linear(model.decoder.readout.project, np.concatenate([vector, state[0], symbol]))
        logits.append(logits_of(model, np.maximum(*np.split(deep, 2))))
    paper.check(first, logits)


def test_deep_lstms_on_reversed_sources_equal_their_equations() -> None:
    """Sutskever et al. 2014: four plain layers; each decoder layer starts with the (h, c) of its encoder layer."""
    paper = Paper(
        cell="lstm",
        residual=False,
        initialization="uniform",
        encoder={"num_layers": 4, "bidirectional": False, "reverse_source": True},
        attention={"score": "none"},
        decoder={"num_layers": 4, "initial_state": "final"},
    )
    model = paper.model
    _, states = plain_stack("lstm", model.encoder, paper.source[::-1])
    first, logits = list(states), []
    for symbol in paper.target:
        inputs = symbol
        for index, cell in enumerate(model.decoder.cells):
            states[index] = lstm(cell.rnn, inputs, states[index])
            inputs = states[index][0]
        logits.append(logits_of(model, inputs))
    paper.check(first, logits)


@pytest.mark.parametrize("readout", ["tanh", "sum", "concatenation", "addition"])
def test_global_attention_with_input_feeding_equals_its_equations(readout: str) -> None:
    """Luong et al. 2015, sections 3.1 and 3.3: the new state is the query; the readout is an input of the next step."""
    paper = Paper(
        cell="lstm",
        encoder={"num_layers": 2, "bidirectional": False},
        attention={"score": "general"},
        decoder={"num_layers": 2, "initial_state": "final", "input_feeding": True, "readout": readout},
    )
    model = paper.model
    memory, states = plain_stack("lstm", model.encoder, paper.source)
    first, logits = list(states), []
    score = model.decoder.attention.score
    fed = np.zeros(12 if readout == "concatenation" else 6)
    for symbol in paper.target:
        inputs = np.concatenate([symbol, fed])
        for index, cell in enumerate(model.decoder.cells):
            states[index] = lstm(cell.rnn, inputs, states[index])
            inputs = states[index][0]
        weights = softmax(np.array([inputs @ linear(score.project_keys, each) for each in memory]))  # eq. 7 and 8
        context = weights @ np.array(memory)
        match readout:
            case "tanh":  # eq. 5
                fed = np.tanh(linear(model.decoder.readout.project, np.concatenate([context, inputs])))
            case "addition":
                fed = inputs + linear(model.decoder.readout.project, context)
            case "sum":
                fed = inputs + context
            case "concatenation":
                fed = np.concatenate([inputs, context])
        logits.append(logits_of(model, fed))
    paper.check(first, logits)
