"""ONNX graphs as users give them to `attendant import onnx`: an attention GRU, written in many forms.

All forms compute the same function, so a naive loop around the plain form is the reference for all.

Shapes: B sources, R rows, S positions, V symbols, E embedding size, H hidden size.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import numpy_helper, parser

from tests.own_models import SYMBOLS, TutorialTranslator
from tests.paths import ROOT

V, E, H = len(SYMBOLS), 8, 16


@dataclass(frozen=True, kw_only=True)
class Form:
    """The form in which the graphs are written.

    Attributes:
        batch: the name of the axes of sources and rows, or their fixed size.
        positions: the name of the axis of positions, or its fixed size.
        ids: type of ids; "onehot" means vectors.
        padding: the form in which both graphs get the padding.
        hidden_input: the encoder takes its first state as an input.
        attention: if False, the step gets the source only through its first state.
    """

    batch: str | int = "B"
    positions: str | int = "S"
    time_major: bool = False
    ids: Literal["int64", "int32", "onehot"] = "int64"
    padding: Literal["none", "given", "inverted"] = "none"
    scores: Literal["logits", "log_probs", "probabilities"] = "logits"
    hidden_input: bool = False
    attention: bool = True
    opset: int = 17
    dropout: bool = False


def weights(seed: int = 1) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)

    def matrix(*shape: int) -> np.ndarray:
        return random.normal(0, 1.5 / np.sqrt(shape[-1]), shape).astype(np.float32)

    return {
        "source_embedding": matrix(V, E) * 3,
        "target_embedding": matrix(V, E) * 3,
        **{f"enc_{name}": matrix(1, *shape) for name, shape in _gru(E).items()},
        **{f"dec_{name}": matrix(1, *shape) for name, shape in _gru(E + H).items()},
        **{f"plain_{name}": matrix(1, *shape) for name, shape in _gru(E).items()},
        "out_weight": matrix(H, V) * 4,
        "out_bias": matrix(V),
    }


def _gru(inputs: int) -> dict[str, tuple[int, ...]]:
    return {"W": (3 * H, inputs), "R": (3 * H, H), "B": (6 * H,)}


def write_graphs(folder: Path, form: Form | None = None, *, external: bool = False) -> tuple[Path, Path]:
    """Writes encoder.onnx and step.onnx."""
    form = form or Form()
    folder.mkdir(exist_ok=True)
    paths = folder / "encoder.onnx", folder / "step.onnx"
    for path, text in zip(paths, (_encoder(form), _step(form)), strict=True):
        model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : {form.opset}]> {text}')
        used = {name for node in model.graph.node for name in node.input}
        constants = {name: values for name, values in _constants().items() if name in used}
        model.graph.initializer.extend(numpy_helper.from_array(values, name) for name, values in constants.items())
        model.producer_name = "by hand"
        onnx.checker.check_model(model, full_check=True)
        onnx.save(model, path, save_as_external_data=external, location=f"{path.stem}.data", size_threshold=0)
    return paths


def _constants() -> dict[str, np.ndarray]:
    return {
        **weights(),
        "one": np.array([1], np.int64),
        "axis0": np.array([0], np.int64),
        "floor": np.array(-1e9, np.float32),
        "none": np.zeros((), np.float32),
        "half": np.array(0.5, np.float32),
    }


def _ids(form: Form, name: str, shape: str) -> tuple[str, str]:
    """Returns the declaration of ids, and the nodes that embed them as `embedded`."""
    if form.ids == "onehot":
        return f"float[{shape},{V}] {name}", f"embedded = MatMul({name}, {{}}_embedding)"
    return f"{form.ids}[{shape}] {name}", f"embedded = Gather({{}}_embedding, {name})"


def _padding(form: Form, batch: str | int) -> tuple[str, str]:
    """Returns the declaration of a graph's mask, and the nodes that make `valid` [B, S] of it."""
    if form.padding == "none":
        return "", ""
    shape = f"{form.positions},{batch}" if form.time_major else f"{batch},{form.positions}"
    turn = "Transpose <perm = [1, 0]>" if form.time_major else "Identity"
    if form.padding == "given":
        return f", float[{shape}] attention_mask", f"turned = {turn}(attention_mask) valid = Greater(turned, half)"
    return f", bool[{shape}] key_padding_mask", f"turned = {turn}(key_padding_mask) valid = Not(turned)"


