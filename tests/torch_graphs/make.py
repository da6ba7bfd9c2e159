"""Writes the graphs of this folder: the tutorial's model with random weights, exported by torch, without file names.

python -m tests.torch_graphs.make
"""

from pathlib import Path

import onnx

from tests.onnx_graphs import export_with_torch
from tests.own_models import TutorialTranslator, random_model


def main() -> None:
    module = random_model(TutorialTranslator).module
    assert isinstance(module, TutorialTranslator)
    for path in export_with_torch(module, Path(__file__).parent):
        model = onnx.load(path)
        graph = model.graph
        for part in (model, graph, *graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer):
            del part.metadata_props[:]  # torch adds the names of the source files
        onnx.save(model, path)
        path.with_suffix(".onnx.data").unlink()


if __name__ == "__main__":
    main()
