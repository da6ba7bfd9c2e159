"""Tests of users' ONNX graphs: answers as from a naive loop around them, drafts, messages that name the tensor."""

import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper, parser

import attendant
from attendant.export.__main__ import main
from attendant.export.model import UserModel, export_model
from attendant.export.user_graphs.graph import UserGraph
from attendant.export.user_graphs.importing import draft_spec, import_graphs
from attendant.export.user_graphs.module import GraphModule
from attendant.export.user_graphs.spec import read_spec
from attendant.runtime.errors import UserError, VerificationFailed
from tests.onnx_graphs import KERAS, KERAS_PATHS, TORCH_PATHS, Form, H, NaiveGraphs, V, export_with_torch, write_graphs
from tests.own_models import (
    SOURCES,
    SYMBOLS,
    TINY,
    TutorialTranslator,
    assert_answers,
    random_model,
    random_sources,
    user_model,
)

OPSET = 18

SPEC = """
[source]
tokenizer = "symbols.txt"
kind = "character"
max_tokens = {max_tokens}
[target]
tokenizer = "symbols.txt"
kind = "character"
max_tokens = 12
{more}
"""


def write_spec(folder: Path, more: str = "", max_tokens: int = 30) -> Path:
    (folder / "symbols.txt").write_text("".join(f"{symbol}\n" for symbol in SYMBOLS))
    (folder / "spec.toml").write_text(SPEC.format(more=more, max_tokens=max_tokens))
    return folder / "spec.toml"


FORMS = {
    "plain": (Form(), True),
    "lengths and mask": (Form(padding="given", ids="int32", scores="log_probs", dropout=True), False),
    "padding mask, time-major": (Form(padding="inverted", time_major=True, opset=13), False),
    "time-major, probabilities": (Form(time_major=True, scores="probabilities", hidden_input=True), True),
    "one source": (Form(batch=1, scores="probabilities"), True),
    "one source, time-major": (Form(batch=1, time_major=True), True),
    "one width": (Form(positions=16, padding="given"), False),
    "vectors": (Form(ids="onehot"), True),
}


QUICK = ("lengths and mask", "one source, time-major")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in FORMS]
)
def test_graphs_of_every_form_answer_as_the_plain_one(name: str, tmp_path: Path) -> None:
    form, encodes_alone = FORMS[name]
    naive = NaiveGraphs(*write_graphs(tmp_path / "plain"))
    # Weights in other files are read, too.
    paths = write_graphs(tmp_path / "form", form, external=form.dropout)
    assert (tmp_path / "form/encoder.data").is_file() == form.dropout
    model = import_graphs(*paths, read_spec(write_spec(tmp_path, max_tokens=15)))
    bundle = export_model(model, tmp_path / "bundle", sources=SOURCES, plan=TINY)
    assert bundle.manifest.graphs["fp32"].encode_alone == encodes_alone
    assert bundle.manifest.provenance.recipe["encoder_graph"]["producer"] == "by hand"
    assert_answers(tmp_path / "bundle", user_model(naive), random_sources(8, longest=12))


def test_a_step_without_attention_is_imported(tmp_path: Path) -> None:
    form = Form(attention=False, padding="given", scores="probabilities", opset=9, ids="int32")
    naive = NaiveGraphs(*write_graphs(tmp_path / "plain", Form(attention=False)))
    model = import_graphs(*write_graphs(tmp_path / "form", form), read_spec(write_spec(tmp_path)))
    bundle = export_model(model, tmp_path / "bundle", sources=SOURCES, precisions=("fp32", "int8"), plan=TINY)
    assert not bundle.manifest.graphs["fp32"].encode_alone
    assert [state.scope for state in bundle.manifest.graphs["fp32"].state] == ["row"]
    assert {certificate.precision for certificate in bundle.manifest.certificates} == {"fp32", "int8"}
    assert_answers(tmp_path / "bundle", user_model(naive), random_sources(8, longest=12))


