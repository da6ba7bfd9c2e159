"""The weights of a checkpoint, and how those of recurrent layers are called in it and in ours.

Shapes: H hidden size, G gates.
"""

import pickle
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attendant.runtime.errors import UserError

PARTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


class Weights:
    """Each tensor is taken by its name; what nobody took is known at the end."""

    def __init__(self, path: Path, tensors: Mapping[str, Any]) -> None:
        self._path = path
        self._left = dict(tensors)

    def take(self, name: str) -> Tensor:
        """A tensor [...] in float32. Raises UserError where there is none."""
        found = self._left.pop(name, None)
        if not isinstance(found, Tensor):
            raise UserError(f"{self._path}: it has no weights {name}, which its model should have")
        return found.float()

    def cell(self, ours: str, theirs: str) -> dict[str, Tensor]:
        """The tensors [G H, ...] of one direction of a recurrent layer, by our names; their gates are in torch's order.

        Args:
            ours: the layer's name.
            theirs: the name of its parts, with {} for the part.
        """
        return {f"{ours}.{part}_l0": self.take(theirs.format(part)) for part in PARTS}

    def encoder(self, theirs: str, *, num_layers: int, bidirectional: bool) -> dict[str, Tensor]:
        """The tensors of all layers of an encoder that is one of torch's recurrent modules.

        Args:
            theirs: its name.
        """
        directions = {"forward_rnn": "", "backward_rnn": "_reverse"} if bidirectional else {"forward_rnn": ""}
        found: dict[str, Tensor] = {}
        for layer in range(num_layers):
            for ours, ending in directions.items():
                found |= self.cell(f"encoder.layers.{layer}.{ours}", f"{theirs}.{{}}_l{layer}{ending}")
        return found

    def decoder(self, theirs: Iterable[str]) -> dict[str, Tensor]:
        """The tensors of a decoder's layers, given the name of each layer's parts."""
        found: dict[str, Tensor] = {}
        for layer, name in enumerate(theirs):
            found |= self.cell(f"decoder.cells.{layer}.rnn", name)
        return found

    def refuse_others(self) -> None:
        """Raises UserError where weights are left that nobody took."""
        if self._left:
            raise UserError(f"{self._path}: weights of what can't be imported: {', '.join(sorted(self._left))}")


def read_torch(path: Path, *plain: type) -> dict[str, Any]:
    """A dictionary that torch has saved.

    torch's own unpickler reads it, which builds tensors and plain values and calls nothing that the file names.

    Args:
        plain: further classes that may be built, which hold data and do nothing.

    Raises:
        UserError: it can't be read, or names something else.
    """
    try:
        with torch.serialization.safe_globals(list(plain)):
            found = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise UserError(f"{path}: can't be read: {error.strerror or error}") from None
    except pickle.UnpicklingError as error:
        if named := re.search(r"(?:GLOBAL|Unsupported class) (\S+)", str(error)):
            raise UserError(
                f"{path}: it is made of {named[1]}, which would have to be executed: save it anew as tensors, "
                "dictionaries, lists, text and numbers"
            ) from None
        raise UserError(f"{path}: no checkpoint that torch has saved") from None
    except (RuntimeError, ValueError, EOFError, KeyError, AttributeError, TypeError):
        raise UserError(f"{path}: no checkpoint that torch has saved") from None
    if not isinstance(found, dict):
        raise UserError(f"{path}: no checkpoint: it holds a {type(found).__name__}")
    return found


def table_of(path: Path, checkpoint: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A dictionary in a checkpoint. Raises UserError where there is none."""
    found = checkpoint.get(name)
    if not isinstance(found, dict):
        raise UserError(f"{path}: no checkpoint of this toolkit: it has no {name}")
    return found
