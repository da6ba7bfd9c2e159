"""Scheduled sampling: the decoder learns to go on from symbols of its own too, as it has to when it decodes.

Shapes: B pairs, T target positions.
"""

import torch
from torch import Tensor

from attendant.runtime.bundle.tokenizer import EOS_ID
from attendant.training.data.batches import Batch
from attendant.training.model import Seq2Seq


@torch.no_grad()
def sampled_inputs(model: Seq2Seq, batch: Batch, probability: float) -> Tensor:
    """The decoder's inputs [B, T], each but the first the model's own with this probability (Bengio et al. 2015, 2.4).

    y'_t ~ P(y_t | y_1, ..., y_{t-1}, x) is drawn given the true symbols before it, for all t at once, in place of one
    pass for each t (Duckworth et al. 2019). Where EOS is drawn the true symbol stays: nothing ever follows EOS.
    """
    places = batch.positions[batch.positions % batch.previous_ids.shape[1] > 0]
    chosen = places[torch.rand(places.shape, device=places.device) < probability]
    inputs = batch.previous_ids.flatten().clone()
    if len(chosen):
        logits = model(batch.source_ids, batch.source_lengths, batch.previous_ids, chosen - 1)
        drawn = torch.multinomial(torch.softmax(logits.float(), -1), 1).squeeze(1)
        inputs[chosen] = torch.where(drawn == EOS_ID, inputs[chosen], drawn)
    return inputs.view_as(batch.previous_ids)
