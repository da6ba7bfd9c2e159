"""The initial weights.

All of them are drawn anew from torch's global generator; a source embedding's row that stands for PAD is zero.
"""

import math
from typing import Final

import torch
from torch import nn

from attendant.runtime.bundle.tokenizer import PAD_ID
from attendant.training.kernels.cells import weights_of
from attendant.training.model.attention.attention import Attention
from attendant.training.model.attention.scores import AdditiveScore
from attendant.training.model.config import Initialization
from attendant.training.model.output import Output

UNIFORM_BOUND: Final = 0.08
NORMAL_DEVIATION: Final = 0.01
ALIGNMENT_DEVIATION: Final = 0.001


def initialize(model: nn.Module, kind: Initialization) -> None:
    """Draws every weight of `model`.

    "glorot": matrices uniform as Glorot and Bengio (2010), recurrent ones orthogonal per gate (Saxe et al. 2014),
    biases zero but for the LSTM's forget gate, which starts open with 1 (Jozefowicz et al. 2015); embeddings uniform
    in [-0.1, 0.1] (Luong et al. 2015).
    "uniform": everything, biases included, uniform in [-0.08, 0.08] (Sutskever et al. 2014, section 3.4).
    "normal": matrices N(0, 0.01^2), recurrent ones orthogonal per gate; those of the attention's score N(0, 0.001^2),
    its vector and all biases zero (Bahdanau et al. 2015, appendix B.1).
    """
    match kind:
        case "glorot":
            _glorot(model)
        case "uniform":
            for parameter in model.parameters():
                nn.init.uniform_(parameter, -UNIFORM_BOUND, UNIFORM_BOUND)
        case "normal":
            _normal(model)
    for module in model.modules():
        if isinstance(module, nn.Embedding) and module.padding_idx is not None:
            nn.init.zeros_(module.weight[PAD_ID])


def _glorot(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            nn.init.uniform_(module.weight, -0.1, 0.1)
        elif isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.RNNBase):
            _initialize_recurrence(module)
        elif isinstance(module, Output) and module.weight is not None:
            nn.init.xavier_uniform_(module.weight)
        elif isinstance(module, AdditiveScore):
            bound = 1 / math.sqrt(len(module.weight))
            nn.init.uniform_(module.weight, -bound, bound)


def _initialize_recurrence(rnn: nn.RNNBase) -> None:
    weights = weights_of(rnn)
    for gate in torch.split(weights.of_inputs, rnn.hidden_size):
        nn.init.xavier_uniform_(gate)
    _make_orthogonal(rnn)
    nn.init.zeros_(weights.input_bias)
    nn.init.zeros_(weights.hidden_bias)
    if isinstance(rnn, nn.LSTM):
        nn.init.ones_(weights.input_bias[rnn.hidden_size : 2 * rnn.hidden_size])


def _normal(model: nn.Module) -> None:
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=NORMAL_DEVIATION)
        else:
            nn.init.zeros_(parameter)
    for module in model.modules():
        if isinstance(module, nn.RNNBase):
            _make_orthogonal(module)
        elif isinstance(module, Attention):
            for parameter in module.score.parameters():
                if parameter.dim() > 1:
                    nn.init.normal_(parameter, std=ALIGNMENT_DEVIATION)


def _make_orthogonal(rnn: nn.RNNBase) -> None:
    """The recurrent matrix of each gate (Saxe et al. 2014)."""
    for gate in torch.split(weights_of(rnn).of_hidden, rnn.hidden_size):
        nn.init.orthogonal_(gate)
