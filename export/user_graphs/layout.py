"""Finds the axes of rows and of positions of a user's graphs by running the graphs.

Shapes: B sources, R rows, S source positions, V symbols. Between the graphs, all tensors are in standard form: rows are
the first axis, and the other axes are the graph's. A graph that takes a single row is run row by row.

A graph's declared shapes are not enough: exporters leave sizes without names, and a graph that declares any batch size
may contain a fixed one. So an arrangement of the inputs is tried on several sizes. It is right if the outputs' sizes
follow, and if a row's results don't depend on the other rows.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeVar

import numpy as np
import torch
from torch import Tensor

from attendant.export.user_graphs.graph import OPTIMIZED, Declared, UserGraph
from attendant.export.user_graphs.spec import EncoderTable, StepTable
from attendant.runtime.errors import UserError
from attendant.runtime.onnx.session import PlainSession

ROW: Final = "row"
POSITION: Final = "position"
Axes = tuple[str | int, ...]
"""ROW, POSITION, or a fixed size."""

NARROW: Final = 5
WIDE: Final = 7  # Widths of sources on which the graphs are tried.


@dataclass(frozen=True, slots=True)
class Placed:
    """An input or output of a graph, with its axes."""

    name: str
    dtype: str
    axes: Axes

    @property
    def of_one_row(self) -> Axes:
        """The axes if the graph takes a single row."""
        return tuple(1 if axis == ROW else axis for axis in self.axes)

    def __str__(self) -> str:
        return f"{self.name!r} [{', '.join(map(str, self.axes))}]"


def spread(value: Tensor, placed: Placed) -> Tensor:
    """Returns ids, lengths or a mask, [R] or [R, S], in the standard form of an input: with its axes of size 1.

    For an input of floats, ids become one-hot vectors.
    """
    rest = [axis for axis in placed.axes if axis != ROW]
    if placed.dtype == "float32" and value.dtype == torch.int64 and rest and rest[-1] not in (1, POSITION):
        value = value.unsqueeze(-1) == torch.arange(int(rest[-1]))
    sizes = [value.shape[1] if axis == POSITION else int(axis) for axis in rest]
    return value.reshape(value.shape[0], *sizes).to(getattr(torch, placed.dtype))


def arranged(value: Tensor, placed: Placed, *, row_by_row: bool) -> Tensor:
    """Returns a tensor in standard form as the graph takes it; row by row, the graph takes its entries."""
    if ROW not in placed.axes:
        return value
    axis = placed.axes.index(ROW)
    return value.unsqueeze(axis + 1) if row_by_row else value.movedim(0, axis)


def standard(value: Tensor, placed: Placed, *, row_by_row: bool) -> Tensor:
    """Returns a graph's output in standard form; row by row, `value` has the outputs of all rows."""
    if ROW not in placed.axes:
        return value
    axis = placed.axes.index(ROW)
    return value.squeeze(axis + 1) if row_by_row else value.movedim(axis, 0)


