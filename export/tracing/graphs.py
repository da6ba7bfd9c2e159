"""The two graphs of a model, traced and named.

Shapes: B sources, R rows, S source positions, M queries per source, K candidates, N bans (runtime/stepper.py).

Nothing here knows an architecture: a model says by `state_tensors()` what passes between the graphs, and its own
encoding shows the shapes.
"""

import contextlib
import copy
import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor, nn

from attendant.export.tracing.onnx_layers import with_onnx_layers
from attendant.export.tracing.traced import TracedGraph, TracedPair
from attendant.runtime.bundle import graph_io
from attendant.runtime.bundle.manifest import StateTensor, TensorSpec
from attendant.runtime.bundle.reading import MAX_GRAPH_BYTES
from attendant.runtime.errors import UserError
from attendant.runtime.process import interruptible
from attendant.runtime.stepper import MIN_QUERIES_PER_SOURCE
from attendant.training.model import Seq2Seq
from attendant.training.model.stepper import candidates

EXAMPLE_SOURCES, EXAMPLE_ROWS, EXAMPLE_WIDTH, EXAMPLE_BANS = 3, 5, 8, 3


class _StateGraph(nn.Module):
    def __init__(self, model: Seq2Seq, state: Sequence[StateTensor]) -> None:
        super().__init__()
        self.model = model
        self.state = tuple(state)


class EncoderGraph(_StateGraph):
    """From ids [B, S] int64 and lengths [B] int64 of sources to the state tensors, in order."""

    def forward(self, source_ids: Tensor, source_lengths: Tensor) -> tuple[Tensor, ...]:
        encoded = self.model.encode(source_ids, source_lengths)
        tensors = {**encoded.row_tensors, **encoded.source_tensors}
        return tuple(tensors[tensor.input] for tensor in self.state)


class DecoderStepGraph(_StateGraph):
    """A step of the model and its candidates; the number of candidates becomes an input after tracing."""

    def forward(
        self, previous_ids: Tensor, tensors: list[Tensor], layout: list[Tensor], forced_ids: Tensor, banned_ids: Tensor
    ) -> tuple[Tensor, ...]:
        """See runtime/bundle/graph_io.py for the shapes.

        Args:
            tensors: the state tensors, in order.
            layout: source_rows and row_slots; empty where the model has no attention.
        """
        source_rows, row_slots = layout or (None, None)
        given = list(zip(self.state, tensors, strict=True))
        logits, rows, attention = self.model.step(
            previous_ids,
            {spec.input: tensor for spec, tensor in given if spec.scope == "row"},
            {spec.input: tensor for spec, tensor in given if spec.scope == "source"},
            source_rows,
            row_slots,
        )
        assert (attention is not None) == bool(layout), "a model without source tensors has no attention"
        log_probs, ids, forced_log_probs = candidates(logits, forced_ids, banned_ids, 1)
        stepped = [rows[spec.input] for spec in self.state if spec.output is not None]
        return log_probs, ids, forced_log_probs, *([] if attention is None else [attention]), *stepped


def trace_graphs(model: Seq2Seq) -> TracedPair:
    """Exports both graphs in fp32; the model stays as it is.

    Raises:
        UserError: the weights are more than one ONNX file can hold.
    """
    size = sum(tensor.numel() * 4 for tensor in model.state_dict().values())
    if size >= MAX_GRAPH_BYTES:
        raise UserError(
            f"the weights take {size / 1e9:.1f} GB in fp32 and one ONNX file holds less than 2.1 GB: "
            "train a smaller model (fewer layers, a smaller hidden_size or vocabulary)"
        )
    state = model.state_tensors()
    traced = with_onnx_layers(model)
    specs, examples = _state_examples(model, state)
    encoder = _export(
        EncoderGraph(traced, state),
        _example_sources(EXAMPLE_WIDTH),
        graph_io.ENCODER_INPUTS,
        # In the encoder every source still has one row.
        [TensorSpec(name=spec.name, dtype=spec.dtype, shape=("B", *spec.shape[1:])) for spec in specs],
    )
    has_attention = any(tensor.scope == "source" for tensor in state)
    inputs, outputs = graph_io.step_inputs(has_attention), graph_io.step_outputs(has_attention)
    decoder_step = _export(
        DecoderStepGraph(traced, state),
        (
            torch.zeros(EXAMPLE_ROWS, dtype=torch.int64),
            [_rows(example) if spec.scope == "row" else example for spec, example in zip(state, examples, strict=True)],
            [torch.tensor([[0, 1], [2, 3], [4, 4]]), torch.arange(EXAMPLE_ROWS)] if has_attention else [],
            torch.full((EXAMPLE_ROWS,), -1),
            torch.full((EXAMPLE_ROWS, EXAMPLE_BANS), -1),
        ),
        # The number of candidates is no input of the traced module: it becomes one below.
        [inputs[0], *specs, *inputs[1:-1]],
        [
            *outputs,
            *(
                TensorSpec(name=tensor.output, dtype=spec.dtype, shape=spec.shape)
                for spec, tensor in zip(specs, state, strict=True)
                if tensor.output is not None
            ),
        ],
        num_candidates=inputs[-1],
    )
    return TracedPair(encoder=encoder, decoder_step=decoder_step, state=state, min_queries=MIN_QUERIES_PER_SOURCE)


