"""The parts of another toolkit's checkpoint, each checked when it is taken, and the model that a reader makes of them.

Files that torch or numpy has saved are read as tensors and plain values. Nothing that a file names is executed.
Shapes: V symbols, H hidden size, G gates.
"""

import pickle
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from attendant.runtime.bundle.manifest import DecodingDefaults
from attendant.runtime.bundle.tokenizer import SPECIAL_TOKENS, Tokenizer
from attendant.runtime.errors import UserError, some_of
from attendant.runtime.files import reading_error
from attendant.training.model import ModelConfig

PLAIN_KINDS: Final = "biufU"  # Kinds of numpy data types that are read: booleans, integers, floats and texts.


def read_torch(
    path: Path, *plain: type, remedy: str = "save it again, as tensors, dictionaries, lists, text and numbers"
) -> dict[str, Any]:
    """Returns a dictionary that torch has saved.

    torch's own unpickler reads it, which builds tensors and plain values, and calls nothing that the file names. This
    module's functions read numpy's scalars and arrays as plain values.

    Args:
        plain: further classes that may be built: they hold data and do nothing.
        remedy: ends the message about a file that names something else.

    Raises:
        UserError: the file can't be read, or names something else.
    """
    try:
        # torch warns of TorchScript before it refuses it.
        with torch.serialization.safe_globals([*plain, *_NUMPY_READERS]), warnings.catch_warnings(action="ignore"):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise UserError(f"{path}: can't be read: {reading_error(error)}") from None
    except Exception as error:  # damaged content raises a dozen kinds of errors
        if "TorchScript" in str(error):
            raise UserError(f"{path}: it is TorchScript, a program that would have to be executed: {remedy}") from None
        if named := re.search(r"(?:GLOBAL|Unsupported class) (\S+)", str(error)):
            raise UserError(f"{path}: it is made of {named[1]}, which would have to be executed: {remedy}") from None
        raise _unreadable(path, "checkpoint that torch has saved") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: no checkpoint: it holds a {type(content).__name__}")
    return content


def read_arrays(path: Path) -> dict[str, torch.Tensor]:
    """Returns the arrays of a .npz of numpy. Raises UserError: it can't be read, or holds more than plain arrays."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: torch.from_numpy(array) for name, array in archive.items()}
    except OSError as error:
        raise UserError(f"{path}: can't be read: {reading_error(error)}") from None
    except Exception:  # as above
        raise _unreadable(path, "archive of plain arrays (.npz)") from None


def table_of(path: Path, checkpoint: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Returns a dictionary in a checkpoint. Raises UserError if it is missing."""
    table = checkpoint.get(name)
    if not isinstance(table, dict):
        raise UserError(f"{path}: no checkpoint of this toolkit: it has no {name}")
    return table


def checkpoint_file(path: Path, pattern: str, best: str = "") -> Path:
    """Returns the file of a checkpoint: the path itself, or a folder's `best` one, if the toolkit marks it.

    Raises:
        UserError: the folder has no best checkpoint; the message lists those that it has, named like `pattern`.
    """
    if not path.is_dir():
        return path
    if not best:
        raise UserError(f"{path}: is a folder: name {_checkpoints_in(path, pattern)}")
    file = path / best
    if not file.exists():
        state = f"links to {file.readlink()}, which is not there" if file.is_symlink() else "is not there"
        raise UserError(f"{file}: {state}: name {_checkpoints_in(path, pattern)}")
    return file


def _checkpoints_in(folder: Path, pattern: str) -> str:
    matching = sorted(path.name for path in folder.glob(pattern))
    return f"one of its checkpoints: {some_of(matching, 8)}" if matching else f"a checkpoint, {pattern}: it has none"


def _unreadable(path: Path, kind: str) -> UserError:
    size = path.stat().st_size
    return UserError(f"{path}: no {kind}, or truncated or damaged at {size:,} bytes: copy or download it again")


class _DataType:
    """Replaces `numpy.dtype` in a pickle."""

    def __init__(self, code: str, *_: object) -> None:
        self.code, self.order = code, "="

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = state[1]

    def values(self, content: Any) -> np.ndarray:
        """Returns the values [N] that bytes hold. Raises UnpicklingError if their type is not plain."""
        # | marks types without an order of bytes.
        data_type = np.dtype(f"{'' if self.order == '|' else self.order}{self.code}")
        if data_type.kind not in PLAIN_KINDS:
            raise pickle.UnpicklingError(f"GLOBAL numpy.{data_type.name}")
        return np.frombuffer(content, data_type)


