"""`attendant import onnx`: completes the description of two graphs by trying them, and makes a bundle of them."""

import difflib
import logging
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from attendant.export.model import UserModel
from attendant.export.user_graphs.graph import OPTIMIZED, Declared, UserGraph
from attendant.export.user_graphs.layout import (
    POSITION,
    ROW,
    EncoderPlaces,
    Placed,
    StepPlaces,
    place_encoder,
    place_step,
)
from attendant.export.user_graphs.module import GraphModule, Graphs
from attendant.export.user_graphs.spec import EncoderTable, ScoresAre, Spec, StateTable, StepTable, draft
from attendant.runtime.bundle.tokenizer import PAD_ID
from attendant.runtime.errors import UserError
from attendant.training.data.vocabulary import Vocabulary, read_vocabulary

logger = logging.getLogger(__name__)

NOTICE = logging.INFO + 5  # Level of lines that a terminal keeps.
ALIKE = 0.5
"""Least similarity of two names, from 0 to 1, to match an output with an input if both have an axis of positions: a
step may output attention of the same shape as a mask."""


def import_graphs(encoder: Path, step: Path, spec: Spec) -> UserModel:
    """Returns the two graphs as a model for `export_model`. Raises UserError: a graph can't be read or run, or does not
    fit its description; graph, tensor and remedy are named.
    """
    source, target = (
        read_vocabulary(side.tokenizer, side.special, side.kind, field=f"{name}.tokenizer")
        for name, side in (("source", spec.source), ("target", spec.target))
    )
    graphs = completed(UserGraph(encoder), UserGraph(step), spec.encoder, spec.step, spec.state, target.num_module_ids)
    for line in graphs.lines():
        logger.log(NOTICE, "%s", line)
    module = GraphModule(graphs, pad_id=max(source.module_ids[PAD_ID], 0))
    _check_ids(graphs.encoder.graph, graphs.encoder.source_ids, source, "source")
    _check_ids(graphs.step.graph, graphs.step.previous_ids, target, "target")
    num_added = spec.source.append_eos + spec.source.prepend_bos
    widest = None if graphs.encoder.width is None else graphs.encoder.width - num_added
    if widest is not None and spec.source.max_tokens is not None and spec.source.max_tokens > widest:
        raise UserError(
            f"source.max_tokens is {spec.source.max_tokens}, and {graphs.encoder.graph.file} takes "
            f"{graphs.encoder.width} positions, with BOS and EOS: set it to at most {widest}"
        )
    return UserModel(
        module=module,
        source_tokenizer=spec.source.tokenizer,
        target_tokenizer=spec.target.tokenizer,
        source_special=spec.source.special,
        target_special=spec.target.special,
        source_kind=spec.source.kind,
        target_kind=spec.target.kind,
        append_eos=spec.source.append_eos,
        prepend_bos=spec.source.prepend_bos,
        max_source_tokens=spec.source.max_tokens or widest or UserModel.max_source_tokens,
        max_target_tokens=spec.target.max_tokens or UserModel.max_target_tokens,
        origin={"encoder_graph": graphs.encoder.graph.origin, "step_graph": graphs.step.graph.origin},
        **spec.decoding.model_dump(),
    )


def draft_spec(encoder: Path, step: Path) -> str:
    """Returns a description of two graphs to complete. Raises UserError: as `import_graphs`."""
    graphs = completed(UserGraph(encoder), UserGraph(step), EncoderTable(), StepTable(), (), None)
    for line in graphs.lines():
        logger.log(NOTICE, "%s", line)
    return draft(*graphs.tables())