def _state_examples(model: Seq2Seq, state: Sequence[StateTensor]) -> tuple[list[TensorSpec], tuple[Tensor, ...]]:
    """The state tensors' specifications as the step takes them, and examples of them.

    Encoding at two widths shows which axes are S.
    """
    graph = EncoderGraph(copy.deepcopy(model), state).eval()
    with torch.no_grad():
        narrow: tuple[Tensor, ...] = graph(*_example_sources(EXAMPLE_WIDTH))
        wide = graph(*_example_sources(2 * EXAMPLE_WIDTH))
    specs = [
        TensorSpec(
            name=tensor.input,
            dtype=str(one.dtype).removeprefix("torch."),
            shape=(
                "R" if tensor.scope == "row" else "B",
                *(size if size == other else "S" for size, other in zip(one.shape[1:], two.shape[1:], strict=True)),
            ),
        )
        for tensor, one, two in zip(state, narrow, wide, strict=True)
    ]
    return specs, narrow


def _export(
    module: nn.Module,
    arguments: tuple[Any, ...],
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    num_candidates: TensorSpec | None = None,
) -> TracedGraph:
    """The module as a graph.

    Args:
        inputs, outputs: as they are traced, in order; the graph's dimensions are named as these say.
        num_candidates: becomes an input; None: the graph has no candidates.
    """
    remaining = iter(inputs)

    def dynamic(argument: Any) -> Any:
        """Symbolic dimensions by axis, in the arguments' own nesting."""
        if isinstance(argument, list):
            return [dynamic(one) for one in argument]
        return {axis: size for axis, size in enumerate(next(remaining).shape) if isinstance(size, str)}

    shapes = tuple(dynamic(argument) for argument in arguments)

    @torch.no_grad()
    def trace() -> torch.onnx.ONNXProgram | None:
        return torch.onnx.export(
            module.eval(),
            arguments,
            input_names=[spec.name for spec in inputs],
            output_names=[spec.name for spec in outputs],
            dynamic_shapes=shapes,
            dynamo=True,
            verbose=False,
        )

    with _silence():
        # Interrupted itself, the exporter goes on as if nothing had been, or fails with an error of its own.
        program = interruptible(trace)
    assert program is not None, "the dynamo exporter returns a program"
    graph = program.model.graph
    domains = {*program.model.opset_imports, *(node.domain for node in graph.all_nodes())}
    assert domains <= {""} and not program.model.functions, f"only standard operators are portable, got {domains}"
    _declare(graph.inputs, inputs)
    _declare(graph.outputs, outputs)
    if num_candidates is not None:
        # Where the exporter left a constant: the k of the graph's one TopK.
        count = ir.val(num_candidates.name, _dtype(num_candidates), num_candidates.shape)
        graph.inputs.append(count)
        (top,) = [node for node in graph if node.op_type == "TopK"]
        top.replace_input_with(1, count)
    return TracedGraph.of(program.model)


def _declare(values: Sequence[ir.Value], specs: Sequence[TensorSpec]) -> None:
    """Names the dimensions as the manifest does; types and ranks must be what was traced."""
    assert [value.name for value in values] == [spec.name for spec in specs]
    for value, spec in zip(values, specs, strict=True):
        assert value.dtype == _dtype(spec) and len(value.shape or ()) == len(spec.shape), f"{value} is not {spec}"
        value.shape = ir.Shape(spec.shape)


def _dtype(spec: TensorSpec) -> ir.DataType:
    return ir.DataType.from_numpy(np.dtype(spec.dtype))


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """The exporter warns and logs about itself, not about the model: what it makes is verified, not trusted."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


def _example_sources(width: int) -> tuple[Tensor, Tensor]:
    """Ids [B, S] and lengths [B] int64."""
    return torch.zeros(EXAMPLE_SOURCES, width, dtype=torch.int64), torch.tensor([width, width // 2, 1])


def _rows(example: Tensor) -> Tensor:
    return example[:1].expand(EXAMPLE_ROWS, *example.shape[1:]).contiguous()