def _encoder(form: Form) -> str:
    batch, positions = form.batch, form.positions
    shape = f"{positions},{batch}" if form.time_major else f"{batch},{positions}"
    declared, embed = _ids(form, "tokens", shape)
    # The last inputs of GRU, which may be left out.
    lengths, h0 = "lengths" if form.padding != "none" else "", "h0" if form.hidden_input else ""
    if lengths:
        declared += f", int32[{batch}] lengths"
    if h0:
        declared += f", float[1,{batch},{H}] h0"
    turn = "Identity" if form.time_major else "Transpose <perm = [1, 0, 2]>"
    others = f", {lengths}, {h0}".rstrip(", ")
    drop = "dropped = Dropout(embedded)" if form.dropout else "dropped = Identity(embedded)"
    memory = f"float[{shape},{H}] memory, " if form.attention else ""
    return f"""
    encoder ({declared}) => ({memory}float[1,{batch},{H}] hidden) {{
        {embed.format("source")}
        {drop}
        steps = {turn}(dropped)
        states, hidden = GRU <hidden_size = {H}, linear_before_reset = 1>(steps, enc_W, enc_R, enc_B{others})
        {f"squeezed = Squeeze(states, one) memory = {turn}(squeezed)" if form.attention else ""}
    }}"""


def _step(form: Form) -> str:
    batch = "R" if form.batch == "B" else form.batch
    declared, embed = _ids(form, "token", f"1,{batch}" if form.time_major else f"{batch},1")
    shape = f"{form.positions},{batch},{H}" if form.time_major else f"{batch},{form.positions},{H}"
    mask, valid = _padding(form, batch) if form.attention else ("", "")
    memory = f", float[{shape}] memory" if form.attention else ""
    first = "Identity" if form.time_major else "Transpose <perm = [1, 0, 2]>"
    turn = "Transpose <perm = [1, 0, 2]>" if form.time_major else "Identity"
    masked = "m = Unsqueeze(valid, one) s = Where(m, raw, floor)" if form.padding != "none" else "s = Identity(raw)"
    attend = f"""
        own = {turn}(memory)
        query = Transpose <perm = [1, 0, 2]>(hidden)
        columns = Transpose <perm = [0, 2, 1]>(own)
        raw = MatMul(query, columns)
        {masked}
        weights = Softmax <axis = -1>(s)
        row_context = MatMul(weights, own)
        context = Transpose <perm = [1, 0, 2]>(row_context)
        joined = Concat <axis = 2>(inputs, context)
    """
    cell = "dec" if form.attention else "plain"
    scores = {"logits": "Identity", "log_probs": "LogSoftmax <axis = -1>", "probabilities": "Softmax <axis = -1>"}
    attention = f", float[{batch},1,{form.positions}] weights" if form.attention else ""
    return f"""
    step ({declared}, float[1,{batch},{H}] hidden{memory}{mask})
        => (float[{batch},1,{V}] predictions, float[1,{batch},{H}] new_hidden{attention}) {{
        {embed.format("target")}
        inputs = {first}(embedded)
        {valid}
        {attend if form.attention else "joined = Identity(inputs)"}
        all, new_hidden = GRU <hidden_size = {H}, linear_before_reset = 1>(
            joined, {cell}_W, {cell}_R, {cell}_B, , hidden)
        rows = Transpose <perm = [1, 0, 2]>(new_hidden)
        product = MatMul(rows, out_weight)
        logits = Add(product, out_bias)
        predictions = {scores[form.scores]}(logits)
    }}"""


class TutorialEncoder(torch.nn.Module):
    """The tutorial's encoder as its user exports it: without lengths or a mask."""

    def __init__(self, model: TutorialTranslator) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        outputs, hidden = self.model.encoder_gru(self.model.encoder_embedding(tokens))
        return outputs, hidden


class TutorialStep(torch.nn.Module):
    def __init__(self, model: TutorialTranslator) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, token: torch.Tensor, hidden: torch.Tensor, encoder_outputs: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        source = {"outputs": encoder_outputs, "mask": torch.ones_like(encoder_outputs[..., 0], dtype=torch.bool)}
        logits, rows, weights = self.model.step(token[:, 0], {"hidden": hidden[0]}, source)
        return torch.log_softmax(logits, -1), rows["hidden"][None], weights


