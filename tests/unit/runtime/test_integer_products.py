"""A host whose products of integers overflow computes no int8 that may do so."""

import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from attendant.runtime.bundle.bundle import Bundle, open_bundle
from attendant.runtime.bundle_stepper import default_precision, open_stepper, refuse_unserved, why_not_default
from attendant.runtime.errors import UserError
from attendant.runtime.onnx import stepper as onnx_stepper
from attendant.runtime.onnx.stepper import OnnxStepper
from attendant.runtime.process import processor
from tests.paths import ROOT

GRAPHS = (onnx_stepper.PRODUCT, onnx_stepper.ROW_PRODUCT)


@pytest.fixture(params=GRAPHS, ids=["several rows", "one row"])
def saturating(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A processor one of whose kernels adds pairs of products in 16 bits."""
    exact = onnx_stepper.run_once

    def run_once(content: bytes, inputs: dict[str, Any]) -> list[Any]:
        if content != request.param:
            return exact(content, inputs)
        products = inputs["a"].astype(np.int64)[:, :, None] * inputs["b"].astype(np.int64)
        pairs = products.reshape(-1, 4, 2, 16).sum(2).clip(-(2**15), 2**15 - 1)
        zero = 128 if content == onnx_stepper.PRODUCT else 0
        return [pairs.sum(1) - zero * inputs["b"].astype(np.int64).sum(0)]

    monkeypatch.setattr(onnx_stepper, "run_once", run_once)
    onnx_stepper.kernels_are_exact.cache_clear()
    yield
    onnx_stepper.kernels_are_exact.cache_clear()


@pytest.mark.parametrize(("num_rows", "zero", "content"), [(2, ["z"], GRAPHS[0]), (1, [], GRAPHS[1])])
def test_the_graphs_are_the_products_that_are_meant(num_rows: int, zero: list[str], content: bytes) -> None:
    def tensor(name: str, element: int, shape: list[int]) -> Any:
        return helper.make_tensor_value_info(name, element, shape)

    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", ["a", "b", *zero], ["y"])],
        "p",
        [tensor("a", TensorProto.UINT8, [num_rows, 8]), tensor("b", TensorProto.INT8, [8, 16])],
        [tensor("y", TensorProto.INT32, [num_rows, 16])],
        [numpy_helper.from_array(np.uint8(128), name) for name in zero],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    model.ClearField("producer_name")
    assert model.SerializeToString(deterministic=True) == content


def test_the_answer_is_the_kernels() -> None:
    a, b = np.full((2, 8), 255, np.uint8), np.full((8, 16), 127, np.int8)
    (product,) = onnx_stepper.run_once(onnx_stepper.PRODUCT, {"a": a, "b": b})
    (row,) = onnx_stepper.run_once(onnx_stepper.ROW_PRODUCT, {"a": a[:1], "b": b})
    onnx_stepper.kernels_are_exact.cache_clear()
    assert onnx_stepper.kernels_are_exact() == (product[0, 0] == 129032 and row[0, 0] == 259080)


OLD = ROOT / "tests" / "eight_bits"
"""Bundles that an earlier version exported, int8 alone, with factors of 8 bits."""

REFUSED = rf"the int8 of the bundle tiny can't be computed exactly on this processor \({re.escape(processor())}\): "


def test_an_overflow_is_seen_and_old_int8_refused(saturating: None) -> None:
    assert not onnx_stepper.kernels_are_exact()
    alone = open_bundle(OLD / "lstm")
    both = with_fp32(alone)
    remedy = r".*; choose precision fp32, or export it anew .* --precision fp32,int8\), which"
    for opened in (OnnxStepper, open_stepper):
        with pytest.raises(UserError, match=REFUSED + remedy):
            opened(both, "int8")  # type: ignore[operator]
    with pytest.raises(
        UserError, match=REFUSED + r".*; it has no other precision; export .* --precision int8\), which"
    ):
        open_stepper(alone, "int8")
    refuse_unserved(both, "fp32", "cpu")


def test_a_default_falls_back_if_it_can(saturating: None) -> None:
    alone = open_bundle(OLD / "lstm")
    assert default_precision(with_fp32(alone), "cpu") == "fp32"
    assert default_precision(alone, "cpu") == "int8"


def test_a_default_stays_where_kernels_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_stepper, "kernels_are_exact", lambda: True)
    both = with_fp32(open_bundle(OLD / "lstm"))
    assert default_precision(both, "cpu") == "int8"
    assert why_not_default(both, "fp32", "cpu") == "chosen by --precision; the bundle's default is int8"


def test_why_another_precision_serves_than_the_default_is_said(saturating: None) -> None:
    both = with_fp32(open_bundle(OLD / "lstm"))
    assert re.match(REFUSED, why_not_default(both, "fp32", "cpu"))
    assert why_not_default(both, "int8", "cpu") == ""
    assert why_not_default(both, "fp32", "cuda") == ""


def with_fp32(bundle: Bundle) -> Bundle:
    """Returns the bundle as if its int8 graphs were fp32 ones, too."""
    graphs = {"fp32": bundle.manifest.graphs["int8"], **bundle.manifest.graphs}
    return replace(bundle, manifest=bundle.manifest.model_copy(update={"graphs": graphs}))


def test_graphs_that_can_not_be_read_are_refused(saturating: None, tmp_path: Path) -> None:
    shutil.copytree(OLD / "lstm", tmp_path / "lstm")
    bundle = open_bundle(tmp_path / "lstm")
    (tmp_path / "lstm" / "int8" / "encoder.onnx").write_bytes(b"\xff" * 99)
    with pytest.raises(UserError, match=REFUSED):
        onnx_stepper.refuse_inexact(bundle, "int8")
