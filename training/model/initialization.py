"""The initial weights."""

import math

import torch
from torch import nn

from attendant.runtime.bundle.tokenizer import PAD_ID
from attendant.training.kernels.cells import weights_of
from attendant.training.model.attention.scores import AdditiveScore
from attendant.training.model.output import Output


def initialize(model: nn.Module) -> None:
    """Draws every weight anew from torch's global generator.

    Matrices uniform as Glorot and Bengio (2010), recurrent ones orthogonal per gate (Saxe et al. 2014), biases zero
    but for the LSTM's forget gate, which starts open with 1 (Jozefowicz et al. 2015); embeddings uniform in
    [-0.1, 0.1] (Luong et al. 2015).
    """
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            nn.init.uniform_(module.weight, -0.1, 0.1)
            if module.padding_idx is not None:
                nn.init.zeros_(module.weight[PAD_ID])
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
    for gate in torch.split(weights.of_hidden, rnn.hidden_size):
        nn.init.orthogonal_(gate)
    nn.init.zeros_(weights.input_bias)
    nn.init.zeros_(weights.hidden_bias)
    if isinstance(rnn, nn.LSTM):
        nn.init.ones_(weights.input_bias[rnn.hidden_size : 2 * rnn.hidden_size])