def export_with_torch(model: TutorialTranslator, folder: Path) -> tuple[Path, Path]:
    """Writes encoder.onnx and step.onnx by torch's exporter."""
    batch, width, rows = torch.export.Dim("batch"), torch.export.Dim("width"), torch.export.Dim("rows")
    size, ids = model.encoder_gru.hidden_size, torch.ones(3, 6, dtype=torch.int64)

    def export(module: torch.nn.Module, arguments: Any, file: str, inputs: str, outputs: str, dynamic: Any) -> Path:
        with warnings.catch_warnings():
            # The exporter warns about itself.
            warnings.simplefilter("ignore")
            torch.onnx.export(
                module.eval(),
                arguments,
                folder / file,
                input_names=inputs.split(),
                output_names=outputs.split(),
                dynamic_shapes=dynamic,
                dynamo=True,
                verbose=False,
            )
        return folder / file

    arguments = ids[:, :1], torch.zeros(1, 3, size), torch.zeros(3, 6, size)
    dynamic = {0: rows}, {1: rows}, {0: rows, 1: width}
    names = "token hidden encoder_outputs", "log_probs new_hidden attention"
    return (
        export(TutorialEncoder(model), (ids,), "encoder.onnx", "tokens", "outputs hidden", ({0: batch, 1: width},)),
        export(TutorialStep(model), arguments, "step.onnx", *names, dynamic),
    )


@dataclass(frozen=True, kw_only=True)
class Names:
    """Names of two graphs' tensors; `state` and `memory`: the encoder's output, the step's input and its output."""

    ids: str
    token: str
    scores: str
    state: tuple[str, str, str]
    memory: tuple[str, str]
    dtype: type = np.int64


PLAIN = Names(
    ids="tokens",
    token="token",
    scores="predictions",
    state=("hidden", "hidden", "new_hidden"),
    memory=("memory", "memory"),
)
KERAS = Names(
    ids="source",
    token="previous",
    scores="probabilities",
    state=("state", "state_in", "state"),
    memory=("memory", "memory_in"),
    dtype=np.int32,
)
KERAS_PATHS = ROOT / "tests/keras_graphs/encoder.onnx", ROOT / "tests/keras_graphs/step.onnx"
TORCH_PATHS = ROOT / "tests/torch_graphs/encoder.onnx", ROOT / "tests/torch_graphs/step.onnx"
"""Graphs that make.py in their folder writes."""


class NaiveGraphs(torch.nn.Module):
    """Two graphs, run one source and one row at a time by onnxruntime: for `naive_search`."""

    row_state = ("state",)

    def __init__(self, encoder: Path, step: Path, names: Names = PLAIN) -> None:
        super().__init__()
        self.names = names
        self.encoder, self.decoder = (onnxruntime.InferenceSession(path) for path in (encoder, step))
        self.attends = any(each.name == names.memory[1] for each in self.decoder.get_inputs())

    def encode(self, source_ids: torch.Tensor, source_lengths: torch.Tensor) -> dict[str, torch.Tensor]:
        outputs = {"state": self.names.state[0], **({"memory": self.names.memory[0]} if self.attends else {})}
        values = self.encoder.run(list(outputs.values()), {self.names.ids: source_ids.numpy().astype(self.names.dtype)})
        return {name: torch.from_numpy(value) for name, value in zip(outputs, values, strict=True)}

    def step(
        self,
        previous_ids: torch.Tensor,
        row_state: Mapping[str, torch.Tensor],
        source_state: Mapping[str, torch.Tensor],
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor], Any]:
        names = self.names
        inputs = {names.token: previous_ids.numpy()[:, None].astype(names.dtype)}
        inputs |= {names.state[1]: row_state["state"].numpy()}
        if self.attends:
            inputs[names.memory[1]] = source_state["memory"].numpy()
        scores, state = map(torch.from_numpy, self.decoder.run([names.scores, names.state[2]], inputs))
        return scores[:, 0].log() if names.scores == "probabilities" else scores[:, 0], {"state": state}, None
