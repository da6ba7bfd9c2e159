"""Several models that predict together.

Shapes: N members, B sources, R rows, S source positions, V target vocabulary.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from attendant.training.model.seq2seq import Encoded, Seq2Seq


class Ensemble(nn.Module):
    """The mean of its members' next-symbol probabilities (Sutskever et al. 2014, section 3.6).

    The members may differ in architecture and size. They share both vocabularies and the start symbol. A TorchStepper
    takes it in a model's place. State tensors are the members' own; each name has the member's number.

    Attributes:
        members: the models.
        start_id: what the first step is fed.
        target_vocabulary_size: V.
    """

    def __init__(self, members: Sequence[Seq2Seq]) -> None:
        """Takes the models as they are.

        Raises:
            ValueError: no members, or members of several vocabularies or start symbols.
        """
        super().__init__()
        kinds = {(one.source_vocabulary_size, one.target_vocabulary_size, one.start_id) for one in members}
        if len(kinds) != 1:
            raise ValueError("members of an ensemble need the same vocabularies and the same start symbol")
        self.members = nn.ModuleList(members)
        self._members = tuple(members)
        self.target_vocabulary_size, self.start_id = members[0].target_vocabulary_size, members[0].start_id

    def forward(
        self, source_ids: Tensor, source_lengths: Tensor, previous_ids: Tensor, positions: Tensor | None = None
    ) -> Tensor:
        """Teacher forcing as Seq2Seq.forward: the logarithms of the mean probabilities, [B, T, V] or [N, V]."""
        given = (source_ids, source_lengths, previous_ids, positions)
        return _mean_log_probs([member(*given) for member in self._members])

    def encode(self, source_ids: Tensor, source_lengths: Tensor) -> Encoded:
        """Encodes source_ids [B, S] of lengths [B]: what `step` starts from."""
        encoded = [member.encode(source_ids, source_lengths) for member in self._members]
        return Encoded(
            _numbered([one.row_tensors for one in encoded]), _numbered([one.source_tensors for one in encoded])
        )

    def step(
        self,
        previous_ids: Tensor,
        row_tensors: Mapping[str, Tensor],
        source_tensors: Mapping[str, Tensor],
        source_rows: Tensor | None,
        row_slots: Tensor | None,
    ) -> tuple[Tensor, dict[str, Tensor], Tensor | None]:
        """As Seq2Seq.step.

        Returns:
            logits [R, V], which are the logarithms of the mean probabilities; the new row tensors; and the mean of the
            attention weights [R, S], None where a member has no attention.
        """
        found = [
            member.step(previous_ids, _own(row_tensors, number), _own(source_tensors, number), source_rows, row_slots)
            for number, member in enumerate(self._members)
        ]
        weights = [each for _, _, each in found if each is not None]
        return (
            _mean_log_probs([logits for logits, _, _ in found]),
            _numbered([rows for _, rows, _ in found]),
            torch.stack(weights).mean(0) if len(weights) == len(found) else None,
        )


def _mean_log_probs(logits: Sequence[Tensor]) -> Tensor:
    log_probs = torch.stack([torch.log_softmax(each, -1) for each in logits])
    return torch.logsumexp(log_probs, 0) - math.log(len(logits))


def _numbered(of_members: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return {f"{number}.{name}": tensor for number, own in enumerate(of_members) for name, tensor in own.items()}


def _own(tensors: Mapping[str, Tensor], number: int) -> dict[str, Tensor]:
    prefix = f"{number}."
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