def completed(
    encoder: UserGraph,
    step: UserGraph,
    of_encoder: EncoderTable,
    of_step: StepTable,
    state: Sequence[StateTable],
    num_symbols: int | None,
) -> Graphs:
    """Completes a description by trying the graphs.

    Args:
        num_symbols: V; None if it is not known.

    Raises:
        UserError: a tensor is missing, or its role can't be guessed.
    """
    if twice := [name for name, number in Counter(tensor.input for tensor in state).items() if number > 1]:
        raise UserError(f"state: {twice[0]!r} is described twice: leave one out")
    needed = tuple(dict.fromkeys(tensor.encoder for tensor in state if tensor.encoder is not None))
    _require(encoder, encoder.outputs, needed, "output", "state.encoder")
    encoder_places = _encoder_places(encoder, of_encoder, needed)
    of_step, sources = _step_inputs(step, of_step, state, encoder_places)
    unplaced = encoder.outputs.keys() - encoder_places.outputs.keys()
    if not state and (lost := [name for name in sources if name in unplaced]):
        sizes = "export the encoder with the sizes of its inputs (x.shape[0]) instead of numbers"
        raise UserError(
            f"{encoder.file}: no axis of its output {lost[0]!r} runs over sources, or a source's values depend on "
            f"others, and the step has an input of that name: {OPTIMIZED if encoder.is_quantized else sizes}, or "
            "describe all states by [[state]], without `encoder` if the first value is zeros"
        )
    outputs = [*(tensor.output for tensor in state), of_step.scores, of_step.attention]
    named = [name for name in outputs if name]
    _require(step, step.outputs, named, "output", "step or state")
    places = place_step(step, of_step, sources, encoder_places, named)
    described = bool(state)
    state = state or _guessed_state(sources, places)
    if not any(tensor.output for tensor in state):
        fault = "no [[state]] has an output" if described else "no output has the shape of a state that it takes"
        raise UserError(f"{step.file}: {fault}: a step returns its new state")
    left = [name for name in places.outputs if name not in {tensor.output for tensor in state}]
    scores = _scores(places, of_step.scores, left, num_symbols)
    attention = None
    if of_step.attention != "" and any(tensor.output is None for tensor in state):
        attention = _attention(places, of_step.attention, left, encoder_places.width)
    return Graphs(
        encoder=encoder_places,
        step=places,
        state=tuple(state),
        scores=scores,
        scores_are=_kind_of_scores(places, scores, of_step.scores_are),
        attention=attention,
    )


def _encoder_places(graph: UserGraph, table: EncoderTable, needed: Sequence[str]) -> EncoderPlaces:
    table = _with_padding(graph, table, "encoder", ())
    taken = (table.source_lengths, table.source_mask, *table.zeros)
    left = [declared for name, declared in graph.inputs.items() if name not in taken]
    source_ids = table.source_ids
    if source_ids is None:
        ids = [declared for declared in left if declared.dtype != "float32" and len(declared.shape) <= 2] or left[:1]
        if len(ids) != 1:
            raise _unclear(graph, ids, "the source's ids", "encoder.source_ids")
        source_ids = ids[0].name
    _require(graph, graph.inputs, [source_ids, *table.zeros], "input", "encoder")
    # A recurrent encoder's first state.
    others = [declared.name for declared in left if declared.name != source_ids]
    completed_table = table.model_copy(update={"source_ids": source_ids, "zeros": (*table.zeros, *others)})
    return place_encoder(graph, completed_table, needed)


def _step_inputs(
    graph: UserGraph, table: StepTable, state: Sequence[StateTable], encoder: EncoderPlaces
) -> tuple[StepTable, dict[str, str | None]]:
    """Returns the table with all inputs; and the state's inputs, each with its first value (see `place_step`)."""
    declared_state = [tensor.input for tensor in state]
    table = _with_padding(graph, table, "step", (*declared_state, *encoder.outputs))
    taken = (table.source_lengths, table.source_mask, *declared_state)
    left = [each for name, each in graph.inputs.items() if name not in taken]
    previous_ids = table.previous_ids
    if previous_ids is None:
        ids = [
            each
            for each in left
            if each.dtype in ("int32", "int64") and len(each.shape) <= 2 and each.name not in encoder.outputs
        ] or [each for each in left if each.name not in encoder.outputs and len(each.shape) == 3][:1]
        if len(ids) != 1:
            raise _unclear(graph, ids or left, "each row's last symbol", "step.previous_ids")
        previous_ids = ids[0].name
    _require(graph, graph.inputs, [previous_ids, *declared_state], "input", "step or state")
    others = [each for each in left if each.name != previous_ids]
    if state and others:
        raise UserError(f"{graph.file}: the input {others[0]} has no part: describe it by a [[state]]")
    sources = {tensor.input: tensor.encoder for tensor in state}
    sources |= dict(_matched(others, list(encoder.outputs.values()), _may_begin))
    return table.model_copy(update={"previous_ids": previous_ids}), sources