@pytest.mark.parametrize("exported", ["before", pytest.param("now", marks=pytest.mark.slow)])
def test_graphs_of_torchs_exporter_are_imported(exported: str, tmp_path: Path) -> None:
    module = random_model(TutorialTranslator).module
    assert isinstance(module, TutorialTranslator)
    paths = export_with_torch(module, tmp_path) if exported == "now" else TORCH_PATHS
    model = import_graphs(*paths, read_spec(write_spec(tmp_path)))
    bundle = export_model(model, tmp_path / "bundle", sources=SOURCES, precisions=("fp32", "int8"), plan=TINY)
    assert any("int8" in each for each in bundle.manifest.certificates[1].arithmetic.values())
    assert_answers(tmp_path / "bundle", user_model(module), random_sources(8, longest=12))
    weights = attendant.load(tmp_path / "bundle").generate("abc", attention=True).best.attention
    assert weights is not None
    np.testing.assert_allclose(np.asarray(weights).sum(1), 1, atol=1e-5)


def test_graphs_of_tf2onnx_are_imported(tmp_path: Path) -> None:
    model = import_graphs(*KERAS_PATHS, read_spec(write_spec(tmp_path)))
    export_model(model, tmp_path / "bundle", sources=SOURCES, plan=TINY)
    assert_answers(tmp_path / "bundle", user_model(NaiveGraphs(*KERAS_PATHS, KERAS)), random_sources(8, longest=8))


def test_a_draft_describes_the_graphs(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # shows messages as on a terminal
    form = Form(padding="inverted", time_major=True, hidden_input=True)
    encoder, step = write_graphs(tmp_path, form)
    written = tmp_path / "draft.toml"
    main(["import", "onnx", str(encoder), str(step), "--write-spec", str(written)])
    shown = re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]", "", capfd.readouterr().err)
    assert "export: state 'memory' [position, row, 16]: the encoder's 'memory', which steps leave as it is\n" in shown
    assert "step.onnx takes 'token' [1, 1], 'key_padding_mask' [position, 1] true on padding\n" in shown
    assert tomllib.loads(written.read_text()) == {
        "source": {"tokenizer": "source.txt"},
        "target": {"tokenizer": "target.txt"},
        "encoder": {"source_ids": "tokens", "source_lengths": "lengths", "zeros": ["h0"], "time_major": True},
        "step": {
            "previous_ids": "token",
            "scores": "predictions",
            "scores_are": "logits",
            "attention": "weights",
            "source_mask": "key_padding_mask",
            "mask_is_true_on": "padding",
        },
        "state": [
            {"input": "hidden", "encoder": "hidden", "output": "new_hidden"},
            {"input": "memory", "encoder": "memory"},
        ],
    }
    with pytest.raises(UserError, match="exists already: add --force"):
        main(["import", "onnx", str(encoder), str(step), "--write-spec", str(written)])
    with pytest.raises(UserError, match="--spec is for --output"):
        main(
            ["import", "onnx", str(encoder), str(step), "--write-spec", str(tmp_path / "other"), "--spec", str(written)]
        )
    # The draft is a valid description of these graphs.
    for side in ("source, of letters", "target"):
        (tmp_path / f"{side}.txt").write_text("".join(f"{symbol}\n" for symbol in SYMBOLS))
    written.write_text(written.read_text().replace("source.txt", "source, of letters.txt"))
    import_graphs(encoder, step, read_spec(written))


MEMORY, HIDDEN = (f'[[state]]\ninput = "{name}"\nencoder = "{name}"\n' for name in ("memory", "hidden"))


def changed(path: Path, change: object) -> Path:
    model = onnx.load(path)
    change(model)  # type: ignore[operator]
    onnx.save(model, path)
    return path


def graph_module(model: UserModel) -> GraphModule:
    assert isinstance(model.module, GraphModule)
    return model.module


