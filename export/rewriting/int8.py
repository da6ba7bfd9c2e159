"""Rewrites fp32 graphs to int8.

It needs the graphs alone, not the model: a bundle is rewritten like a run. Every scale is fixed or of one row, and
sums of integers are exact in any order: a source gets the same bits alone and in any batch. See docs/architecture.md.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from attendant.export.graph import GraphEditor, TracedPair
from attendant.export.rewriting.bounds import Bounds, step_bounds
from attendant.export.rewriting.products import Activations, replace_products, replace_top
from attendant.export.rewriting.recurrent import replace_recurrent
from attendant.export.rewriting.state import Attention, RowTensor, plan_rows, read_rows, store_rows, write_rows
from attendant.runtime.bundle.manifest import StateTensor

UNTOUCHED: Final = "fp32: element by element, with no product to speed up"
FLOAT_SCORES: Final = "fp32: a tanh for every pair of query and position, which integers would not speed up"


def quantize(pair: TracedPair) -> TracedPair:
    """Returns the int8 graphs of fp32 graphs, which don't change."""
    encoder, step = GraphEditor(pair.encoder.model, "int8"), GraphEditor(pair.decoder_step.model, "int8")
    encoder_bounds, bounds = step_bounds(Bounds, encoder.graph, step.graph, pair.state)
    rows, attention = plan_rows(step, bounds, pair.state), Attention(step)

    activations = Activations(encoder, encoder_bounds)
    arithmetic = replace_recurrent(encoder, activations) | replace_products(encoder, activations)
    attention.store(encoder, activations)
    store_rows(encoder, activations, rows)

    activations = Activations(step, bounds)
    replace_top(step)
    attention.replace(activations)
    read_rows(step, activations, rows)
    arithmetic |= replace_products(step, activations)
    write_rows(step, activations, rows)

    arithmetic |= {codes.name: codes.description for codes in attention.stored}
    arithmetic |= {row.tensor.input: "stored as uint8 in fixed steps" for row in rows if row.step is not None}
    if attention.keys is None and "keys" in {tensor.input for tensor in pair.state}:
        arithmetic["attention scores"] = FLOAT_SCORES
    arithmetic["gates, cell states, softmax, log-probabilities"] = UNTOUCHED
    return TracedPair(
        encoder=encoder.finished(),
        decoder_step=step.finished(),
        state=(*_state(pair.state, rows, attention),),
        # Integers are summed exactly: one query gets the same bits as several.
        min_queries=1,
        arithmetic=arithmetic,
    )


def _state(plain: Sequence[StateTensor], rows: Sequence[RowTensor], attention: Attention) -> Iterator[StateTensor]:
    replaced = {row.origin for row in rows}
    yield from (row.tensor for row in rows)
    yield from (tensor for tensor in plain if tensor not in replaced)
    names = {tensor.input for tensor in plain}
    for name in (*(codes.name for codes in attention.stored), *attention.scales):
        if name not in names:
            yield StateTensor(input=name, output=None, scope="source")
