"""The weights of a checkpoint, and how those of recurrent layers are called in it and in ours.

Shapes: H hidden size, G gates.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from attendant.runtime.errors import UserError

PARTS: Final = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
GATES: Final = {"lstm": 4, "gru": 3}


class Weights:
    """The tensors of a checkpoint. Each is taken by its name; those that were never taken are known at the end."""

    def __init__(self, path: Path, tensors: Mapping[str, Any], cell: str) -> None:
        """Stores the tensors.

        Args:
            path: the file, for errors.
            cell: of the recurrent layers: lstm or gru.

        Raises:
            UserError: weights are not finite, or are not floating-point numbers.
        """
        self._path = path
        self._cell = cell
        self._left = {name: self._finite(name, value) for name, value in tensors.items()}

    def _finite(self, name: str, value: Any) -> Any:
        """Returns a tensor in float32, and anything else as it is."""
        if not isinstance(value, Tensor):
            return value
        if not value.is_floating_point() or value.layout is not torch.strided:
            actual = value.dtype if value.layout is torch.strided else value.layout
            raise UserError(f"{self._path}: the weights {name} are {actual}, must be dense floating-point numbers")
        value = value.float()
        if num_wrong := int(value.numel() - value.isfinite().sum()):
            kind = "NaN" if value.isnan().any() else "infinite"
            raise UserError(
                f"{self._path}: the weights {name} are {kind} at {num_wrong:,} of {value.numel():,} places: the "
                "training has diverged; import an earlier checkpoint"
            )
        return value

    def take(self, name: str) -> Tensor:
        """Returns a tensor [...] in float32. Raises UserError if there is none."""
        tensor = self._left.pop(name, None)
        if not isinstance(tensor, Tensor):
            raise UserError(f"{self._path}: it has no weights {name}, which its model should have")
        return tensor

    def recurrent(self, ours: str, theirs: str, hidden_size: int) -> dict[str, Tensor]:
        """Returns the tensors [G H, ...] of one direction of a recurrent layer, whose gates are in torch's order.

        Args:
            ours: the layer's name.
            theirs: the name of its parts, with {} for the part.
            hidden_size: H, as the checkpoint's settings state it.

        Raises:
            UserError: the weights are of another cell or another size.
        """
        tensors = {f"{ours}.{part}_l0": self.take(theirs.format(part)) for part in PARTS}
        shape = list(tensors[f"{ours}.weight_hh_l0"].shape)
        if shape != [GATES[self._cell] * hidden_size, hidden_size]:
            cells = [cell for cell, num_gates in GATES.items() if shape == [num_gates * shape[-1], shape[-1]]]
            actual = f"of {cells[0]} with hidden size {shape[-1]}" if cells else f"of shape {shape}"
            raise UserError(
                f"{self._path}: the weights {theirs.format('weight_hh')} are {actual}; the settings name "
                f"{self._cell} with hidden size {hidden_size}"
            )
        return tensors

    def encoder(self, theirs: str, *, num_layers: int, hidden_size: int, bidirectional: bool) -> dict[str, Tensor]:
        """Returns the tensors of all layers of an encoder that is one of torch's recurrent modules.

        Args:
            theirs: its name.
            hidden_size: of one direction.
        """
        directions = {"forward_rnn": "", "backward_rnn": "_reverse"} if bidirectional else {"forward_rnn": ""}
        tensors: dict[str, Tensor] = {}
        for layer in range(num_layers):
            for ours, ending in directions.items():
                name = f"{theirs}.{{}}_l{layer}{ending}"
                tensors |= self.recurrent(f"encoder.layers.{layer}.{ours}", name, hidden_size)
        return tensors

    def decoder(self, theirs: Iterable[str], hidden_size: int) -> dict[str, Tensor]:
        """Returns the tensors of a decoder's layers, given the name of each layer's parts."""
        tensors: dict[str, Tensor] = {}
        for layer, name in enumerate(theirs):
            tensors |= self.recurrent(f"decoder.cells.{layer}.rnn", name, hidden_size)
        return tensors

    def refuse_others(self) -> None:
        """Raises UserError if weights are left that were not taken."""
        if self._left:
            raise UserError(f"{self._path}: weights of what can't be imported: {', '.join(sorted(self._left))}")
