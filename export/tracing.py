"""Traces a model in PyTorch into the two fp32 graphs, and names their dimensions.

Shapes: B sources, R rows, S source positions, M queries per source, K candidates, N bans (runtime/stepper.py); I
inputs, H hidden size of one direction, D = 1 or 2 directions, G = 4 (LSTM), 3 (GRU) or 1 (tanh RNN) gates.

Nothing here depends on an architecture: a model lists by `state_tensors()` which tensors pass between the graphs, and
its own encoding shows their shapes. torch's exporter writes the encoder's recurrent nodes without `sequence_lens`: the
backward direction then runs over the padding, and a source's encoding depends on the width of its batch. So
`OnnxRecurrentLayer`, which takes the lengths, replaces these layers. `InlinedGraph` puts a user's ONNX graphs into a
trace.
"""

import contextlib
import copy
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnx
import onnx_ir as ir
import torch
from onnx import compose
from torch import Tensor, nn

from attendant.export.graph import GraphEditor, TracedGraph, TracedPair, operand
from attendant.runtime.bundle import graph_io
from attendant.runtime.bundle.graph_content import OPERATORS as OPERATORS_OF_BUNDLES
from attendant.runtime.bundle.manifest import SpecialIds, StateTensor, TensorSpec
from attendant.runtime.bundle.reading import MAX_GRAPH_BYTES
from attendant.runtime.bundle.tokenizer import special_ids
from attendant.runtime.errors import UserError
from attendant.runtime.process import interruptible
from attendant.runtime.stepper import MIN_QUERIES_PER_SOURCE, Stepper
from attendant.training.model import RecurrentWeights, Seq2Seq, weights_of
from attendant.training.model.encoder import RecurrentLayer
from attendant.training.model.stepper import TorchStepper, candidates

NODE_VERSION: Final = 14  # Version of the ONNX operators LSTM, GRU and RNN.
OPERATORS: Final = {
    # torch: input, forget, cell, output. ONNX: input, output, forget, cell.
    "lstm": ("LSTM", (0, 3, 1, 2), 3),
    # torch: reset, update, new. ONNX: update, reset, hidden.
    "gru": ("GRU", (1, 0, 2), 2),
    "rnn": ("RNN", (0,), 2),
}
"""Name, order of the gates and number of outputs: all states, the last ones and an LSTM's last cells."""


class NotPortable(ValueError):
    """A model has an operator that bundles may not contain."""


