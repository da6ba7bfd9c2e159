"""A plain model of the same sizes, in torch's own layers, that is not designed for serving.

Shapes: B sentences (or rows), S source positions, E embedding, H hidden size, V vocabulary, K candidates.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import torch
from onnxruntime.quantization import QuantType, quantize_dynamic
from torch import Tensor, nn

from benchmarks.programs import Array, PlainLoop, Run
from benchmarks.workload import Workload

NUM_CANDIDATES = 4
STEP_INPUTS = ["previous_ids", "hidden", "cell", "feeding", "memory", "keys"]
STEP_OUTPUTS = ["log_probs", "ids", "next_hidden", "next_cell", "next_feeding"]


class Encoder(nn.Module):
    def __init__(self, workload: Workload) -> None:
        super().__init__()
        embedding, size = workload.embedding_size, workload.hidden_size
        self.embeddings = nn.Embedding(workload.vocabulary_size, embedding)
        self.lstm = nn.LSTM(embedding, size // 2, workload.num_layers, batch_first=True, bidirectional=True)
        self.bridge_hidden = nn.Linear(size, size)
        self.bridge_cell = nn.Linear(size, size)
        self.keys = nn.Linear(size, size, bias=False)

    def forward(self, source_ids: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Returns memory and keys [B, S, H] and first hidden and cell states [L, B, H] of sentences [B, S]."""
        memory, (hidden, cell) = self.lstm(self.embeddings(source_ids))
        joined = [torch.cat([state[0::2], state[1::2]], 2) for state in (hidden, cell)]
        return memory, self.keys(memory), torch.tanh(self.bridge_hidden(joined[0])), self.bridge_cell(joined[1])


class Step(nn.Module):
    """One step of Luong et al. 2015: general attention, input feeding."""

    def __init__(self, workload: Workload) -> None:
        super().__init__()
        size = workload.hidden_size
        self.embeddings = nn.Embedding(workload.vocabulary_size, workload.embedding_size)
        widths = [workload.embedding_size + size, *[size] * (workload.num_layers - 1)]
        self.cells = nn.ModuleList(nn.LSTMCell(width, size) for width in widths)
        self.combine = nn.Linear(2 * size, size)
        self.output = nn.Linear(size, workload.vocabulary_size)

    def forward(
        self, previous_ids: Tensor, hidden: Tensor, cell: Tensor, feeding: Tensor, memory: Tensor, keys: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Returns log-probabilities and ids of the best [B, K], and the next state: hidden and cell states [L, B, H],
        and the attentional vector [B, H] that is fed to the next step.
        """
        output = torch.cat([self.embeddings(previous_ids), feeding], 1)
        states = []
        for number, layer in enumerate(self.cells):
            output, memorized = layer(output, (hidden[number], cell[number]))
            states.append((output, memorized))
        hidden, cell = (torch.stack(parts) for parts in zip(*states, strict=True))
        output = output.unsqueeze(1)
        weights = torch.softmax(output @ keys.transpose(1, 2), 2)
        feeding = torch.tanh(self.combine(torch.cat([weights @ memory, output], 2))).squeeze(1)
        log_probs, ids = torch.log_softmax(self.output(feeding), 1).topk(NUM_CANDIDATES, 1)
        return log_probs, ids, hidden, cell, feeding


def plain_model(workload: Workload) -> tuple[Encoder, Step]:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return Encoder(workload).eval(), Step(workload).eval()


def work(**workload: Any) -> None:
    """Decodes jobs, eager, on one thread."""
    torch.set_num_threads(1)
    torch_loop(Workload(**workload)).answer_jobs()


def torch_loop(workload: Workload) -> PlainLoop:
    """Returns the loop around the model itself; numpy and torch share the arrays' memory."""

    def eager(module: nn.Module) -> Run:
        def run(inputs: Mapping[str, Array]) -> list[Array]:
            with torch.inference_mode():
                outputs = module(**{name: torch.from_numpy(value) for name, value in inputs.items()})
            return [output.numpy() for output in outputs]

        return run

    return PlainLoop(*map(eager, plain_model(workload)))


def export_plain(folder: str, **workload: Any) -> None:
    """Writes fp32 graphs by torch.onnx, and int8 graphs by onnxruntime's `quantize_dynamic`."""
    encoder, step = plain_model(Workload(**workload))
    source_ids = torch.ones(3, 5, dtype=torch.int64)
    memory, keys, hidden, cell = encoder(source_ids)
    step_inputs = torch.ones(3, dtype=torch.int64), hidden, cell, torch.zeros_like(hidden[0]), memory, keys
    batch, width = torch.export.Dim("B", min=2, max=4096), torch.export.Dim("S", min=2, max=4096)
    both, first, second = {0: batch, 1: width}, {0: batch}, {1: batch}
    fp32, int8 = Path(folder, "fp32"), Path(folder, "int8")
    for precision_folder in (fp32, int8):
        precision_folder.mkdir()
    for name, module, inputs, shapes, input_names, output_names in (
        ("encoder", encoder, (source_ids,), (both,), ["source_ids"], ["memory", "keys", "hidden", "cell"]),
        ("step", step, step_inputs, (first, second, second, first, both, both), STEP_INPUTS, STEP_OUTPUTS),
    ):
        path = fp32 / f"{name}.onnx"
        names: dict[str, Any] = {"input_names": input_names, "output_names": output_names}
        torch.onnx.export(module, inputs, path, dynamic_shapes=shapes, external_data=False, **names)
        # quantize_dynamic stops at the example's sizes that shape inference has left.
        model = onnx.load(path)
        del model.graph.value_info[:]
        onnx.save(model, path)
        quantize_dynamic(path, int8 / path.name, weight_type=QuantType.QInt8)