def without_softmax(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        if node.op_type == "Softmax":
            node.op_type = "Sigmoid"
            del node.attribute[:]


def with_microsofts_operator(model: onnx.ModelProto) -> None:
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    for node in model.graph.node:
        if node.op_type == "MatMul":
            node.op_type, node.domain = "FusedMatMul", "com.microsoft"


def of_half_precision(model: onnx.ModelProto) -> None:
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT16


def with_a_fixed_first_state(model: onnx.ModelProto) -> None:
    gru = next(node for node in model.graph.node if node.op_type == "GRU")
    gru.output[1] = ""
    value = numpy_helper.from_array(np.ones((1, 3, 16), np.float32))
    model.graph.node.append(helper.make_node("Constant", [], ["hidden"], value=value))


def with_dropout(model: onnx.ModelProto) -> None:
    """As by an export in training mode."""
    for name, array in (("rate", np.float32(0.5)), ("training", np.array(True))):
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    next(node for node in model.graph.node if node.output[0] == "predictions").output[0] = "scores"
    model.graph.node.append(helper.make_node("Dropout", ["scores", "rate", "training"], ["predictions"]))


def quantized(model: onnx.ModelProto) -> None:
    """As by ONNX Runtime's quantize_dynamic: a scale for the numbers of all rows."""
    next(node for node in model.graph.node if node.output[0] == "memory").output[0] = "large"
    small = ["small", "small_scale", "small_zero"]
    model.graph.node.append(helper.make_node("DynamicQuantizeLinear", ["large"], small))
    model.graph.node.append(helper.make_node("DequantizeLinear", small, ["memory"]))


@pytest.mark.parametrize(
    ("which", "change", "message"),
    [
        (1, with_dropout, r"target symbols among .*; not 'predictions', whose rows depend on other rows or on chance:"),
        (0, quantized, "output 'memory' runs over sources, .*: give the graph as it was before ONNX Runtime's tools"),
        (0, with_a_fixed_first_state, "encoder.onnx: no axis of its output 'hidden' runs over sources"),
        (1, without_softmax, r"step.onnx: reads 'memory' \[row, position, 16\] of the source, and has neither"),
        (
            1,
            with_microsofts_operator,
            "step.onnx: contains FusedMatMul of com.microsoft .*: give the graph as it was before",
        ),
        (0, of_half_precision, "encoder.onnx: 'memory' has the type float16: export the graph with inputs"),
    ],
)
def test_a_graph_that_cannot_be_imported_is_refused(which: int, change: object, message: str, tmp_path: Path) -> None:
    paths = write_graphs(tmp_path)
    changed(paths[which], change)
    with pytest.raises(UserError, match=message):
        # An export puts this into a traced graph, and tracing takes seconds.
        graph_module(import_graphs(*paths, read_spec(write_spec(tmp_path)))).step_call.onnx_model(OPSET)


@pytest.mark.parametrize(
    ("form", "more", "message"),
    [
        (Form(), '[encoder]\nsource_ids = "x"', "encoder: .*/encoder.onnx has no input 'x', only 'tokens'"),
        (Form(), '[step]\nscores = "x"', "step.onnx has no output 'x', only 'predictions', 'new_hidden', 'weights'"),
        (Form(), '[step]\nscores_are = "probabilities"', "is 'probabilities', and .*/step.onnx gives logits"),
        (Form(), '[step]\nattention = "predictions"', "has no weights of the source's positions"),
        (
            Form(),
            f'{MEMORY}[[state]]\ninput = "hidden"\nencoder = "memory"',
            "is no first value of the step's 'hidden'",
        ),
        (Form(), f'{HIDDEN}output = "new_hidden"', r"step.onnx: the input 'memory' float32\[R, S, 16\] has no part"),
        (Form(), f"{MEMORY}{HIDDEN}", r"no \[\[state\]\] has an output"),
        (Form(), MEMORY * 2, "state: 'memory' is described twice"),
        (Form(batch=4), "", "encoder.onnx: memory, hidden: no axis runs over the sources of a batch, .*dynamic_axes"),
        (Form(positions=1), "", r"step.onnx: no axis of 'hidden' .* runs over rows; export a single decoder step"),
        (Form(positions=16, padding="given"), "", "source.max_tokens is 30, and .*/encoder.onnx takes 16 positions"),
        (Form(), "[stap]", "stap: there is no such field"),
        (Form(), "[step]\nscores = 3", "step.scores: must be a text, got 3"),
        (Form(), "[step", "not TOML"),
    ],
)
def test_a_wrong_description_is_refused(form: Form, more: str, message: str, tmp_path: Path) -> None:
    paths = write_graphs(tmp_path, form)
    with pytest.raises(UserError, match=message) as caught:
        import_graphs(*paths, read_spec(write_spec(tmp_path, more)))
    assert len(str(caught.value).splitlines()) == 1


def test_a_limit_beyond_the_formats_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"source\.max_tokens: must be less than or equal to 65536, got 65537"):
        read_spec(write_spec(tmp_path, max_tokens=65_537))


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ("onehot", f"encoder.onnx: the input .* has {V} places for symbols, and source.tokenizer has {V + 1} symbols"),
        ("int64", f"encoder.onnx.*idx={V} must be within"),
    ],
)
def test_vocabularies_must_fit_the_graphs(ids: Any, message: str, tmp_path: Path) -> None:
    paths, spec = write_graphs(tmp_path, Form(ids=ids)), write_spec(tmp_path)
    (tmp_path / "more.txt").write_text("".join(f"{symbol}\n" for symbol in [*SYMBOLS, "x"]))
    spec.write_text(spec.read_text().replace("symbols.txt", "more.txt", 1))
    with pytest.raises(UserError, match=message):
        export_model(import_graphs(*paths, read_spec(spec)), tmp_path / "bundle", plan=TINY)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["onnx", "encoder.onnx"], "onnx takes two graphs"),
        (["onnx", "encoder.onnx", "step.onnx"], "onnx needs --spec FILE, .* --write-spec FILE drafts it"),
        (["onnx", "encoder.onnx", "missing.onnx", "--spec", "spec.toml"], "missing.onnx: can't be read"),
        (["onnx", "encoder.onnx", "spec.toml", "--spec", "spec.toml"], "spec.toml: no ONNX model, or damaged"),
        (["onnx", "encoder.onnx", "step.onnx", "--segmented"], "--segmented is for checkpoints"),
        (["joeynmt", "a", "b"], "joeynmt takes one checkpoint, got a b"),
        (["joeynmt", "a", "--spec", "spec.toml"], "--spec is for onnx"),
    ],
)
def test_the_command_refuses_mistakes(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_graphs(tmp_path)
    write_spec(tmp_path)
    with pytest.raises(UserError, match=message):
        main(["import", *arguments, "--output", "bundle"])
    assert not Path("bundle").exists()


class FromZeros(NaiveGraphs):
    def encode(self, source_ids: torch.Tensor, source_lengths: torch.Tensor) -> dict[str, torch.Tensor]:
        tensors = super().encode(source_ids, source_lengths)
        return {**tensors, "state": torch.zeros_like(tensors["state"])}


@pytest.mark.slow
def test_a_first_state_of_zeros_and_several_heads_are_imported(tmp_path: Path) -> None:
    encoder, step = write_graphs(tmp_path)

    def add_heads(model: onnx.ModelProto) -> None:
        model.graph.node.append(helper.make_node("Concat", ["weights", "weights"], ["heads"], axis=1))
        model.graph.output.append(helper.make_tensor_value_info("heads", TensorProto.FLOAT, ["R", 2, "S"]))

    changed(step, add_heads)
    state = f'[step]\nattention = "heads"\n{MEMORY}[[state]]\ninput = "hidden"\noutput = "new_hidden"\n'
    model = import_graphs(encoder, step, read_spec(write_spec(tmp_path, state)))
    export_model(model, tmp_path / "bundle", sources=SOURCES, plan=TINY)
    assert_answers(tmp_path / "bundle", user_model(FromZeros(encoder, step)), random_sources(4, longest=12))
    weights = attendant.load(tmp_path / "bundle").generate("abc", attention=True).best.attention
    np.testing.assert_allclose(np.asarray(weights).sum(1), 1, atol=1e-5)


def test_an_encoder_that_fails_in_batches_encodes_sources_one_by_one(tmp_path: Path) -> None:
    """Covers an encoder with a constant first state for one source, although its inputs accept any number."""
    encoder, step = write_graphs(tmp_path, Form(hidden_input=True))

    def freeze(model: onnx.ModelProto) -> None:
        (h0,) = [value for value in model.graph.input if value.name == "h0"]
        model.graph.input.remove(h0)
        # The optimizer replaces Expand, and leaves a note at the value.
        constants = {"zero": np.zeros(1, np.float32), "h0_shape": np.array([1, 1, H])}
        model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in constants.items())
        model.graph.node.insert(0, helper.make_node("Expand", [*constants], ["h0"]))

    changed(encoder, freeze)
    naive = NaiveGraphs(*write_graphs(tmp_path / "plain"))
    export_model(
        import_graphs(encoder, step, read_spec(write_spec(tmp_path))), tmp_path / "bundle", sources=SOURCES, plan=TINY
    )
    assert_answers(tmp_path / "bundle", user_model(naive), random_sources(4, longest=12))