class OnnxRecurrentLayer(nn.Module):
    """A recurrent layer as one ONNX node, which takes the lengths of its sequences."""

    input_weights: Tensor
    recurrent_weights: Tensor
    biases: Tensor

    def __init__(self, cell: str, directions: Sequence[RecurrentWeights]) -> None:
        """Copies the weights of one or two directions; `cell` is a key of OPERATORS."""
        super().__init__()
        self.operator, gates, self.num_outputs = OPERATORS[cell]
        self.num_directions = len(directions)
        # ONNX Runtime's RNN rounds differently for a batch of one, so it gets another row.
        self.has_spare = self.operator == "RNN"
        self.hidden_size = directions[0][1].shape[1]

        def reordered(part: int) -> Tensor:
            """Returns [D, G * H, ...] from each direction's [G * H, ...], with the gates in ONNX's order."""
            blocks = [weights[part].detach().chunk(len(gates)) for weights in directions]
            return torch.stack([torch.cat([block[gate] for gate in gates]) for block in blocks])

        self.register_buffer("input_weights", reordered(0))
        self.register_buffer("recurrent_weights", reordered(1))
        self.register_buffer("biases", torch.cat([reordered(2), reordered(3)], 1))

    @classmethod
    def of(cls, layer: RecurrentLayer) -> "OnnxRecurrentLayer":
        """Returns the layer that replaces one of our encoders: the same call and weights."""
        rnns = [rnn for rnn in (layer.forward_rnn, layer.backward_rnn) if rnn is not None]
        return cls(layer.cell, [weights_of(rnn) for rnn in rnns])

    def forward(self, inputs: Tensor, lengths: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Runs the layer over inputs [B, S, I] float32 of lengths [B] int64.

        Returns outputs [B, S, D * H], zero beyond the lengths, and the last states, each part [B, D * H].
        """
        outputs, finals = self._with_spare(inputs, lengths, ())
        parts = [final.transpose(0, 1).flatten(1) for final in finals]
        return (outputs[:-1], (parts[0][:-1],)) if self.has_spare else (outputs, tuple(parts))

    def run(
        self, inputs: Tensor, lengths: Tensor | None, initial: Sequence[Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Runs the layer from first states, each part [D, B, H]; returns the last ones in that shape, too."""
        outputs, finals = self._with_spare(inputs, lengths, initial or ())
        return (outputs[:-1], (finals[0][:, :-1],)) if self.has_spare else (outputs, finals)

    def _with_spare(
        self, inputs: Tensor, lengths: Tensor | None, initial: Sequence[Tensor]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Runs the node, with another row if `has_spare`; returns outputs [B, S, D * H] and parts [D, B, H]."""
        if self.has_spare:
            inputs = torch.cat([inputs, inputs[:1]])
            lengths = None if lengths is None else torch.cat([lengths, lengths[:1]])
            initial = [torch.cat([part, part[:, :1]], 1) for part in initial]
        positions_first = inputs.transpose(0, 1)
        steps = None if lengths is None else lengths.to(torch.int32)
        outputs, *finals = self._node(positions_first, steps, initial)
        return outputs.permute(2, 0, 1, 3).flatten(2), tuple(finals)

    def _node(self, inputs: Tensor, lengths: Tensor | None, initial: Sequence[Tensor]) -> Sequence[Tensor]:
        """Returns outputs [S, D, B, H] of inputs [S, B, I], last states [D, B, H] and an LSTM's last cells."""
        width, num_sources, _ = inputs.shape
        final_shape = (self.num_directions, num_sources, self.hidden_size)
        attributes: dict[str, Any] = {
            "hidden_size": self.hidden_size,
            "direction": "bidirectional" if self.num_directions == 2 else "forward",
        }
        if self.operator == "GRU":
            # torch and cuDNN apply the reset gate after the recurrent product.
            attributes["linear_before_reset"] = 1
        outputs: Sequence[Tensor] = torch.onnx.ops.symbolic_multi_out(
            self.operator,
            (inputs, self.input_weights, self.recurrent_weights, self.biases, lengths, *initial),
            attrs=attributes,
            dtypes=(torch.float32,) * self.num_outputs,
            shapes=[(width, *final_shape), *[final_shape] * (self.num_outputs - 1)],
            version=NODE_VERSION,
        )
        return outputs


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceableModel:
    """A model in PyTorch, prepared for an export.

    Attributes:
        encoder: from ids [B, S] int64 and lengths [B] int64 of sources to the state tensors, in the order of `state`.
        decoder_step: see DecoderStep. Both are traced as they are: they have no layer that depends on padding.
        state: the tensors that pass between the graphs, with their scopes.
        reference: decodes with the model in PyTorch; the graphs are compared with it.
        exact_reference: makes a reference in float64, which shows how much of an error is rounding.
        max_positions: of a source, with BOS and EOS; None if there is no limit.
        encode_alone: see GraphPair of the manifest.
        splits_gemms: products with weights become MatMul and Add, whose bits don't depend on the number of rows. Our
            own models are written so that their products don't depend on it.
    """

    encoder: nn.Module
    decoder_step: nn.Module
    state: tuple[StateTensor, ...]
    special_ids: SpecialIds
    architecture: Mapping[str, Any]
    reference: Stepper
    exact_reference: Callable[[], Stepper]
    max_positions: int | None = None
    encode_alone: bool = False
    splits_gemms: bool = False


def traceable(model: Seq2Seq) -> TraceableModel:
    """Returns a trained model for tracing: a copy whose recurrent layers are ONNX nodes."""
    traced, state = copy.deepcopy(model).eval(), model.state_tensors()
    for module in list(traced.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, RecurrentLayer):
                setattr(module, name, OnnxRecurrentLayer.of(child))
    return TraceableModel(
        encoder=Encoder(traced, state),
        decoder_step=DecoderStep(traced, state),
        state=state,
        special_ids=special_ids(model.start_id),
        architecture={**model.config.model_dump(mode="json"), "num_parameters": model.num_parameters},
        reference=TorchStepper(model),
        exact_reference=lambda: TorchStepper(copy.deepcopy(model).double()),
    )


EXAMPLE_SOURCES, EXAMPLE_ROWS, EXAMPLE_WIDTH, EXAMPLE_BANS = 3, 5, 8, 3


class Encoder(nn.Module):
    """The encoder that is traced, of a model with `encode` and `step` like Seq2Seq's; see TraceableModel."""

    def __init__(self, model: Any, state: Sequence[StateTensor]) -> None:
        super().__init__()
        self.model, self.state = model, state

    def forward(self, source_ids: Tensor, source_lengths: Tensor) -> tuple[Tensor, ...]:
        encoded = self.model.encode(source_ids, source_lengths)
        tensors = {**encoded.row_tensors, **encoded.source_tensors}
        return tuple(tensors[tensor.input] for tensor in self.state)


class DecoderStep(nn.Module):
    """A model's step and its candidates; the number of candidates becomes an input after tracing."""

    def __init__(self, model: Any, state: Sequence[StateTensor]) -> None:
        super().__init__()
        self.model, self.state = model, state

    def forward(
        self, previous_ids: Tensor, tensors: list[Tensor], layout: list[Tensor], forced_ids: Tensor, banned_ids: Tensor
    ) -> tuple[Tensor, ...]:
        """Runs a step (runtime/bundle/graph_io.py); `layout` is source_rows and row_slots, empty without attention."""
        source_rows, row_slots = layout or (None, None)
        by_scope: dict[str, dict[str, Tensor]] = {"row": {}, "source": {}}
        for spec, tensor in zip(self.state, tensors, strict=True):
            by_scope[spec.scope][spec.input] = tensor
        logits, rows, attention = self.model.step(
            previous_ids, by_scope["row"], by_scope["source"], source_rows, row_slots
        )
        assert (attention is not None) == bool(layout), "a model without source tensors has no attention"
        log_probs, ids, forced_log_probs = candidates(logits, forced_ids, banned_ids, 1)
        stepped = [rows[spec.input] for spec in self.state if spec.output is not None]
        return log_probs, ids, forced_log_probs, *([] if attention is None else [attention]), *stepped


DOMAIN: Final = "inlined"  # The domain of the nodes that `_inline` replaces by ONNX graphs.


class InlinedGraph(nn.Module):
    """A part of a PyTorch model that is an ONNX graph. A trace has one node for it; `_inline` puts the graph there.

    Attributes:
        label: names the node; unique in the model.
        row_by_row: the graph takes a single row. It becomes the body of a `Scan` over the first axis of all its inputs,
            and its outputs get that axis, too.
    """

    def __init__(self, label: str, *, row_by_row: bool) -> None:
        super().__init__()
        self.label, self.row_by_row = label, row_by_row

    def onnx_model(self, opset: int) -> onnx.ModelProto:
        """Returns the graph in this version of ONNX's operators."""
        raise NotImplementedError

    def node(self, inputs: Sequence[Tensor], dtypes: Sequence[torch.dtype], shapes: Sequence[Any]) -> Sequence[Tensor]:
        """Adds the graph's node to a trace; returns the node's outputs."""
        outputs: Sequence[Tensor] = torch.onnx.ops.symbolic_multi_out(
            f"{DOMAIN}::{self.label}", inputs, dtypes=dtypes, shapes=shapes, version=1
        )
        return outputs


def _inline(model: ir.Model, module: nn.Module) -> None:
    """Replaces the nodes of a module's inlined graphs in its trace."""
    graphs = {part.label: part for part in module.modules() if isinstance(part, InlinedGraph)}
    opset = model.opset_imports[""]
    for number, node in enumerate([node for node in model.graph if node.domain == DOMAIN]):
        inlined = graphs[node.op_type]
        proto = compose.add_prefix(inlined.onnx_model(opset), f"{node.op_type}_{number}/")
        inner = ir.from_proto(proto).graph
        (_scan if inlined.row_by_row else _insert)(model.graph, node, inner)
    model.opset_imports.pop(DOMAIN, None)


def _insert(graph: ir.Graph, node: ir.Node, inner: ir.Graph) -> None:
    """Moves the nodes and constants of a graph to the place of a node."""
    for outer, value in zip(node.inputs, list(inner.inputs), strict=True):
        assert outer is not None
        value.replace_all_uses_with(outer, replace_graph_outputs=True)
    results = list(inner.outputs)
    inner.outputs.clear()
    for name, value in list(inner.initializers.items()):
        del inner.initializers[name]
        graph.register_initializer(value)
    nodes = list(inner)
    inner.remove(nodes)
    graph.insert_before(node, nodes)
    _replace(graph, node, results)


def _scan(graph: ir.Graph, node: ir.Node, body: ir.Graph) -> None:
    """Replaces a node by a `Scan` over rows, whose body is a graph of one row."""
    attributes: dict[str, Any] = {"body": body, "num_scan_inputs": len(node.inputs)}
    scan = ir.node("Scan", list(node.inputs), attributes, num_outputs=len(node.outputs), name=node.name)
    graph.insert_before(node, scan)
    _replace(graph, node, scan.outputs)


def _replace(graph: ir.Graph, node: ir.Node, results: Sequence[ir.Value]) -> None:
    """Redirects all uses of a node's outputs to these values, and removes the node."""
    for old, new in zip(node.outputs, results, strict=True):
        if old.is_graph_output():
            identity = ir.node("Identity", [new])
            graph.insert_before(node, identity)
            new = identity.outputs[0]  # noqa: PLW2901
            old.name, new.name = f"{old.name}/replaced", old.name
        new.type, new.shape = old.type, old.shape
        old.replace_all_uses_with(new, replace_graph_outputs=True)
    graph.remove(node, safe=True)


def trace_graphs(model: TraceableModel) -> TracedPair:
    """Exports both graphs in fp32. Raises UserError: the weights are more than one ONNX file can hold."""
    weights = {**model.encoder.state_dict(), **model.decoder_step.state_dict()}
    size = sum(tensor.numel() * 4 for tensor in weights.values())
    if size >= MAX_GRAPH_BYTES:
        raise UserError(
            f"the weights take {size / 1e9:.1f} GB in fp32 and one ONNX file holds less than 2.1 GB: "
            "train a smaller model (fewer layers, a smaller hidden_size or vocabulary)"
        )
    # Encoding at two widths shows which axes are S.
    longest = 2 * EXAMPLE_WIDTH if model.max_positions is None else min(2 * EXAMPLE_WIDTH, model.max_positions)
    width = min(EXAMPLE_WIDTH, max(2, longest - 1))
    with torch.no_grad():
        # The exporter can't convert the strides of a view with gaps; a copy has none.
        examples = tuple(tensor.clone() for tensor in model.encoder(*_example_sources(width)))
        wide: tuple[Tensor, ...] = model.encoder(*_example_sources(max(longest, width + 1)))
    shapes = [
        tuple(size if size == other else "S" for size, other in zip(narrow.shape[1:], wider.shape[1:], strict=True))
        for narrow, wider in zip(examples, wide, strict=True)
    ]

    def specs(names: Sequence[str | None], scopes: Mapping[str, str]) -> list[TensorSpec]:
        """Returns the state tensors' specifications under these names; their first axis is that of their scope."""
        return [
            TensorSpec(name=name, dtype=str(example.dtype).removeprefix("torch."), shape=(scopes[tensor.scope], *shape))
            for name, tensor, example, shape in zip(names, model.state, examples, shapes, strict=True)
            if name is not None
        ]

    input_names = [tensor.input for tensor in model.state]
    encoder = _export(
        model.encoder,
        _example_sources(width),
        graph_io.ENCODER_INPUTS,
        # The encoder gives every source one row.
        specs(input_names, {"row": "B", "source": "B"}),
        splits_gemms=model.splits_gemms,
    )
    has_attention = any(tensor.scope == "source" for tensor in model.state)
    inputs, outputs = graph_io.step_inputs(has_attention), graph_io.step_outputs(has_attention)
    axes = {"row": "R", "source": "B"}
    decoder_step = _export(
        model.decoder_step,
        (
            torch.zeros(EXAMPLE_ROWS, dtype=torch.int64),
            [
                example[:1].expand(EXAMPLE_ROWS, *example.shape[1:]).contiguous() if spec.scope == "row" else example
                for spec, example in zip(model.state, examples, strict=True)
            ],
            [torch.tensor([[0, 1], [2, 3], [4, 4]]), torch.arange(EXAMPLE_ROWS)] if has_attention else [],
            torch.full((EXAMPLE_ROWS,), -1),
            torch.full((EXAMPLE_ROWS, EXAMPLE_BANS), -1),
        ),
        # The number of candidates is not an input of the traced module: it becomes one below.
        [inputs[0], *specs(input_names, axes), *inputs[1:-1]],
        [*outputs, *specs([tensor.output for tensor in model.state], axes)],
        num_candidates=inputs[-1],
        splits_gemms=model.splits_gemms,
    )
    return TracedPair(encoder=encoder, decoder_step=decoder_step, state=model.state, min_queries=MIN_QUERIES_PER_SOURCE)


def _export(
    module: nn.Module,
    arguments: tuple[Any, ...],
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    num_candidates: TensorSpec | None = None,
    *,
    splits_gemms: bool,
) -> TracedGraph:
    """Returns the module as a graph, whose inputs and outputs, in the module's order, name their dimensions.

    `num_candidates` becomes an input of the graph, if it has candidates.
    """
    remaining = iter(inputs)

    def dynamic(argument: Any) -> Any:
        """Returns the symbolic dimensions by axis, in the arguments' own nesting."""
        if isinstance(argument, list):
            return [dynamic(part) for part in argument]
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
        # The exporter itself swallows an interruption, or fails with an error of its own.
        program = interruptible(trace)
    assert program is not None, "the dynamo exporter returns a program"
    graph = program.model.graph
    domains = {*program.model.opset_imports, *(node.domain for node in graph.all_nodes())}
    assert domains <= {"", DOMAIN} and not program.model.functions, f"only standard operators are portable: {domains}"
    for node in graph.all_nodes():
        if node.domain != DOMAIN and node.op_type not in OPERATORS_OF_BUNDLES.get(node.domain, ()):
            raise NotPortable(f"bundles may not contain the operator {node.op_type}")
        if any(value.dtype == ir.DataType.BFLOAT16 for value in node.outputs):
            raise ValueError(f"{node.op_type} computes in bfloat16, which onnxruntime does not")
    _declare(graph.inputs, inputs)
    _declare(graph.outputs, outputs)
    if num_candidates is not None:
        # It replaces a constant: the k of the TopK that makes the candidates.
        count = ir.val(num_candidates.name, _dtype(num_candidates), num_candidates.shape)
        graph.inputs.append(count)
        top = graph.outputs[0].producer()
        assert top is not None and top.op_type == "TopK", f"{top} makes the candidates"
        top.replace_input_with(1, count)
    _inline(program.model, module)
    if splits_gemms:
        _split_gemms(graph)
    traced = TracedGraph.of(program.model)
    has_logarithms = any(node.op_type in LOGARITHMS for node in traced.model.graph.node)
    return by_element(traced.model) if has_logarithms else traced


LOGARITHMS: Final = frozenset({"Log", "Softplus"})


def by_element(model: onnx.ModelProto) -> TracedGraph:
    """Returns a graph with ReduceLogSum over an axis of one element instead of Log, also instead of that in Softplus.

    ONNX Runtime computes Log and Softplus in vectors, and the elements that are left over at the ends of each thread's
    part with another function, which rounds differently. A reduction uses one function for all elements, as Exp does.
    The results have the same accuracy and take as long.
    """
    editor = GraphEditor(model, "logarithms")
    nodes = [node for node in editor.graph if node.op_type in LOGARITHMS]
    last, unit = editor.integers(-1), editor.add_constant(np.float32(1), "one")
    for node in nodes:
        x = argument = operand(node)
        if node.op_type == "Softplus":
            # log(1 + exp(x)), without large exponents: max(x, 0) + log(1 + exp(-|x|)).
            argument = editor.add("Add", [editor.add("Exp", [editor.add("Neg", [editor.add("Abs", [x])])]), unit])
        result = editor.add("ReduceLogSum", [editor.add("Unsqueeze", [argument, last]), last], keepdims=0)
        if node.op_type == "Softplus":
            result = editor.add("Add", [editor.add("Relu", [x]), result])
        editor.replace(node.outputs[0], result)
    return editor.finished()


def _split_gemms(graph: ir.Graph) -> None:
    """Replaces products with weights by MatMul and Add, because a Gemm of one row rounds differently."""
    for node in list(graph):
        weights = node.inputs[1] if node.op_type == "Gemm" else None
        if weights is None or weights.const_value is None or len(node.inputs) != 3 or node.inputs[0] is None:
            continue
        attributes = {name: attribute.value for name, attribute in node.attributes.items()}
        if attributes.get("transA") or attributes.get("alpha", 1.0) != 1.0 or attributes.get("beta", 1.0) != 1.0:
            continue
        matrix = weights.const_value.numpy()
        name = f"{weights.name}_of_rows"
        if name not in graph.initializers:
            tensor = ir.tensor(np.ascontiguousarray(matrix.T if attributes.get("transB") else matrix), name=name)
            shape = ir.Shape(matrix.T.shape if attributes.get("transB") else matrix.shape)
            graph.register_initializer(ir.Value(name=name, const_value=tensor, type=weights.type, shape=shape))
        product = ir.node("MatMul", [node.inputs[0], graph.initializers[name]])
        added = ir.node("Add", [product.outputs[0], node.inputs[2]])
        graph.insert_before(node, [product, added])
        output, replaced = node.outputs[0], added.outputs[0]
        output.replace_all_uses_with(replaced, replace_graph_outputs=True)
        replaced.name, replaced.type, replaced.shape = output.name, output.type, output.shape
        graph.remove(node, safe=True)
        if weights.name in graph.initializers and not weights.uses():
            del graph.initializers[weights.name or ""]


def _declare(values: Sequence[ir.Value], specs: Sequence[TensorSpec]) -> None:
    """Names the dimensions of inputs or outputs, whose types and ranks must be those that were traced."""
    assert [value.name for value in values] == [spec.name for spec in specs]
    for value, spec in zip(values, specs, strict=True):
        assert value.dtype == _dtype(spec) and len(value.shape or ()) == len(spec.shape), f"{value} is not {spec}"
        value.shape = ir.Shape(spec.shape)


def _dtype(spec: TensorSpec) -> ir.DataType:
    return ir.DataType.from_numpy(np.dtype(spec.dtype))


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Silences the exporter's warnings about itself, and its print of a graph that fails: its error names the line."""
    disabled = logging.root.manager.disable
    logging.disable(logging.ERROR)
    unread = io.StringIO()
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(unread), contextlib.redirect_stderr(unread):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


def _example_sources(width: int) -> tuple[Tensor, Tensor]:
    """Returns ids [B, S] and lengths [B] int64."""
    return torch.zeros(EXAMPLE_SOURCES, width, dtype=torch.int64), torch.tensor([width, width // 2, 1])