def run_graph(
    session: PlainSession,
    inputs: Mapping[Placed, Tensor],
    outputs: Sequence[str],
    *,
    row_by_row: bool,
    exact: bool = False,
) -> list[Tensor]:
    """Returns a graph's outputs for inputs in standard form, in float64 if `exact`; row by row, those of all rows."""

    def run(values: Mapping[str, Tensor]) -> list[Tensor]:
        arrays = {
            name: value.double().numpy() if exact and value.is_floating_point() else value.numpy()
            for name, value in values.items()
        }
        return [torch.from_numpy(np.asarray(array)) for array in session.run(arrays, list(outputs))]

    values = {placed.name: arranged(value, placed, row_by_row=row_by_row) for placed, value in inputs.items()}
    values = {name: value.contiguous() for name, value in values.items()}
    if not row_by_row:
        return run(values)
    num_rows = len(next(iter(values.values())))
    rows = [run({name: value[row] for name, value in values.items()}) for row in range(num_rows)]
    return [torch.stack(parts) for parts in zip(*rows, strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Inputs and outputs that both graphs may have.

    Attributes:
        table: the names of its inputs, completed.
        takes: the names of all inputs, in the order of `inputs`.
        outputs: the outputs that have an axis of rows.
        example: their values for two rows, in standard form.
    """

    graph: UserGraph
    table: EncoderTable | StepTable
    source_lengths: Placed | None
    source_mask: Placed | None
    row_by_row: bool
    takes: Sequence[str] = ()
    outputs: Mapping[str, Placed] = field(default_factory=dict)
    example: Mapping[str, Tensor] = field(default_factory=dict)

    def padding_inputs(self, valid: Tensor) -> dict[Placed, Tensor]:
        """Returns the inputs that describe padding in standard form, of valid positions [R, S] bool."""
        inputs = {}
        if self.source_lengths is not None:
            inputs[self.source_lengths] = spread(valid.sum(1), self.source_lengths)
        if self.source_mask is not None:
            mask = ~valid if self.table.mask_is_true_on == "padding" else valid
            inputs[self.source_mask] = spread(mask, self.source_mask)
        return inputs


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderPlaces(Places):
    """An encoder's inputs and outputs; `width` is its number of positions, if the graph takes no other."""

    table: EncoderTable
    source_ids: Placed
    zeros: tuple[Placed, ...]
    width: int | None

    def inputs(self, source_ids: Tensor, valid: Tensor) -> dict[Placed, Tensor]:
        """Returns the inputs in standard form, of ids [B, S] int64 and valid positions [B, S] bool."""
        inputs = {self.source_ids: spread(source_ids, self.source_ids), **self.padding_inputs(valid)}
        return inputs | {placed: zeros(placed, valid) for placed in self.zeros}


def zeros(placed: Placed, like: Tensor) -> Tensor:
    """Returns zeros in standard form for the rows and positions of a mask [R, S]."""
    sizes = [like.shape[1] if axis == POSITION else int(axis) for axis in placed.axes if axis != ROW]
    return torch.zeros(like.shape[0], *sizes, dtype=getattr(torch, placed.dtype))


def place_encoder(graph: UserGraph, table: EncoderTable, needed: Sequence[str]) -> EncoderPlaces:
    """Finds the axes of an encoder's tensors. The `needed` outputs, or if there are none, any, must have one of rows.

    Raises:
        UserError: the graph runs with no arrangement of its inputs, or mixes sources.
    """
    assert table.source_ids is not None
    declared = graph.inputs[table.source_ids]
    arrangements = list(_arrangements(declared, table.time_major))
    problems: list[str] = []
    mixing: list[Axes] = []
    for row_by_row in (False, True):
        right: list[EncoderPlaces] = []
        for axes in (axes for axes, alone in arrangements if alone == row_by_row and axes not in mixing):
            fixed = next((size for size, axis in zip(declared.shape, axes, strict=True) if axis == POSITION), "")
            order = (POSITION, ROW) if ROW in axes and axes.index(POSITION) < axes.index(ROW) else (ROW, POSITION)
            places = EncoderPlaces(
                graph=graph,
                table=table,
                source_ids=Placed(declared.name, declared.dtype, axes),
                source_lengths=_optional(graph, table.source_lengths, (ROW,), row_by_row),
                source_mask=_optional(graph, table.source_mask, order, row_by_row),
                zeros=tuple(_of_zeros(graph.inputs[name], row_by_row) for name in table.zeros),
                row_by_row=row_by_row,
                width=fixed if isinstance(fixed, int) else None,
            )
            sizes, inputs = example_sizes(places.width), partial(_encoder_example, places)
            mixes = "the sources of a batch, or a source's values depend on others"
            try:
                right.append(_tried(places, sizes, inputs, (0, 1), needed, mixes))
            except _MixesRows as error:
                # The axes run over something else, even with a single source.
                mixing.append(places.source_ids.of_one_row)
                problems.append(str(error))
            except UserError as error:
                problems.append(str(error))
        if right:
            # In a wrong order some outputs may still look right, but not those of recurrent layers.
            return max(right, key=lambda places: len(places.outputs))
    if not problems:
        problems = [f"{graph.file}: {declared} takes a fixed number of sources, or no positions"]
    raise UserError(
        f"{problems[0]}; the first graph must be the encoder, with axes for sources and positions that are not fixed "
        "(dynamic_shapes or dynamic_axes of torch.onnx.export)"
    )


def _arrangements(declared: Declared, time_major: bool | None) -> Iterator[tuple[Axes, bool]]:
    """Yields the possible axes of an encoder's ids, and whether each takes a single source; batches first."""
    shape, last = _without_vectors(declared)
    if len(shape) == 1:
        yield (POSITION, *last), True
    if len(shape) != 2:
        return
    orders = [(ROW, POSITION), (POSITION, ROW)]
    if time_major is not None:
        orders = [orders[time_major]]
    possible = [order for order in orders if shape[order.index(POSITION)] != 1]
    for order in possible:
        if isinstance(shape[order.index(ROW)], str):
            yield (*order, *last), False
    for order in possible:
        if shape[order.index(ROW)] == 1 or isinstance(shape[order.index(ROW)], str):
            yield (*(1 if axis == ROW else axis for axis in order), *last), True


def _without_vectors(declared: Declared) -> tuple[Axes, Axes]:
    """Returns the axes of an input of ids, and the last axis of one-hot vectors if it takes them."""
    if declared.dtype != "float32":
        return declared.shape, ()
    if not declared.shape or not isinstance(declared.shape[-1], int):
        raise UserError(f"{declared} holds no ids, and no vectors with a place for each symbol")
    return declared.shape[:-1], declared.shape[-1:]


def _optional(graph: UserGraph, name: str | None, order: Axes, row_by_row: bool) -> Placed | None:
    """Returns an input whose axes that are not fixed at 1 are these, in this order; None if there is no such input."""
    if name is None:
        return None
    declared = graph.inputs[name]
    wanted = [axis for axis in order if not (row_by_row and axis == ROW)]
    axes: list[str | int] = []
    for number, size in enumerate(declared.shape):
        left = len(declared.shape) - number
        if wanted and not (size == 1 and left > len(wanted)):
            axes.append(wanted.pop(0))
        else:
            axes.append(1)
    return Placed(declared.name, declared.dtype, tuple(axes))


def _of_zeros(declared: Declared, row_by_row: bool) -> Placed:
    """Returns an input of zeros: of the axes that are not fixed, the first runs over rows, another over positions."""
    free = [axis for axis, size in enumerate(declared.shape) if isinstance(size, str)]
    names = dict(zip(free, (ROW, POSITION), strict=False))
    axes = tuple(size if isinstance(size, int) else names.get(axis, 1) for axis, size in enumerate(declared.shape))
    placed = Placed(declared.name, declared.dtype, axes)
    return Placed(declared.name, declared.dtype, placed.of_one_row) if row_by_row else placed


def _example(num_sources: int, width: int, changed: int | None = None) -> Tensor:
    """Returns ids [B, S] from 1 to 3; with `changed`, that source has others."""
    ids = 1 + (torch.arange(num_sources * width).reshape(num_sources, width) * 7 // 3) % 3
    if changed is not None:
        ids[changed] = 1 + ids[changed] % 3
    return ids


def _encoder_example(encoder: EncoderPlaces, *size: int) -> dict[Placed, Tensor]:
    """Returns an encoder's inputs; see `_example`."""
    ids = _example(*size)
    return encoder.inputs(ids, torch.ones_like(ids, dtype=torch.bool))


def example_sizes(width: int | None) -> list[tuple[int, int]]:
    """Returns numbers of rows and of positions to try a graph on; if it takes only one `width`, of that."""
    return [(2, width), (3, width)] if width else [(2, NARROW), (3, NARROW), (2, WIDE)]


class _MixesRows(UserError):
    """A graph that runs, and whose outputs are not those of single rows."""


AnyPlaces = TypeVar("AnyPlaces", EncoderPlaces, "StepPlaces")


def _tried(
    places: AnyPlaces,
    sizes: Sequence[tuple[int, int]],
    inputs: Callable[..., Mapping[Placed, Tensor]],
    changes: Sequence[int],
    needed: Sequence[str],
    mixes: str,
) -> AnyPlaces:
    """Runs a graph on several sizes; returns its places with the outputs.

    Args:
        inputs: returns the inputs of a size; a third argument is the row that gets other ids.
        changes: rows, 0 or 1, whose ids are changed: the other row's values must stay the same.
        mixes: ends the message about outputs that have no axis of rows.

    Raises:
        _MixesRows: needed outputs don't have exactly one axis of rows and at most one of positions.
        UserError: the graph does not run on these inputs.
    """
    graph, row_by_row = places.graph, places.row_by_row

    def run(*size: int) -> dict[str, Tensor]:
        values = run_graph(graph.session, inputs(*size), list(graph.outputs), row_by_row=row_by_row)
        return dict(zip(graph.outputs, values, strict=True))

    runs = [run(*size) for size in sizes]
    placed = {}
    for name, declared in graph.outputs.items():
        axes = measured_axes([values[name] for values in runs], sizes, row_by_row=row_by_row)
        if None in axes or axes.count(POSITION) > 1 or axes.count(ROW) != (0 if row_by_row else 1):
            continue
        known = tuple(axis for axis in axes if axis is not None)
        placed[name] = Placed(name, declared.dtype, known)
    for row in () if row_by_row else changes:
        again = run(*sizes[0], row)
        placed = {name: own for name, own in placed.items() if _same_row(runs[0][name], again[name], own, 1 - row)}
    lost = [name for name in (needed or graph.outputs) if name not in placed]
    if not placed or (needed and lost):
        remedy = f"; {OPTIMIZED}" if graph.is_quantized else ""
        raise _MixesRows(f"{graph.file}: {', '.join(lost)}: no axis runs over {mixes}{remedy}")
    if not row_by_row:
        of_one_row = run(1, sizes[0][1])
        for name, own in placed.items():
            if of_one_row[name].dim() != len(own.axes):
                raise UserError(f"{graph.file}: with one row, {own} has another rank: export it without squeeze()")
    example = {name: standard(runs[0][name], own, row_by_row=row_by_row) for name, own in placed.items()}
    return replace(places, takes=[each.name for each in inputs(*sizes[0])], outputs=placed, example=example)


def measured_axes(
    values: Sequence[Tensor], sizes: Sequence[tuple[int, int]], *, row_by_row: bool
) -> list[str | int | None]:
    """Returns ROW, POSITION or the fixed size of each axis of a graph's value; None for an axis that is none of these.

    Args:
        values: the value for each of `sizes`, numbers of rows and of positions, as `run_graph` returns it.
    """
    names: dict[tuple[int, ...], str] = dict(zip(zip(*sizes, strict=True), (ROW, POSITION), strict=True))
    # The first axis of stacked rows is not the graph's.
    shapes = [value.shape[1 if row_by_row else 0 :] for value in values]
    return [of_axis[0] if len(set(of_axis)) == 1 else names.get(of_axis) for of_axis in zip(*shapes, strict=True)]


def _same_row(first: Tensor, second: Tensor, placed: Placed, row: int) -> bool:
    """Returns True if two outputs have the same values in a row, up to rounding."""
    a, b = (standard(value, placed, row_by_row=False)[row].double() for value in (first, second))
    return torch.allclose(a, b, rtol=1e-3, atol=1e-4)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlaces(Places):
    """A step's inputs and outputs."""

    table: StepTable
    previous_ids: Placed
    state: Mapping[str, Placed]

    def inputs(self, previous_ids: Tensor, state: Mapping[str, Tensor], valid: Tensor) -> dict[Placed, Tensor]:
        """Returns the inputs in standard form, of ids [R], state, and the sources' valid positions [R, S]."""
        inputs = {self.previous_ids: spread(previous_ids, self.previous_ids)}
        inputs |= {placed: state[name] for name, placed in self.state.items()}
        return inputs | self.padding_inputs(valid)


def place_step(
    graph: UserGraph, table: StepTable, sources: Mapping[str, str | None], encoder: EncoderPlaces, needed: Sequence[str]
) -> StepPlaces:
    """Finds the axes of a step's tensors; see `place_encoder`.

    Args:
        sources: its inputs that are state -> the encoder's output that is the first value, or None for zeros.

    Raises:
        UserError: the graph runs with no arrangement of its inputs, mixes rows, or takes a state of another shape than
            the encoder gives.
    """
    assert table.previous_ids is not None
    declared = graph.inputs[table.previous_ids]
    problems: list[str] = []
    for axes, row_by_row in _step_arrangements(declared):
        try:
            state = {
                name: _state_input(graph.inputs[name], encoder, output, row_by_row) for name, output in sources.items()
            }
            if (fixed := [each for each in state.values() if ROW not in each.axes]) and not row_by_row:
                raise UserError(f"{graph.file}: no axis of {fixed[0]} runs over rows")
            places = StepPlaces(
                graph=graph,
                table=table,
                previous_ids=Placed(declared.name, declared.dtype, axes),
                source_lengths=_optional(graph, table.source_lengths, (ROW,), row_by_row),
                source_mask=_optional(graph, table.source_mask, (ROW, POSITION), row_by_row),
                state=state,
                row_by_row=row_by_row,
            )
            sizes, inputs = example_sizes(encoder.width), partial(step_example, places, encoder, sources)
            return _tried(
                places, sizes, inputs, (0,), needed, "rows, or a row's values depend on other rows or on chance"
            )
        except UserError as error:
            problems.append(str(error))
    if not problems:
        problems = [f"{graph.file}: {declared} is not the last symbol of each row: [rows] or [rows, 1]"]
    raise UserError(
        f"{problems[0]}; export a single decoder step with an axis for rows that is not fixed (dynamic_shapes or "
        "dynamic_axes of torch.onnx.export)"
    )


def _step_arrangements(declared: Declared) -> Iterator[tuple[Axes, bool]]:
    """Yields the possible axes of a step's ids, and whether each takes a single row."""
    shape, last = _without_vectors(declared)
    if len(shape) > 2 or any(isinstance(size, int) and size != 1 for size in shape):
        return
    for axis, size in enumerate(shape):
        if isinstance(size, str):
            yield (*(ROW if place == axis else 1 for place in range(len(shape))), *last), False
    yield (*[1] * len(shape), *last), True


def _state_input(declared: Declared, encoder: EncoderPlaces, output: str | None, row_by_row: bool) -> Placed:
    """Returns a state's input, with the axes of the encoder's output."""
    if output is None:
        return _of_zeros(declared, row_by_row)
    axes = encoder.outputs[output].axes
    if len(axes) != len(declared.shape) or any(
        isinstance(size, int) and size != (1 if axis == ROW and row_by_row else axis) and axis != POSITION
        for size, axis in zip(declared.shape, axes, strict=False)
    ):
        raise UserError(
            f"the encoder's {encoder.outputs[output]} is no first value of the step's {declared}: name another output, "
            "or export both graphs with the same shape"
        )
    free = [place for place, size in enumerate(declared.shape) if isinstance(size, str) and axes[place] == 1]
    if encoder.row_by_row and not row_by_row and free:
        # An encoder that takes one source doesn't show its axis of sources.
        axes = tuple(ROW if place == free[0] else axis for place, axis in enumerate(axes))
    return Placed(declared.name, declared.dtype, axes)


def step_example(
    step: StepPlaces,
    encoder: EncoderPlaces,
    sources: Mapping[str, str | None],
    num_rows: int,
    width: int,
    changed: int | None = None,
) -> dict[Placed, Tensor]:
    """Returns a step's inputs for up to three rows of two sources; `changed` is a row that gets another last symbol."""
    names = list(encoder.outputs)
    inputs = _encoder_example(encoder, 2, width)
    values = run_graph(encoder.graph.session, inputs, names, row_by_row=encoder.row_by_row)
    outputs = {
        name: standard(value, encoder.outputs[name], row_by_row=encoder.row_by_row)
        for name, value in zip(names, values, strict=True)
    }
    states = first_state(encoder, outputs, sources, step.state, torch.ones(2, width, dtype=torch.bool))
    rows = {name: value[[0, 1, 1][:num_rows]] for name, value in states.items()}
    previous = torch.tensor([1 + row % 3 + (row == changed) for row in range(num_rows)])
    return step.inputs(previous, rows, torch.ones(num_rows, width, dtype=torch.bool))


def first_state(
    encoder: EncoderPlaces,
    outputs: Mapping[str, Tensor],
    sources: Mapping[str, str | None],
    placed: Mapping[str, Placed],
    valid: Tensor,
) -> dict[str, Tensor]:
    """Returns the state before a first step in standard form, by the step's inputs; zeros are as large as `valid`."""
    state = {}
    for name, output in sources.items():
        state[name] = zeros(placed[name], valid) if output is None else outputs[output]
        if output is not None and ROW in placed[name].axes and ROW not in encoder.outputs[output].axes:
            # The encoder takes one source: the step shows its axis of rows among those of size 1.
            state[name] = state[name].squeeze(placed[name].axes.index(ROW) + 1)
    return state
