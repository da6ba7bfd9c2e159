"""Models of users' own: any encoder and decoder step in PyTorch becomes a bundle.

A user's module has two methods, `encode` and `step` (Seq2SeqModule). Everything else is wrapped around it: ids of our
vocabularies become the module's, a source's tensors are gathered for its rows, logits become candidates, and recurrent
layers take the lengths of their sequences, so that padding does not reach them.

The reference for the export's comparison is the module itself, run naively: without padding, since only sources of one
length run together. So whatever depends on padding is found, and never published.

Shapes: B sources, R rows, S source positions, V symbols of the module's target vocabulary, M queries per source.
"""

import contextlib
import copy
import inspect
import linecache
import re
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final, Protocol, cast, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from attendant.export.recurrent_layers import Lengths, with_lengths
from attendant.export.tracing import TraceableModel, traceable_parts
from attendant.runtime.bundle.manifest import StateTensor
from attendant.runtime.bundle.tokenizer import BOS_ID, PAD_ID, UNK_ID, special_ids
from attendant.runtime.errors import UserError, reason_of
from attendant.training.data.vocabulary import Vocabulary
from attendant.training.model.readout import IMPOSSIBLE
from attendant.training.model.seq2seq import Encoded
from attendant.training.model.stepper import TorchStepper

VALID: Final = "valid_positions"
"""A source tensor of the wrapper's own, [B, S] bool: which positions are not padding."""

RESERVED: Final = frozenset(
    {
        *("source_ids", "source_lengths", "previous_ids", "source_rows", "row_slots", "forced_ids", "banned_ids"),
        *("num_candidates", "candidate_ids", "candidate_log_probs", "forced_log_probs", "attention", VALID),
    }
)
PROBES: Final = ((1, 5), (3, 8), (2, 16), (4, 1))
"""Batches on which a module is tried before it is traced: numbers of sources and their longest."""

State = Mapping[str, Tensor]


@runtime_checkable
class Seq2SeqModule(Protocol):
    """An encoder and a decoder step, as `attendant.export.export_model` takes them; usually a `torch.nn.Module`.

    Both methods are functions of their arguments: nothing is kept on the module between calls.

    Attributes:
        row_state: names of the state tensors that belong to a row (a live hypothesis): recurrent states, an input
            feeding vector, attention of the steps before. All others belong to the source, and all its rows share them.
    """

    row_state: Sequence[str]

    def encode(self, source_ids: Tensor, source_lengths: Tensor) -> State:
        """Encodes source_ids [B, S] int64 of lengths [B] int64.

        Positions beyond a source's length are padding; they may hold any valid id.

        Returns:
            All state tensors, by name: [B, ...], with one row per source. An axis that runs over the source's positions
            has S entries.
        """

    def step(self, previous_ids: Tensor, row_state: State, source_state: State) -> tuple[Tensor, State, Tensor | None]:
        """Feeds each row its last symbol.

        Args:
            previous_ids: [R] int64.
            row_state: the tensors that `row_state` names, [R, ...].
            source_state: the others, gathered for the rows: [R, S, ...].

        Returns:
            logits or log-probabilities [R, V]; the new row state, the same names and shapes; attention weights [R, S],
            zero on padding (for several heads, their mean), or None.
        """