def test_a_step_that_loses_the_axis_of_one_row_is_stepped_row_by_row(tmp_path: Path) -> None:
    """As by squeeze() in PyTorch."""

    def squeeze(model: onnx.ModelProto) -> None:
        del model.graph.output[0].type.tensor_type.shape.dim[1]
        model.graph.output[0].name = "squeezed"
        model.graph.node.append(helper.make_node("Squeeze", ["predictions"], ["squeezed"]))

    encoder, step = write_graphs(tmp_path)
    module = graph_module(import_graphs(encoder, changed(step, squeeze), read_spec(write_spec(tmp_path))))
    assert module.graphs.step.row_by_row and not module.graphs.encoder.row_by_row
    assert any("rows are stepped one by one" in line and "squeeze()" in line for line in module.graphs.lines())


def test_inputs_that_nothing_reads_are_left_out(tmp_path: Path) -> None:
    """As tf2onnx and others leave a flag for the training."""

    def add(model: onnx.ModelProto) -> None:
        model.graph.input.append(helper.make_tensor_value_info("training", TensorProto.BOOL, []))

    encoder, step = (changed(path, add) for path in write_graphs(tmp_path))
    graphs = graph_module(import_graphs(encoder, step, read_spec(write_spec(tmp_path)))).graphs
    assert graphs.encoder.takes == ["tokens"] and graphs.step.takes == ["token", "hidden", "memory"]