AnyTable = TypeVar("AnyTable", EncoderTable, StepTable)


def _with_padding(graph: UserGraph, table: AnyTable, field: str, state: Collection[str]) -> AnyTable:
    """Returns a table with the graph's inputs for lengths and for a mask; those that are not declared are guessed."""
    lengths, mask = table.source_lengths, table.source_mask
    _require(graph, graph.inputs, [name for name in (lengths, mask) if name], "input", field)
    for name, declared in graph.inputs.items():
        if name in state or name in (lengths, mask):
            continue
        if mask is None and "mask" in name.lower():
            mask = name
        elif lengths is None and "len" in name.lower() and len(declared.shape) <= 2 and declared.dtype != "float32":
            lengths = name
    true_on = table.mask_is_true_on
    if mask is not None and "pad" in mask.lower() and "mask_is_true_on" not in table.model_fields_set:
        true_on = "padding"
    return table.model_copy(update={"source_lengths": lengths, "source_mask": mask, "mask_is_true_on": true_on})


def _unclear(graph: UserGraph, choices: Sequence[Declared], values: str, field: str) -> UserError:
    listed = ", ".join(map(str, choices or graph.inputs.values()))
    return UserError(f"{graph.file}: which input takes {values} is not clear among {listed}: name it as {field}")


def _require(graph: UserGraph, known: Mapping[str, Any], names: Iterable[str], kind: str, field: str) -> None:
    for name in names:
        if name not in known:
            raise UserError(f"{field}: {graph.file} has no {kind} {name!r}, only {', '.join(map(repr, known))}")