class WrappedModel(nn.Module):
    """A user's module with the interface of our models, so that tracing and the reference treat both alike.

    While it is traced, a copy with other recurrent layers runs on padded batches. Otherwise the module itself runs,
    naively: sources of one length at a time, without padding.
    """

    source_ids_of: Tensor
    target_ids_of: Tensor
    missing: Tensor

    def __init__(
        self,
        module: Seq2SeqModule,
        source: Vocabulary,
        target: Vocabulary,
        state: Sequence[StateTensor],
        positional: Mapping[str, int],
    ) -> None:
        super().__init__()
        self.start_id = BOS_ID
        self.target_vocabulary_size = len(target.module_ids)
        self.state, self.positional = tuple(state), dict(positional)
        self.row_names = [tensor.input for tensor in state if tensor.scope == "row"]
        self.has_sources = any(tensor.scope == "source" for tensor in state)
        # Not a submodule: only the copy that is traced has parameters here.
        self._naive = (module,)
        self._lengths = Lengths()
        self.traced = with_lengths(cast(nn.Module, module), self._lengths)

        def ids(side: Vocabulary, unknown: int) -> Tensor:
            return torch.tensor([number if number >= 0 else unknown for number in side.module_ids])

        # Symbols that the module lacks are never fed, except padding, whose value does not matter.
        self.register_buffer("source_ids_of", ids(source, max(source.module_ids[UNK_ID], 0)))
        self.register_buffer("target_ids_of", ids(target, max(target.module_ids[UNK_ID], 0)))
        never = [number < 0 for number in target.module_ids]
        never[PAD_ID] = True
        never[BOS_ID] = True
        self.register_buffer("missing", torch.tensor(never))

    def encode(self, source_ids: Tensor, source_lengths: Tensor) -> Encoded:
        """As Seq2Seq.encode."""
        own = self.source_ids_of[source_ids]
        if torch.compiler.is_exporting():
            with self._lengths.known(source_lengths, own.shape[1]):
                tensors = dict(cast(Seq2SeqModule, self.traced).encode(own, source_lengths))
        else:
            tensors = self._encoded_unpadded(own, source_lengths)
        if self.has_sources:
            tensors[VALID] = torch.arange(own.shape[1], device=own.device) < source_lengths.unsqueeze(1)
        rows = {name: tensors[name] for name in self.row_names}
        return Encoded(rows, {name: tensor for name, tensor in tensors.items() if name not in rows})

    def _encoded_unpadded(self, source_ids: Tensor, lengths: Tensor) -> dict[str, Tensor]:
        (module,) = self._naive
        tensors: dict[str, Tensor] = {}
        for length, places in _by_length(lengths):
            state = module.encode(source_ids[places, :length], lengths[places])
            for name, tensor in state.items():
                wide = _widened(tensor, self.positional.get(name), source_ids.shape[1])
                tensors.setdefault(name, wide.new_zeros(len(lengths), *wide.shape[1:]))[places] = wide
        return tensors

    def step(
        self,
        previous_ids: Tensor,
        row_tensors: State,
        source_tensors: State,
        source_rows: Tensor | None,
        row_slots: Tensor | None,
    ) -> tuple[Tensor, dict[str, Tensor], Tensor | None]:
        """As Seq2Seq.step."""
        own = self.target_ids_of[previous_ids]
        sources = {name: tensor for name, tensor in source_tensors.items() if name != VALID}
        if not self.has_sources:
            module = cast(Seq2SeqModule, self.traced) if torch.compiler.is_exporting() else self._naive[0]
            logits, rows, _ = module.step(own, row_tensors, {})
            return self._ordered(logits), dict(rows), None
        assert source_rows is not None
        assert row_slots is not None
        row_sources = row_slots // source_rows.shape[1]
        valid = source_tensors[VALID][row_sources]
        if torch.compiler.is_exporting():
            gathered = {name: tensor[row_sources] for name, tensor in sources.items()}
            with self._lengths.known(valid.sum(1), valid.shape[1]):
                logits, rows, weights = cast(Seq2SeqModule, self.traced).step(own, row_tensors, gathered)
        else:
            logits, rows, weights = self._stepped_unpadded(
                own, row_tensors, sources, row_sources, source_tensors[VALID]
            )
        weights = valid.float() * 0.0 if weights is None else weights * valid
        return self._ordered(logits), dict(rows), weights

    def _stepped_unpadded(
        self, previous_ids: Tensor, row_tensors: State, sources: State, row_sources: Tensor, valid: Tensor
    ) -> tuple[Tensor, dict[str, Tensor], Tensor | None]:
        """Steps the rows of sources of one length together, without padding."""
        (module,) = self._naive
        stepped: dict[str, Tensor] = {}

        def put(name: str, places: Tensor, values: Tensor) -> None:
            stepped.setdefault(name, values.new_zeros(len(row_sources), *values.shape[1:]))[places] = values

        for length, places in _by_length(valid.sum(1)[row_sources]):
            gathered = {
                name: _narrowed(tensor[row_sources[places]], self.positional.get(name), length)
                for name, tensor in sources.items()
            }
            own = {
                name: _narrowed(tensor[places], self.positional.get(name), length)
                for name, tensor in row_tensors.items()
            }
            logits, rows, weights = module.step(previous_ids[places], own, gathered)
            put("logits", places, logits)
            for name, tensor in rows.items():
                put(f"row {name}", places, _widened(tensor, self.positional.get(name), valid.shape[1]))
            if weights is not None:
                put("attention", places, _widened(weights, 1, valid.shape[1]))
        new = {name: stepped[f"row {name}"] for name in row_tensors}
        return stepped["logits"], new, stepped.get("attention")

    def _ordered(self, logits: Tensor) -> Tensor:
        """[R, symbols of the bundle]: symbols that the module lacks, padding and BOS are impossible."""
        return logits.float().index_select(1, self.target_ids_of).masked_fill(self.missing, IMPOSSIBLE)


