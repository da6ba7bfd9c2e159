"""Hostile bundles: changes that an attacker can make to a valid bundle, with all digests updated."""

import hashlib
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from attendant.runtime.bundle.manifest import MANIFEST_NAME, Manifest

Craft = Callable[[Path], None]
"""Turns the valid bundle in this folder into a hostile one."""

ENCODER, STEP = "fp32/encoder.onnx", "fp32/decoder_step.onnx"
SOURCE, TARGET, GOLDEN = "source_tokenizer.json", "target_tokenizer.json", "golden.jsonl"
HUGE = 10**9


def seal(folder: Path, change: Callable[[dict[str, Any]], None] = lambda content: None) -> None:
    """Rewrites the manifest: updates the files' sizes and digests, applies `change`, updates its own digest."""
    content = json.loads((folder / MANIFEST_NAME).read_text())
    for name, entry in content["files"].items():
        if (folder / name).is_file():
            data = (folder / name).read_bytes() if (folder / name).stat().st_size < HUGE // 10 else b""
            entry |= {"size": (folder / name).stat().st_size, "sha256": hashlib.sha256(data).hexdigest()}
    for pair in content["graphs"].values():
        for graph in (pair["encoder"], pair["decoder_step"]):
            graph["sha256"] = content["files"][graph["file"]]["sha256"]
    change(content)
    try:
        text = Manifest.model_validate(content).signed().to_text()
    except ValueError:
        # An invalid manifest can't be signed. Readers refuse it before they check its digest.
        text = json.dumps(content)
    (folder / MANIFEST_NAME).write_text(text)


def field(*path: str, value: Any) -> Craft:
    """Returns a change that sets a field of the manifest to `value`."""

    def change(content: dict[str, Any]) -> None:
        for name in path[:-1]:
            content = content[name]
        content[path[-1]] = value

    return lambda folder: seal(folder, change)


def link(name: str) -> Craft:
    """Returns a change that moves a file or folder out of the bundle and replaces it with a link."""

    def craft(folder: Path) -> None:
        outside = folder.parent / "outside"
        (folder / name).rename(outside)
        (folder / name).symlink_to(outside)

    return craft


def fifo(name: str) -> Craft:
    def craft(folder: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return craft


def unix_socket(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        here = Path.cwd()
        os.chdir(folder)  # the path of a socket can have only about 100 characters
        try:
            listener.bind("socket")
        finally:
            os.chdir(here)


def sparse(name: str, size: int) -> Craft:
    """Returns a change that sets a file's size to `size` bytes without using disk space."""

    def craft(folder: Path) -> None:
        os.truncate(folder / name, size)
        if name != MANIFEST_NAME:
            seal(folder)

    return craft


def many_files(folder: Path) -> None:
    for number in range(1000):
        (folder / f"{number}").touch()


def manifest_text(change: Callable[[str], str]) -> Craft:
    def craft(folder: Path) -> None:
        text = (folder / MANIFEST_NAME).read_text()
        changed = change(text)
        assert changed != text
        (folder / MANIFEST_NAME).write_bytes(changed.encode("utf-8", "surrogatepass"))

    return craft


def tokenizer(name: str, change: Callable[[dict[str, Any]], None]) -> Craft:
    def craft(folder: Path) -> None:
        content = json.loads((folder / name).read_text())
        change(content)
        (folder / name).write_text(json.dumps(content))
        seal(folder)

    return craft


def golden(change: Callable[[list[dict[str, Any]]], None]) -> Craft:
    def craft(folder: Path) -> None:
        examples = [json.loads(line) for line in (folder / GOLDEN).read_text().splitlines()]
        change(examples)
        (folder / GOLDEN).write_text("".join(json.dumps(example) + "\n" for example in examples))
        seal(folder)

    return craft


def graph(name: str, change: Callable[[onnx.ModelProto], None]) -> Craft:
    def craft(folder: Path) -> None:
        model = onnx.load(folder / name)
        change(model)
        (folder / name).write_bytes(model.SerializeToString())
        seal(folder)

    return craft


def weight(model: onnx.ModelProto, name: str) -> TensorProto:
    return next(tensor for tensor in model.graph.initializer if tensor.name == name)


def fewer_rows(name: str) -> Callable[[onnx.ModelProto], None]:
    """Returns a change that removes a matrix's last row, which belongs to the last id."""

    def change(model: onnx.ModelProto) -> None:
        tensor = weight(model, name)
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor)[:-1].copy(), name))

    return change


