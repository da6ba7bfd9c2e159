"""A host whose products of integers overflow serves no int8."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from attendant.runtime import bundle_stepper
from attendant.runtime.bundle.bundle import open_bundle
from attendant.runtime.bundle.manifest import Manifest
from attendant.runtime.errors import UserError
from attendant.runtime.onnx import integer_products

GRAPHS = (integer_products.PRODUCT, integer_products.ROW_PRODUCT)


@pytest.fixture(params=GRAPHS, ids=["several rows", "one row"])
def saturating(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A processor one of whose kernels adds pairs of products in 16 bits."""
    exact = integer_products.run_once

    def run_once(content: bytes, inputs: dict[str, Any]) -> list[Any]:
        if content != request.param:
            return exact(content, inputs)
        products = inputs["a"].astype(np.int64)[:, :, None] * inputs["b"].astype(np.int64)
        pairs = products.reshape(-1, 4, 2, 16).sum(2).clip(-(2**15), 2**15 - 1)
        zero = 128 if content == integer_products.PRODUCT else 0
        return [pairs.sum(1) - zero * inputs["b"].astype(np.int64).sum(0)]

    monkeypatch.setattr(integer_products, "run_once", run_once)
    integer_products.are_exact.cache_clear()
    yield
    integer_products.are_exact.cache_clear()


def preferring_int8(path: Path) -> Manifest:
    return open_bundle(path).manifest.model_copy(update={"default_precision": {"cpu": "int8", "cuda": "fp32"}})


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
    (product,) = integer_products.run_once(integer_products.PRODUCT, {"a": a, "b": b})
    (row,) = integer_products.run_once(integer_products.ROW_PRODUCT, {"a": a[:1], "b": b})
    integer_products.are_exact.cache_clear()
    assert integer_products.are_exact() == (product[0, 0] == 129032 and row[0, 0] == 259080)


def test_an_overflow_is_seen_and_int8_refused(saturating: None) -> None:
    assert not integer_products.are_exact()
    with pytest.raises(UserError, match=r"int8 is not served on this processor.*take --precision fp32"):
        bundle_stepper.refuse_unserved("int8", "cpu")
    bundle_stepper.refuse_unserved("fp32", "cpu")


def test_a_default_falls_back(saturating: None, tiny_bundle_path: Path) -> None:
    manifest = open_bundle(tiny_bundle_path).manifest.model_copy(
        update={"default_precision": {"cpu": "int8", "cuda": "fp32"}}
    )
    assert bundle_stepper.default_precision(manifest, "cpu") == "fp32"


def test_a_default_stays_where_it_may(monkeypatch: pytest.MonkeyPatch, tiny_bundle_path: Path) -> None:
    monkeypatch.setattr(integer_products, "are_exact", lambda: True)
    manifest = open_bundle(tiny_bundle_path).manifest.model_copy(
        update={"default_precision": {"cpu": "int8", "cuda": "fp32"}}
    )
    assert bundle_stepper.default_precision(manifest, "cpu") == "int8"