def _by_length(lengths: Tensor) -> list[tuple[int, Tensor]]:
    """Returns each length of lengths [N], and its places."""
    return [(length, (lengths == length).nonzero().squeeze(1)) for length in sorted(set(lengths.tolist()))]


def _narrowed(tensor: Tensor, axis: int | None, length: int) -> Tensor:
    return tensor if axis is None else tensor.narrow(axis, 0, length)


def _widened(tensor: Tensor, axis: int | None, width: int) -> Tensor:
    if axis is None or tensor.shape[axis] == width:
        return tensor
    padding = list(tensor.shape)
    padding[axis] = width - tensor.shape[axis]
    return torch.cat([tensor, tensor.new_zeros(padding)], axis)


def traceable_module(
    module: Seq2SeqModule, source: Vocabulary, target: Vocabulary, *, max_source_tokens: int
) -> TraceableModel:
    """Returns a user's module for tracing.

    Raises:
        UserError: the module does not keep the contract of Seq2SeqModule; the line of the module that breaks it is
            named where there is one.
    """
    if not isinstance(module, Seq2SeqModule) or not isinstance(module, nn.Module):
        raise UserError(
            f"{type(module).__name__} is no model to export: it must be a torch.nn.Module with `row_state`, `encode` "
            "and `step` (docs/export-your-own.md)"
        )
    module.eval()
    state, positional = _tried(module, source, target, max_source_tokens)
    wrapped = WrappedModel(module, source, target, state, positional).eval()

    def exact() -> TorchStepper:
        double = TorchStepper(WrappedModel(copy.deepcopy(module).double(), source, target, state, positional).eval())
        try:
            double.step(double.encode([[UNK_ID]]), np.array([BOS_ID]), num_candidates=1)
        except Exception:  # a module that makes tensors of float32 itself: it has no rounding to compare with
            return TorchStepper(wrapped)
        return double

    encoder, decoder_step = traceable_parts(wrapped, wrapped.state)
    return TraceableModel(
        encoder=encoder,
        decoder_step=decoder_step,
        state=wrapped.state,
        special_ids=special_ids(BOS_ID),
        architecture={
            "module": type(module).__qualname__,
            "num_parameters": sum(parameter.numel() for parameter in module.parameters()),
        },
        reference=TorchStepper(wrapped),
        exact_reference=exact,
        splits_gemms=True,
    )


