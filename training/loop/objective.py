"""A model and its loss as one module, which is what data-parallel processes share."""

from torch import Tensor, nn

from attendant.training.data.batches import Batch
from attendant.training.kernels.output_loss import consistent_output_loss, output_loss
from attendant.training.loop.consistency import twice
from attendant.training.model import Seq2Seq


class Objective(nn.Module):
    """What training lowers.

    Attributes:
        model: what is trained.
    """

    def __init__(self, model: Seq2Seq, *, label_smoothing: float, r_drop: float = 0.0) -> None:
        super().__init__()
        self.model = model
        self._label_smoothing = label_smoothing
        self._r_drop = r_drop

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Two sums over the batch's target tokens, in nats.

        Returns:
            what is to be lowered: the smoothed cross-entropy (training/kernels/loss.py), or with R-Drop what
            training/loop/consistency.py
            says; and the smoothed cross-entropy, without a gradient, in any case: what runs are compared by.
        """
        if not self._r_drop:
            total = output_loss(
                self._inputs(batch), *self.model.output_layer(), batch.target_ids, label_smoothing=self._label_smoothing
            )
            return total, total.detach()
        batch = twice(batch)
        total, cross_entropy = consistent_output_loss(
            self._inputs(batch),
            *self.model.output_layer(),
            batch.target_ids,
            label_smoothing=self._label_smoothing,
            r_drop=self._r_drop,
        )
        return total / 2, cross_entropy / 2

    def _inputs(self, batch: Batch) -> Tensor:
        return self.model.joined(batch.source_ids, batch.source_lengths, batch.previous_ids, batch.positions)
