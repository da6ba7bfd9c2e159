"""One ONNX Runtime session: made, checked against the manifest, run. Nothing else imports onnxruntime.

A session is never trusted by its name: onnxruntime lists a CUDA provider that it can't load, and then runs on the CPU
without a word. So what the session really got is read back.
"""

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Read by onnxruntime when it is loaded: what a server does is nobody else's affair.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
import onnxruntime as ort

from runtime.errors import UserError
from runtime.manifest import GraphSpec, Provider, TensorSpec

Array = NDArray[Any]

PROVIDERS: Mapping[Provider, tuple[str, dict[str, str]]] = {
    "cpu": ("CPUExecutionProvider", {}),
    # TF32 rounds the factors of a matrix product to 10 bits: not the fp32 that the certificate speaks of.
    "cuda": ("CUDAExecutionProvider", {"use_tf32": "0"}),
}
RUNTIME_VERSION = f"onnxruntime {ort.__version__}"

ERROR = 3
DTYPES = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(int64)": "int64",
    "tensor(bool)": "bool",
    "tensor(uint8)": "uint8",
}


class OnnxSession:
    """A graph that really has the inputs and outputs its specification names, on the provider that was asked for."""

    def __init__(self, folder: Path, spec: GraphSpec, *, provider: Provider, num_threads: int) -> None:
        """Loads `folder / spec.file`.

        Raises:
            UserError: the provider is not there, or the file is no graph that onnxruntime runs.
        """
        if provider == "cuda":
            _prepare_cuda()
        name, options = PROVIDERS[provider]
        self.spec = spec
        try:
            with _quiet_stderr() as said:
                self._session = ort.InferenceSession(
                    str(folder / spec.file), _session_options(num_threads), providers=[(name, options)]
                )
        # onnxruntime's exceptions have no common base of their own.
        except Exception as error:
            raise UserError(f"{spec.file}: onnxruntime can't load it on {provider}: {_one_line(str(error))}") from error
        if self._session.get_providers()[0] != name:
            raise UserError(_missing_cuda(_one_line(said.text)))

    def run(self, outputs: Sequence[str], inputs: Mapping[str, Array]) -> list[Array]:
        """The named outputs, in order."""
        return list(self._session.run(outputs, inputs))

    def differences(self) -> list[str]:
        """How the session's real inputs and outputs differ from the manifest's; one line each."""
        return [
            *_tensor_differences(self.spec.file, "input", self.spec.inputs, self._session.get_inputs()),
            *_tensor_differences(self.spec.file, "output", self.spec.outputs, self._session.get_outputs()),
        ]


def _session_options(num_threads: int) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.intra_op_num_threads = num_threads
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    # The encoder's and the step's sessions run in turns: spinning threads of one would only slow the other.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # Graphs that quantize do so where they mean to; what onnxruntime moves about costs time.
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    options.log_severity_level = ERROR
    return options


def _tensor_differences(file: str, kind: str, specs: Sequence[TensorSpec], real: Sequence[Any]) -> Iterator[str]:
    expected = {spec.name: f"{spec.dtype} {list(spec.shape)}" for spec in specs}
    found = {one.name: f"{DTYPES.get(one.type, one.type)} {list(one.shape)}" for one in real}
    for name in sorted(expected.keys() | found.keys()):
        if name not in found:
            yield f"{file}: {kind} '{name}': the manifest says {expected[name]}, the graph has none"
        elif name not in expected:
            yield f"{file}: {kind} '{name}': the graph has {found[name]}, the manifest none"
        elif expected[name] != found[name]:
            yield f"{file}: {kind} '{name}': the manifest says {expected[name]}, the graph has {found[name]}"


def _prepare_cuda() -> None:
    if PROVIDERS["cuda"][0] not in ort.get_available_providers():
        raise UserError(_missing_cuda("the onnxruntime that is installed is the one for CPUs"))
    # The wheels that carry the CUDA libraries lie where no loader looks: this loads them, and prints what it misses.
    with contextlib.redirect_stdout(None), _quiet_stderr():
        ort.preload_dlls()


def _missing_cuda(reason: str) -> str:
    return (
        f"provider cuda is not available here: {reason or 'onnxruntime gave no reason'}; "
        "install the extra `gpu` and an NVIDIA driver, or take --provider cpu"
    )


def _one_line(text: str) -> str:
    """The first thing that was said, without onnxruntime's source locations, status codes and colours."""
    line = next((line for line in text.splitlines() if line.strip()), "")
    said = line.split("] ")[-1].replace("\x1b[m", "")
    return re.sub(r"^(\[ONNXRuntimeError\])?\s*: \d+ : [A-Z_]+ : ", "", said).strip()[:300]


class _Said:
    text = ""


@contextlib.contextmanager
def _quiet_stderr() -> Iterator[_Said]:
    """Keeps what native code writes to standard error: onnxruntime's loader logs there past every log level.

    Only around the creation of a session, before anything is served.
    """
    said = _Said()
    with tempfile.TemporaryFile() as kept:
        saved = os.dup(2)
        os.dup2(kept.fileno(), 2)
        try:
            with contextlib.redirect_stdout(None):
                yield said
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            kept.seek(0)
            said.text = kept.read().decode(errors="replace")


def as_input(values: Any, dtype: type[np.generic]) -> Array:
    """A contiguous array of `dtype`, copied only where it is not one already."""
    return np.ascontiguousarray(values, dtype)
