"""The loop around a plain model that anyone would write first: a batch, so many steps, numpy between them.

Only numpy and onnxruntime: Triton runs it too, in its own environment.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from benchmarks.job import answer_jobs

BOS_ID = 2
STATE = ("hidden", "cell", "feeding")

Array = NDArray[Any]
Run = Callable[[Mapping[str, Array]], list[Array]]
"""Runs an encoder or a step: arrays by name in, arrays in the order of plain_model.py out."""


class PlainLoop:
    """Decodes a batch of sentences of one length; no sentence ends before the last step."""

    def __init__(self, encode: Run, step: Run) -> None:
        self._encode = encode
        self._step = step

    def answer_jobs(self) -> None:
        """As a worker process (job.py)."""
        answer_jobs(lambda batch, job: self.decode(batch, job.num_tokens, job.beam_size))

    def decode(self, sources: list[list[int]] | Array, num_steps: int, beam_size: int) -> Array:
        """Ids [B, num_steps] of the best hypothesis of each source."""
        memory, keys, hidden, cell = self._encode({"source_ids": np.array(sources, np.int64)})
        inputs = {
            "hidden": hidden,
            "cell": cell,
            "feeding": np.zeros((len(sources), hidden.shape[2]), np.float32),
            "memory": memory,
            "keys": keys,
        }
        return self._greedy(inputs, num_steps) if beam_size == 1 else self._beam(inputs, num_steps, beam_size)

    def _greedy(self, inputs: dict[str, Array], num_steps: int) -> Array:
        previous = np.full(len(inputs["memory"]), BOS_ID, np.int64)
        found = []
        for _ in range(num_steps):
            _, ids, *state = self._step({"previous_ids": previous, **inputs})
            inputs.update(zip(STATE, state, strict=True))
            previous = ids[:, 0]
            found.append(previous)
        return np.stack(found, 1)

    def _beam(self, inputs: dict[str, Array], num_steps: int, beam_size: int) -> Array:
        num_sources = len(inputs["memory"])
        inputs = {name: value.repeat(beam_size, axis=_row_axis(name)) for name, value in inputs.items()}
        previous = np.full(num_sources * beam_size, BOS_ID, np.int64)
        # At first all of a source's rows are the same: only one of them counts.
        scores = np.tile(np.array([0.0] + [-np.inf] * (beam_size - 1), np.float32), (num_sources, 1))
        found = np.zeros((num_sources * beam_size, 0), np.int64)
        for _ in range(num_steps):
            log_probs, ids, *state = self._step({"previous_ids": previous, **inputs})
            pool = (scores[:, :, None] + log_probs.reshape(num_sources, beam_size, -1)).reshape(num_sources, -1)
            best = np.argsort(-pool, axis=1, kind="stable")[:, :beam_size]
            scores = np.take_along_axis(pool, best, 1)
            rows = (best // log_probs.shape[1] + np.arange(num_sources)[:, None] * beam_size).ravel()
            previous = np.take_along_axis(ids.reshape(num_sources, -1), best, 1).ravel()
            inputs.update(
                {name: value.take(rows, axis=_row_axis(name)) for name, value in zip(STATE, state, strict=True)}
            )
            found = np.concatenate([found[rows], previous[:, None]], 1)
        return found.reshape(num_sources, beam_size, -1)[:, 0]


def work(folder: str) -> None:
    """Decodes in process with the graphs of a folder."""
    onnx_loop(folder).answer_jobs()


def onnx_loop(folder: str) -> PlainLoop:
    """The loop around the graphs of a folder, on one thread."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")

    def run(name: str) -> Run:
        session = ort.InferenceSession(f"{folder}/{name}.onnx", options, providers=["CPUExecutionProvider"])
        return lambda inputs: list(session.run(None, dict(inputs)))

    return PlainLoop(run("encoder"), run("step"))


def _row_axis(name: str) -> int:
    """States of torch's LSTM have their layers first."""
    return 1 if name in {"hidden", "cell"} else 0