def one_symbol_more(model: onnx.ModelProto) -> None:
    """Adds an id to the output layer that no tokenizer has."""
    matrix = weight(model, "model.output.weight")
    bias = next(tensor for tensor in model.graph.initializer if list(tensor.dims) == [matrix.dims[0]])
    for tensor, row in ((matrix, 0.0), (bias, 9.0)):
        values = numpy_helper.to_array(tensor)
        more = np.full((1, *values.shape[1:]), row, np.float32)
        tensor.CopyFrom(numpy_helper.from_array(np.concatenate([values, more]), tensor.name))


def values_outside(model: onnx.ModelProto) -> None:
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../../etc/passwd")


def foreign_operator(model: onnx.ModelProto) -> None:
    model.opset_import.append(helper.make_opsetid("evil.example", 1))
    _beside(model, [helper.make_node("Backdoor", [], ["crafted"], domain="evil.example")])


def loop(model: onnx.ModelProto) -> None:
    """Adds a Loop whose condition stays true."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["go_on"], ["still"]), helper.make_node("Identity", ["held"], ["kept"])],
        "body",
        [_value("number", TensorProto.INT64), _value("go_on", TensorProto.BOOL), _value("held", TensorProto.FLOAT)],
        [_value("still", TensorProto.BOOL), _value("kept", TensorProto.FLOAT)],
    )
    _constant(model, "yes", np.array(True))
    _constant(model, "zero", np.array(0, np.float32))
    _beside(model, [helper.make_node("Loop", ["", "yes", "zero"], ["crafted"], body=body)])


def endless(model: onnx.ModelProto) -> None:
    """Adds a Scan over 2^40 positions without elements, which need no memory."""
    _constant(model, "no_elements", np.zeros((1, 0), np.float32))
    _constant(model, "shape", np.array([2**40, 0], np.int64))
    _constant(model, "zero", np.array(0, np.float32))
    body = helper.make_graph(
        [helper.make_node("Tanh", ["state"], ["after"])],
        "body",
        [_value("state", TensorProto.FLOAT), helper.make_tensor_value_info("position", TensorProto.FLOAT, [0])],
        [_value("after", TensorProto.FLOAT)],
    )
    nodes = [
        helper.make_node("Expand", ["no_elements", "shape"], ["many"]),
        helper.make_node("Scan", ["zero", "many"], ["crafted"], body=body, num_scan_inputs=1),
    ]
    _beside(model, nodes)


def nested_scans(model: onnx.ModelProto) -> None:
    """Adds nested Scans that compute 10^15 additions."""
    _constant(model, "many", np.zeros(1000, np.float32))
    _constant(model, "zero", np.array(0, np.float32))
    inner = helper.make_node("Add", ["s0", "x0"], ["t0"])
    for depth in range(5):
        state, scanned, result = f"s{depth}", f"x{depth}", f"t{depth}"
        values = [_value(name, TensorProto.FLOAT) for name in (state, scanned, result)]
        body = helper.make_graph([inner], f"body{depth}", values[:2], values[2:])
        is_last = depth == 4
        names = ["zero" if is_last else f"s{depth + 1}", "many"], ["crafted" if is_last else f"t{depth + 1}"]
        inner = helper.make_node("Scan", *names, body=body, num_scan_inputs=1)
    _beside(model, [inner])


def greedy_for_memory(model: onnx.ModelProto) -> None:
    """Adds 1.6 GiB of ones and the sum of their roots."""
    _constant(model, "shape", np.array([20_000, 21_000], np.int64))
    unit = helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0])
    _beside(
        model,
        [
            helper.make_node("ConstantOfShape", ["shape"], ["ones"], value=unit),
            helper.make_node("Sqrt", ["ones"], ["roots"]),
            helper.make_node("ReduceSum", ["roots"], ["crafted"], keepdims=0),
        ],
    )


def _value(name: str, kind: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, [])


def _constant(model: onnx.ModelProto, name: str, value: "np.ndarray[Any, Any]") -> None:
    model.graph.initializer.append(numpy_helper.from_array(value, name))


def _beside(model: onnx.ModelProto, nodes: list[onnx.NodeProto]) -> None:
    """Adds nodes that compute the number `crafted`; the first output then depends on it but keeps its value."""
    output = model.graph.output[0].name
    for node in model.graph.node:
        for place, name in enumerate(node.output):
            if name == output:
                node.output[place] = "sound"
        for place, name in enumerate(node.input):
            if name == output:
                node.input[place] = "sound"
    _constant(model, "nothing", np.array(0, np.float32))
    model.graph.node.extend(nodes)
    model.graph.node.append(helper.make_node("Mul", ["crafted", "nothing"], ["none"]))
    model.graph.node.append(helper.make_node("Add", ["sound", "none"], [output]))
