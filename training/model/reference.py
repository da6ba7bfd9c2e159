"""One training step, plainly. Read this first: training computes the same, faster.

It goes symbol by symbol, with the cells as papers write them (training/kernels/cells.py), and every gradient by
autograd. The tests compare the fast way with it (Seq2Seq.readouts with training/kernels): in float64 both have the same
loss and the same gradients. Dropout is left out, since the two ways draw their random numbers in another order.

Shapes: B pairs, S source positions, T target positions, I inputs, D memory size, H hidden size, V target vocabulary.
"""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attendant.runtime.bundle.tokenizer import PAD_ID
from attendant.runtime.stepper import attention_layout
from attendant.training.kernels.cells import STATE_NAMES, CellKind, CellState, step_of, weights_of
from attendant.training.kernels.loss import NEVER_GENERATED
from attendant.training.model.attention import SYMBOLS
from attendant.training.model.encoder import Encoder, RecurrentLayer
from attendant.training.model.seq2seq import Seq2Seq


def reference_loss(
    model: Seq2Seq,
    source_ids: Tensor,
    source_lengths: Tensor,
    previous_ids: Tensor,
    target_ids: Tensor,
    *,
    label_smoothing: float,
) -> Tensor:
    """Returns the smoothed cross-entropy (see training/kernels/loss.py), a sum in nats over all positions except PAD.

    Args:
        source_ids: [B, S] int64, padded; source_lengths: [B] int64, at least 1.
        previous_ids: [B, T] int64: the start symbol, then the target.
        target_ids: [B, T] int64: the target, then EOS, then PAD.
    """
    log_probs = torch.log_softmax(reference_logits(model, source_ids, source_lengths, previous_ids), -1)
    wanted = torch.ones(log_probs.shape[-1], dtype=log_probs.dtype, device=log_probs.device)
    wanted[list(NEVER_GENERATED)] = 0
    uniform = wanted / wanted.sum()
    true = F.one_hot(target_ids, log_probs.shape[-1]).to(log_probs.dtype)
    losses = -((1 - label_smoothing) * true + label_smoothing * uniform).mul(log_probs).sum(-1)
    return losses[target_ids != PAD_ID].sum()


def reference_logits(model: Seq2Seq, source_ids: Tensor, source_lengths: Tensor, previous_ids: Tensor) -> Tensor:
    """Returns the logits [B, T, V] of every next symbol, as Seq2Seq.forward gives them without dropout."""
    source_mask = torch.arange(source_ids.shape[1], device=source_ids.device) < source_lengths.unsqueeze(1)
    memory, finals = encode(model.encoder, model.embedding_of_sources(source_ids), source_mask)
    decoder = model.decoder
    rows = decoder.start(model.bridge(memory, source_mask, finals), source_mask, finals[-1][0])
    source = {} if decoder.attention is None else decoder.attention.source_tensors(memory, source_mask)
    if decoder.copying is not None:
        source[SYMBOLS] = source_ids
    layout = [torch.from_numpy(array) for array in attention_layout(np.arange(len(memory)), len(memory))]
    logits = []
    for symbols in previous_ids.unbind(1):
        of_step, rows, _ = model.step(symbols, rows, source, *layout)
        logits.append(of_step)
    return torch.stack(logits, 1)


def encode(encoder: Encoder, embedded: Tensor, source_mask: Tensor) -> tuple[Tensor, list[CellState]]:
    """Returns the memory [B, S, D] of embedded sources [B, S, I], and each layer's last states; mask [B, S] bool."""
    hidden, finals = embedded, []
    for index, layer in enumerate(encoder.layers):
        assert isinstance(layer, RecurrentLayer)
        directions = [run(layer.cell, layer.forward_rnn, hidden, source_mask, from_the_end=encoder.reverses)]
        if layer.backward_rnn is not None:
            directions.append(run(layer.cell, layer.backward_rnn, hidden, source_mask, from_the_end=True))
        all_outputs, all_finals = zip(*directions, strict=True)
        outputs = torch.cat(all_outputs, -1)
        hidden = outputs + hidden if index >= encoder.first_residual_layer else outputs
        finals.append(tuple(torch.cat(parts, -1) for parts in zip(*all_finals, strict=True)))
    return hidden, finals


def run(
    kind: CellKind, rnn: nn.RNNBase, inputs: Tensor, source_mask: Tensor, *, from_the_end: bool
) -> tuple[Tensor, CellState]:
    """Returns the outputs [B, S, H] of one direction over inputs [B, S, I], and its last state's parts [B, H]."""
    state = (inputs.new_zeros(len(inputs), rnn.hidden_size),) * len(STATE_NAMES[kind])
    outputs: dict[int, Tensor] = {}
    positions = range(inputs.shape[1])
    for position in reversed(positions) if from_the_end else positions:
        is_valid = source_mask[:, position].unsqueeze(1)
        new_state = step_of(weights_of(rnn), kind, inputs[:, position], state)
        state = tuple(torch.where(is_valid, new, old) for new, old in zip(new_state, state, strict=True))
        outputs[position] = state[0]
    return torch.stack([outputs[position] for position in positions], 1), state