def _tried(
    module: Seq2SeqModule, source: Vocabulary, target: Vocabulary, max_source_tokens: int
) -> tuple[tuple[StateTensor, ...], dict[str, int]]:
    """Runs a module on batches of several sizes; returns its state tensors, and which of them have an axis S."""
    seen: dict[tuple[int, int], dict[str, Tensor]] = {}
    last: State = {}
    generator = torch.Generator().manual_seed(0)
    longest = (2, min(max_source_tokens, 64))
    for num_sources, width in (*PROBES, longest):
        lengths = torch.tensor([max(1, width - number * 2) for number in range(num_sources)])
        ids = torch.randint(0, source.num_module_ids, (num_sources, width), generator=generator)
        case = f"{num_sources} sources of {width} positions"
        with _watched(module, f"encode, called with {case},"), torch.no_grad():
            tensors = module.encode(ids, lengths)
        _check_state(module, tensors, num_sources, case)
        previous = torch.randint(0, target.num_module_ids, (2 * num_sources,), generator=generator)
        rows = {name: tensors[name].repeat_interleave(2, 0) for name in module.row_state}
        sources = {
            name: tensor.repeat_interleave(2, 0) for name, tensor in tensors.items() if name not in module.row_state
        }
        with _watched(module, f"step, called with {2 * num_sources} rows of {case},"), torch.no_grad():
            stepped = module.step(previous, rows, sources)
            again = module.step(previous, rows, sources)
        _check_step(stepped, rows, target, 2 * num_sources, width if sources else 0)
        if not torch.equal(stepped[0], again[0]):
            raise UserError(
                f"{type(module).__name__}.step gives other logits for the same arguments: it must be a function of "
                "them (no dropout in evaluation, no random numbers, nothing kept on the module)"
            )
        seen[num_sources, width] = dict(tensors)
        last = tensors
    positional: dict[str, int] = {}
    for name in last:
        shapes = [(width, tensors[name].shape) for (_, width), tensors in seen.items()]
        axes = [axis for axis in range(1, len(shapes[0][1])) if len({shape[axis] for _, shape in shapes}) > 1]
        if len(axes) > 1 or any(shape[axis] != width for axis in axes for width, shape in shapes):
            described = ", ".join(f"{tuple(shape)} for width {width}" for width, shape in shapes)
            raise UserError(
                f"{type(module).__name__}.encode returns {name} of shapes that follow the source's width, but not by "
                f"one axis of as many positions: {described}"
            )
        if axes:
            positional[name] = axes[0]
    state = [StateTensor(input=name, output=f"{name}_out", scope="row") for name in module.row_state]
    sources_only = [name for name in last if name not in module.row_state]
    state += [StateTensor(input=name, output=None, scope="source") for name in sources_only]
    if sources_only:
        state.append(StateTensor(input=VALID, output=None, scope="source"))
        positional[VALID] = 1
    return tuple(state), positional


def _check_state(module: Seq2SeqModule, tensors: State, num_sources: int, case: str) -> None:
    name = type(module).__name__
    if not isinstance(tensors, Mapping) or not all(isinstance(tensor, Tensor) for tensor in tensors.values()):
        raise UserError(f"{name}.encode must return a dictionary of tensors, got {type(tensors).__name__}")
    if missing := [row for row in module.row_state if row not in tensors]:
        raise UserError(f"{name}.row_state names {', '.join(missing)}, which encode does not return")
    if not module.row_state:
        raise UserError(f"{name}.row_state is empty: a decoder step needs a state of its own")
    for key, tensor in tensors.items():
        if not re.fullmatch(r"[a-z][a-z0-9_]*", key) or key in RESERVED or key.endswith("_out"):
            raise UserError(f"{name}.encode returns {key!r}: choose another name, of a-z, 0-9 and _")
        if tensor.dim() < 1 or tensor.shape[0] != num_sources:
            raise UserError(
                f"{name}.encode returns {key} of shape {tuple(tensor.shape)} for {case}: its first axis must have "
                f"{num_sources} entries, one for each source (for layers first, as torch's recurrent layers return "
                "their states, use .transpose(0, 1))"
            )
        if tensor.dtype not in (torch.float32, torch.int64, torch.bool):
            raise UserError(f"{name}.encode returns {key} as {tensor.dtype}: float32, int64 and bool can be exported")


def _check_step(stepped: Any, rows: State, target: Vocabulary, num_rows: int, width: int) -> None:
    if not isinstance(stepped, tuple) or len(stepped) != 3:
        raise UserError("step must return (logits, row state, attention or None)")
    logits, new, attention = stepped
    if tuple(logits.shape) != (num_rows, target.num_module_ids):
        raise UserError(
            f"step returns logits of shape {tuple(logits.shape)}, must be [{num_rows} rows, {target.num_module_ids} "
            "symbols of the target vocabulary]"
        )
    if new.keys() != rows.keys():
        raise UserError(f"step returns the row state {', '.join(new)}, must be {', '.join(rows)}")
    for name, tensor in new.items():
        if tensor.shape != rows[name].shape or tensor.dtype != rows[name].dtype:
            raise UserError(
                f"step returns {name} as {tensor.dtype} {tuple(tensor.shape)}, must be as it was given: "
                f"{rows[name].dtype} {tuple(rows[name].shape)}"
            )
    if attention is not None and tuple(attention.shape) != (num_rows, width):
        raise UserError(f"step returns attention of shape {tuple(attention.shape)}, must be [{num_rows}, {width}]")