def _plain(name: str) -> str:
    """Returns a name without the words that distinguish an input from an output of the same tensor."""
    words = re.split(r"[^a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower())
    return "".join(word for word in words if word not in _SIDES) or name.lower()


_SIDES = {
    *("", "in", "out", "input", "output", "new", "next", "n"),
    *("prev", "previous", "past", "present", "last", "final"),
}


def _alike(first: str, second: str) -> float:
    return 1.0 if first == second else 0.99 * difflib.SequenceMatcher(None, _plain(first), _plain(second)).ratio()


def _matched(inputs: Sequence[Any], outputs: Sequence[Placed], fits: Any) -> list[tuple[str, str | None]]:
    """Returns for each input the output with the most similar name among those that fit; None if none fits.

    Of equally similar names, the best fit is taken. Equally good ones keep their order, in which an input counts only
    the outputs that fit it so, and an output the inputs.
    """
    possible = {
        (row, column): fit
        for row, each in enumerate(inputs)
        for column, output in enumerate(outputs)
        if (fit := int(fits(each, output)))
    }

    def distance(row: int, column: int) -> int:
        equal = [pair for pair, fit in possible.items() if fit == possible[row, column]]
        rows, columns = [r for r, c in equal if c == column], [c for r, c in equal if r == row]
        return abs(rows.index(row) - columns.index(column))

    pairs = sorted(
        (-_alike(inputs[row].name, outputs[column].name), -fit, distance(row, column), row, column)
        for (row, column), fit in possible.items()
    )
    chosen: dict[int, int] = {}
    for *_, row, column in pairs:
        if row not in chosen and column not in chosen.values():
            chosen[row] = column
    return [(each.name, outputs[chosen[row]].name if row in chosen else None) for row, each in enumerate(inputs)]


def _may_begin(declared: Declared, output: Placed) -> int:
    """Returns 2 if an output of the encoder can be the first value of a step's input, 1 if only where a graph takes a
    fixed number of rows or positions, or else 0.
    """
    sizes = list(zip(declared.shape, output.axes, strict=False))
    if declared.dtype != output.dtype or len(declared.shape) != len(output.axes):
        return 0
    if all(isinstance(size, str) or size == axis for size, axis in sizes):
        return 2
    return int(
        all(isinstance(size, str) or axis == POSITION or size == (1 if axis == ROW else axis) for size, axis in sizes)
    )


def _guessed_state(sources: Mapping[str, str | None], places: StepPlaces) -> list[StateTable]:
    """Matches the step's inputs with outputs of the same shape and a similar name: their next values."""

    def fits(state: Placed, output: Placed) -> bool:
        same = state.of_one_row == output.of_one_row and state.dtype == output.dtype
        return same and (POSITION not in state.axes or _alike(state.name, output.name) >= ALIKE)

    matched = dict(_matched(list(places.state.values()), list(places.outputs.values()), fits))
    state = [StateTable(input=name, encoder=sources[name], output=output) for name, output in matched.items()]
    for tensor in state:
        if tensor.encoder is None and tensor.output is None:
            raise UserError(
                f"{places.graph.file}: the input {places.graph.inputs[tensor.input]} is no output of the encoder and "
                "none of the step: describe it by a [[state]]"
            )
    return state


def _scores(places: StepPlaces, name: str | None, left: Sequence[str], num_symbols: int | None) -> Placed:
    """Returns the output with a value for each symbol."""
    if name is not None:
        return places.outputs[name]

    def size(output: Placed) -> int:
        sizes = [axis for axis in output.axes if isinstance(axis, int)]
        return 0 if POSITION in output.axes else math.prod(sizes)

    choices = [places.outputs[each] for each in left if places.outputs[each].dtype == "float32"]
    plain = [output for output in choices if size(output)]
    wanted = num_symbols or max(map(size, plain), default=0)
    fitting = [output for output in plain if size(output) == wanted] or plain
    if len(fitting) != 1:
        mixing = [repr(name) for name in places.graph.outputs if name not in places.outputs]
        others = f"; not {', '.join(mixing)}, whose rows depend on other rows or on chance" if mixing else ""
        raise UserError(
            f"{places.graph.file}: no output, or several, have a value for each of {wanted} target symbols among "
            f"{', '.join(map(str, choices))}{others}: name it as step.scores, check target.tokenizer, and export in "
            "evaluation mode"
        )
    return fitting[0]


def _attention(places: StepPlaces, name: str | None, left: Sequence[str], width: int | None) -> Placed | None:
    """Returns the output that has weights of positions, which sum to 1; None if there is none."""
    position = width or POSITION
    for each in [name] if name is not None else left:
        output = places.outputs[each]
        axes = [axis for axis in output.axes if axis != ROW]
        values: Tensor = places.example[each]
        are_nonnegative = values.is_floating_point() and bool((values >= 0).all())
        if position in axes and are_nonnegative and _are_one(values.sum(axes.index(position) + 1)):
            return output
    if name is not None:
        raise UserError(
            f"{places.graph.file}: the output {places.outputs[name]} has no weights of the source's positions, which "
            "sum to 1: leave step.attention out"
        )
    return None


def _are_one(sums: Tensor) -> bool:
    return torch.allclose(sums, torch.ones_like(sums), atol=1e-3)


def _kind_of_scores(places: StepPlaces, scores: Placed, kind: ScoresAre | None) -> ScoresAre:
    values = places.example[scores.name].flatten(1).double()
    actual: ScoresAre = "logits"
    if bool((values >= 0).all()) and _are_one(values.sum(1)):
        actual = "probabilities"
    elif bool((values <= 0).all()) and _are_one(values.exp().sum(1)):
        actual = "log_probs"
    # Logits and log-probabilities give the same distribution.
    if kind is not None and (kind == "probabilities") != (actual == "probabilities"):
        raise UserError(
            f"step.scores_are is {kind!r}, and {places.graph.file} gives {actual}: {scores} has values from "
            f"{values.min():.3g} to {values.max():.3g}, which sum to {values[0].sum():.3g}"
        )
    return kind or actual


def _check_ids(graph: UserGraph, placed: Placed, vocabulary: Vocabulary, side: str) -> None:
    """Refuses one-hot vectors of another size than the vocabulary's."""
    if placed.dtype == "float32" and placed.axes[-1] != vocabulary.num_module_ids:
        raise UserError(
            f"{graph.file}: the input {placed} has {placed.axes[-1]} places for symbols, and {side}.tokenizer has "
            f"{vocabulary.num_module_ids} symbols: both must have one size"
        )