def test_a_faulty_conversion_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks that the graphs are compared with onnxruntime's results for the files."""
    convert = UserGraph.onnx_model

    def faulty(graph: UserGraph, *arguments: Any) -> onnx.ModelProto:
        model = convert(graph, *arguments)
        for tensor in model.graph.initializer:
            if tensor.name == "out_bias":
                tensor.CopyFrom(onnx.numpy_helper.from_array(np.arange(V, dtype=np.float32) / 2, tensor.name))
        return model

    monkeypatch.setattr(UserGraph, "onnx_model", faulty)
    model = import_graphs(*write_graphs(tmp_path), read_spec(write_spec(tmp_path)))
    with pytest.raises(VerificationFailed, match="refused"):
        export_model(model, tmp_path / "bundle", sources=SOURCES, plan=TINY)


def drafted_states(folder: Path, texts: dict[str, str]) -> object:
    """Returns the states that are drafted for two graphs in ONNX's text form, `encoder` and `step`."""
    for name, text in texts.items():
        onnx.save(parser.parse_model(text), folder / f"{name}.onnx")
    return tomllib.loads(draft_spec(folder / "encoder.onnx", folder / "step.onnx"))["state"]


def test_states_whose_names_say_nothing_keep_their_order(tmp_path: Path) -> None:
    """Keras calls the results of an LSTM lstm_1 and lstm_1_1, after the probabilities."""
    texts = {
        "encoder": """<ir_version: 8, opset_import: ["" : 15]>
            encoder (int64[B, S] ids) => (float[B, 1] lstm, float[B, 1] lstm_1) {
                floats = Cast <to = 1> (ids)
                lstm = ReduceMean <axes = [1]> (floats)
                lstm_1 = Neg (lstm)
            }""",
        "step": """<ir_version: 8, opset_import: ["" : 15]>
            step (int64[R, 1] prev, float[R, 1] h_in, float[R, 1] c_in)
                => (float[R, 3] dense, float[R, 1] lstm_1, float[R, 1] lstm_1_1) {
                floats = Cast <to = 1> (prev)
                lstm_1 = Add (h_in, floats)
                lstm_1_1 = Sub (c_in, floats)
                dense = Concat <axis = 1> (lstm_1, lstm_1_1, floats)
            }""",
    }
    assert drafted_states(tmp_path, texts) == [
        {"input": "h_in", "encoder": "lstm", "output": "lstm_1"},
        {"input": "c_in", "encoder": "lstm_1", "output": "lstm_1_1"},
    ]