@contextlib.contextmanager
def _watched(module: Any, call: str) -> Iterator[None]:
    """Around a call of a user's module: what it raises, or keeps on itself, becomes a line that names its own line."""
    parts = set(map(id, module.modules()))
    kept: list[str] = []
    plain = nn.Module.__setattr__

    def recorded(self: nn.Module, name: str, value: Any) -> None:
        if id(self) in parts:
            frame = inspect.currentframe()
            kept.append(f"self.{name} at {_place(frame.f_back if frame else None)}")
        plain(self, name, value)

    nn.Module.__setattr__ = recorded  # type: ignore[method-assign]
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"{type(module).__name__}.{call} failed: {reason_of(error)}{_line_of(error, module)}; every number of "
            "sources, positions (up to the longest source) and rows must work: take sizes from the arguments' shapes "
            "(source_ids.shape, previous_ids.shape), not from numbers"
        ) from None
    finally:
        nn.Module.__setattr__ = plain  # type: ignore[method-assign]
    if kept:
        raise UserError(
            f"{type(module).__name__}.{call} keeps {kept[0]}: state must not stay on the module, since rows of many "
            "requests take turns: return it from encode, and from step as row state"
        )


def _place(frame: FrameType | None) -> str:
    if frame is None:
        return "an unknown line"
    return f"{_short(frame.f_code.co_filename)}:{frame.f_lineno}"


def _short(file: str) -> str:
    path = Path(file)
    with contextlib.suppress(ValueError):
        return str(path.relative_to(Path.cwd()))
    return str(path)


def _files_of(module: Any) -> set[str]:
    """Source files of the classes of a module and its parts that are not torch's own."""
    files = set()
    for part in [module, *module.modules()]:
        for cls in type(part).__mro__:
            if not cls.__module__.startswith(("torch.", "attendant.")) and cls is not object:
                with contextlib.suppress(TypeError, OSError):
                    files.add(str(inspect.getsourcefile(cls)))
    return files


def _line_of(error: BaseException, module: Any) -> str:
    """Returns " at FILE:LINE: code" of the innermost line of the user's own files in an error; empty if none."""
    files = _files_of(module)
    places = [(frame.filename, frame.lineno or 0) for frame in traceback.extract_tb(error.__traceback__)]
    places += [(file, int(line)) for file, line in re.findall(r'File "([^"]+)", line (\d+)', str(error))]
    places += [(file, int(line)) for file, line in re.findall(r"\b(/[^\s:]+\.py):(\d+)\b", str(error))]
    own = [place for place in places if place[0] in files]
    if not own:
        return ""
    file, line = own[-1]
    code = linecache.getline(file, line).strip()
    return f" at {_short(file)}:{line}: {code}"


def explained(error: Exception, module: Any) -> UserError:
    """Returns what torch's exporter could not trace, as a line that names the user's own line."""
    causes = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None and cause not in causes:
        causes.append(cast(Exception, cause))
    where = next((line for cause in reversed(causes) if (line := _line_of(cause, module))), "")
    text = " ".join(str(cause) for cause in causes)
    if re.search(r"data-dependent|GuardOnDataDependent|Could not guard|_local_scalar_dense|item\(\)", text):
        remedy = (
            "Python's control flow depends on a tensor's values: use torch.where, masks or torch.arange(width) < "
            "lengths instead of if, while, .item(), .tolist() and max() of lengths"
        )
    elif re.search(r"specializ|Constraints violated|constant", text):
        remedy = "a size is frozen to the example's: take it from an argument's shape, not from a number or int(...)"
    else:
        remedy = "torch.export can't trace this; write it with operations on tensors"
    return UserError(f"{type(module).__name__} can't be traced{where}: {remedy} ({reason_of(causes[-1])})")
