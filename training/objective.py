"""A model and its loss as one module, which is what data-parallel processes share."""

from torch import Tensor, nn

from training.data.batches import Batch
from training.model import Seq2Seq
from training.output_loss import output_loss


class Objective(nn.Module):
    """What training lowers.

    Attributes:
        model: what is trained.
    """

    def __init__(self, model: Seq2Seq, *, label_smoothing: float) -> None:
        super().__init__()
        self.model = model
        self._label_smoothing = label_smoothing

    def forward(self, batch: Batch) -> Tensor:
        """The batch's smoothed cross-entropy (training/loss.py), summed over its target tokens, in nats."""
        inputs = self.model.joined(batch.source_ids, batch.source_lengths, batch.previous_ids, batch.positions)
        return output_loss(inputs, *self.model.output_layer(), batch.target_ids, label_smoothing=self._label_smoothing)