def test_tensors_of_other_shapes_do_not_change_the_order_of_states(tmp_path: Path) -> None:
    """TensorFlow calls all results Identity; the memory, whose sizes are not fixed, is the encoder's first result."""
    texts = {
        "encoder": """<ir_version: 8, opset_import: ["" : 17]>
            encoder (int64[B, S] ids) => (float[B, S, 1] Identity, float[1, B, 1] Identity_1, float[1, B, 1] Identity_2)
            <int64[1] last = {2}, int64[1] first = {0}> {
                floats = Cast <to = 1> (ids)
                Identity = Unsqueeze (floats, last)
                mean = ReduceMean <axes = [1]> (floats)
                Identity_1 = Unsqueeze (mean, first)
                Identity_2 = Neg (Identity_1)
            }""",
        "step": """<ir_version: 8, opset_import: ["" : 17]>
            step (int64[R] token, float[1, R, 1] h, float[1, R, 1] c, float[R, S, 1] enc)
                => (float[R, 3] Identity, float[1, R, 1] Identity_1, float[1, R, 1] Identity_2)
            <int64[1] last = {1}, int64[1] first = {0}> {
                floats = Cast <to = 1> (token)
                column = Unsqueeze (floats, last)
                row = Unsqueeze (column, first)
                Identity_1 = Add (h, row)
                Identity_2 = Sub (c, row)
                context = ReduceSum (enc, last)
                memory = Transpose <perm = [1, 0, 2]> (context)
                all = Concat <axis = 2> (Identity_1, Identity_2, memory)
                Identity = Squeeze (all, first)
            }""",
    }
    assert drafted_states(tmp_path, texts) == [
        {"input": "h", "encoder": "Identity_1", "output": "Identity_1"},
        {"input": "c", "encoder": "Identity_2", "output": "Identity_2"},
        {"input": "enc", "encoder": "Identity"},
    ]


def test_nothing_is_drafted_from_an_unclear_graph(tmp_path: Path) -> None:
    encoder, step = write_graphs(tmp_path)

    def add_input(model: onnx.ModelProto) -> None:
        model.graph.input.append(helper.make_tensor_value_info("other", TensorProto.INT64, ["B", "S"]))
        model.graph.node.append(helper.make_node("Neg", ["other"], ["negative"]))

    changed(encoder, add_input)
    with pytest.raises(
        UserError, match=re.escape("encoder.onnx: which input takes the source's ids is not clear among")
    ):
        draft_spec(encoder, step)