class _Array:
    """Replaces an array of numpy in a pickle by its values, without their shape."""

    def __init__(self, *_: object) -> None:
        self.values: list[Any] = []

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, _, data_type, _, content = state
        self.values = data_type.values(content).tolist()


def _scalar(data_type: _DataType, content: Any) -> Any:
    """Returns a scalar of numpy as a plain value."""
    return data_type.values(content).tolist()[0]


# numpy 2 renamed the module.
_NUMPY_READERS: Final[Sequence[tuple[Callable[..., Any], str]]] = [
    (_DataType, "numpy.dtype"),
    (_Array, "numpy.ndarray"),
    *((_scalar, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")),
    *((_Array, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")),
]
"""Functions that replace numpy's own in a pickle."""


MAX_TOKENS = 250  # Limit of a source and of a target, if a checkpoint has none.


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A model that another toolkit has trained.

    Attributes:
        file: the checkpoint itself, of which the bundle keeps the digest.
        tensors: its weights, by the names of `Seq2Seq`'s state dict.
        append_eos: the encoder gets EOS after the source.
        max_source_tokens, max_target_tokens: limits of a request.
    """

    file: Path
    config: ModelConfig
    tensors: dict[str, Tensor]
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    append_eos: bool
    max_source_tokens: int = MAX_TOKENS
    max_target_tokens: int = MAX_TOKENS
    decoding: DecodingDefaults = field(default_factory=DecodingDefaults)


Reader = Callable[[Path, bool], Imported]
"""Reads a checkpoint. If the second argument is true, texts are already segmented into symbols, with blanks between.

Raises UserError if the file can't be read, or has a part that can't be represented; the message names it.
"""


Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Settings:
    """A table of a checkpoint's settings. Each is checked when it is taken.

    Messages name the file, and by `prefix` the tables that contain this one.
    """

    path: Path
    values: Mapping[str, Any]
    prefix: str = ""

    def table(self, name: str) -> "Settings":
        """Returns the table of this name; an empty one if it is missing. Raises UserError if it is not a table."""
        return Settings(self.path, self.value(name, dict[str, Any]()), f"{self.prefix}{name}.")

    def value(self, name: str, default: Value) -> Value:
        """Returns a value of the default's type; the default if there is none. Raises UserError: it is of another type.

        Integers are accepted as floats, 100.0 as an integer, and 0 and 1 as false and true.
        """
        value = self.values.get(name)
        if value is None:
            return default
        kind: Any = type(default)
        converts = (
            (type(value) is int and kind is float)
            or (type(value) is float and kind is int and value.is_integer())
            or (type(value) is int and kind is bool and value in (0, 1))
        )
        if converts:
            return cast(Value, kind(value))
        if type(value) is not kind:
            raise UserError(f"{self.name_of(name)}: must be of type {kind.__name__}")
        return cast(Value, value)

    def one_of(self, name: str, representable: Mapping[Any, Value], default: Any) -> Value:
        """Returns the entry of a value in `representable`. Raises UserError if it has none."""
        value = self.value(name, default)
        if value not in representable:
            raise UserError(
                f"{self.name_of(name)}: can't be imported, only {' or '.join(map(repr, representable))} can"
            )
        return representable[value]

    def only(self, name: str, value: Any) -> None:
        """Raises UserError if a setting has another value than this one. 0, "", [], None and False count as equal."""
        if (self.values.get(name) or None) != (value or None):
            raise UserError(f"{self.name_of(name)}: can't be imported, only {value!r} can")

    def name_of(self, name: str) -> str:
        """Returns a value's name for messages: the file, the tables that contain it, its own name, and the value."""
        return f"{self.path}: {self.prefix}{name} = {self.values.get(name)!r}"


class Vocabulary:
    """The symbols of one side; `symbols` are those that are not special, in their order."""

    def __init__(self, path: Path, symbols: Sequence[str], special: Sequence[str | None]) -> None:
        """Stores a list of symbols by their ids; `special` are their names of PAD, UNK, BOS and EOS, None if missing.

        Raises:
            UserError: a special symbol is not among them, a symbol occurs twice, or has the name of one of our special
                ones.
        """
        self._path, self._num_symbols = path, len(symbols)
        ids = {symbol: number for number, symbol in enumerate(symbols)}
        if len(ids) != len(symbols):
            twice = next(symbol for number, symbol in enumerate(symbols) if ids[symbol] != number)
            raise UserError(f"{path}: the symbol {twice!r} is in the vocabulary twice")
        if missing := [name for name in special if name is not None and name not in ids]:
            raise UserError(f"{path}: the vocabulary lacks the toolkit's special symbol {missing[0]!r}")
        self.symbols = [symbol for symbol in symbols if symbol not in special]
        if ours := set(self.symbols) & set(SPECIAL_TOKENS):
            raise UserError(f"{path}: {min(ours)!r} is an ordinary symbol there, and a special one here")
        self._ids = [None if name is None else ids[name] for name in (*special, *self.symbols)]

    def rows(self, weights: Tensor) -> Tensor:
        """Returns weights [V, ...] with a row per symbol, in our order; zeros for a missing special symbol."""
        if len(weights) != self._num_symbols:
            raise UserError(
                f"{self._path}: the vocabulary has {self._num_symbols} symbols, and the weights are of {len(weights)}"
            )
        nothing = torch.zeros_like(weights[0])
        return torch.stack([nothing if number is None else weights[number] for number in self._ids])


PARTS: Final = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
GATES: Final = {"lstm": 4, "gru": 3}


class Weights:
    """The tensors of a checkpoint. Each is taken by its name; `refuse_others` refuses those that remain."""

    def __init__(self, path: Path, tensors: Mapping[str, Any], cell: str) -> None:
        """Stores the tensors of a model with this cell. Raises UserError: they are no finite floating-point numbers."""
        self._path = path
        self._cell = cell
        self._left = {name: self._finite(name, value) for name, value in tensors.items()}

    def _finite(self, name: str, value: Any) -> Any:
        """Returns a tensor in float32, and anything else as it is."""
        if not isinstance(value, Tensor):
            return value
        if not _is_dense(value):
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
            ours: the layer's name in our models.
            theirs: the name of its parts in the checkpoint, with {} for the part.
            hidden_size: H, by the checkpoint's settings; UserError is raised if the weights are of another.
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
        """Returns the tensors of an encoder that is a recurrent module of torch, named `theirs` in the checkpoint."""
        directions = {"forward_rnn": "", "backward_rnn": "_reverse"} if bidirectional else {"forward_rnn": ""}
        tensors: dict[str, Tensor] = {}
        for layer in range(num_layers):
            for ours, ending in directions.items():
                name = f"{theirs}.{{}}_l{layer}{ending}"
                tensors |= self.recurrent(f"encoder.layers.{layer}.{ours}", name, hidden_size)
        return tensors

    def decoder(self, theirs: Iterable[str], hidden_size: int) -> dict[str, Tensor]:
        """Returns the tensors of a decoder's layers; `theirs` has the name of each layer's parts, with {} for it."""
        tensors: dict[str, Tensor] = {}
        for layer, name in enumerate(theirs):
            tensors |= self.recurrent(f"decoder.cells.{layer}.rnn", name, hidden_size)
        return tensors

    def refuse_others(self) -> None:
        """Raises UserError if there are weights that were not taken."""
        if self._left:
            raise UserError(f"{self._path}: weights of parts that can't be imported: {', '.join(sorted(self._left))}")


def _is_dense(value: Any) -> bool:
    """Returns True if a value is a tensor that holds floating-point numbers, one at each place."""
    is_float = isinstance(value, Tensor) and value.is_floating_point()
    return is_float and value.layout is torch.strided and not value.is_meta


NUM_NAMED: Final = 3


def fill(module: nn.Module, tensors: Mapping[str, Any], refusal: str) -> None:
    """Loads weights into a module, by the names of its state dict.

    Args:
        refusal: begins the message if they don't fit.

    Raises:
        UserError: names or shapes differ; the message has the first differences.
    """
    expected = module.state_dict()
    wrong = [
        f"{some_of(names, NUM_NAMED)} {state}"
        for names, state in (
            ([name for name in expected if name not in tensors], "missing in the file"),
            ([name for name in tensors if name not in expected], "not of the module"),
        )
        if names
    ]
    for name, tensor in expected.items():
        # A lazy weight takes any shape.
        if name in tensors and not is_lazy(tensor) and getattr(tensors[name], "shape", None) != tensor.shape:
            actual = list(getattr(tensors[name], "shape", ())) or type(tensors[name]).__name__
            wrong.append(f"{name} is {actual}, must be {list(tensor.shape)}")
        elif name in tensors and tensor.is_floating_point() and not _is_dense(tensors[name]):
            value = tensors[name]
            kind = value.type() if isinstance(value, Tensor) else type(value).__name__
            wrong.append(f"{name} is of type {kind}, must hold dense floating-point numbers")
    if wrong:
        raise UserError(f"{refusal}: {some_of(wrong, NUM_NAMED, '; ')}")
    module.load_state_dict(tensors)
