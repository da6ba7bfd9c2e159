"""Makes, checks and runs sessions of ONNX Runtime. Only this file imports onnxruntime.

onnxruntime lists a CUDA provider that it can't load, and then runs on the CPU silently. So the session's real provider
is read back.

A step of a small batch takes a fraction of a millisecond. Handing over arrays takes a third of it: each is looked up by
its name, wrapped, and every output copied. On the CPU a binding remembers the arrays of its last run, and the next run
hands over only those that have changed. While rows neither join nor leave, two bindings alternate: each reads the
other's outputs, so only the ids change, which are copied. A run's outputs belong to the caller until the caller
releases them.
"""

import atexit
import functools
import hashlib
import os
import re
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

# onnxruntime reads this when it is loaded, and would send telemetry.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
try:
    import onnxruntime as ort
except ModuleNotFoundError as missing:
    remedy = "pip install 'attendant-seq2seq[cpu]', or with [gpu] for CUDA"
    raise ModuleNotFoundError(f"{missing.name} is not installed: {remedy}", name=missing.name) from None

from attendant.runtime.bundle import graph_io
from attendant.runtime.bundle.graph_content import outputs_part, read_graph
from attendant.runtime.bundle.manifest import GraphSpec, Provider
from attendant.runtime.bundle.reading import MAX_GRAPH_BYTES, Unfit, read_file
from attendant.runtime.errors import UserError, one_line
from attendant.runtime.files import reading_error
from attendant.runtime.process import NO_THREAD, quiet_stderr
from attendant.runtime.stepper import NO_ID, Array, Ids

PROVIDERS: Mapping[Provider, tuple[str, dict[str, str]]] = {
    "cpu": ("CPUExecutionProvider", {}),
    # TF32 rounds the factors of a matrix product to 10 bits, so it is not the fp32 of the certificate.
    "cuda": ("CUDAExecutionProvider", {"use_tf32": "0"}),
}
RUNTIME_VERSION = f"onnxruntime {ort.__version__}"

ERROR, FATAL = 3, 4
DTYPES = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(int32)": "int32",
    "tensor(int64)": "int64",
    "tensor(bool)": "bool",
    "tensor(uint8)": "uint8",
    "tensor(int8)": "int8",
}

Shape = tuple[int, ...]

MAX_BINDINGS = 4  # Two for each of two batches that are stepped in turns.
MIN_REPEATS = 4
"""Runs of the same shapes in a row before they are bound. A new binding takes as long as binding saves in two to three
runs, and under load the number of rows changes every few steps."""

MAX_HELD_BYTES = 1 << 20
"""A binding keeps inputs up to this size alive until it gets others: onnxruntime binds an array in a quarter of the
time that it takes to bind an address. Large ones, the sources of a whole batch, are bound by their address."""

END_SECONDS = 10.0  # Longest time that the end of the interpreter waits for native code.


class _Native(threading.local):
    """The lock of a thread, which it holds while native code runs without the interpreter's lock.

    Until Python 3.14 (CPython's issue 87135), a thread that comes back from native code after the interpreter's end
    aborts the process. So the end takes all locks: it waits for daemon threads, and they begin nothing more.
    """

    locks: ClassVar[weakref.WeakSet[Any]] = weakref.WeakSet()

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.locks.add(self.lock)


_native = _Native()
# A fork has none of the other threads, whose locks would stay taken.
os.register_at_fork(after_in_child=_Native.locks.clear)


@atexit.register
def _wait_for_native_code() -> None:
    give_up = time.monotonic() + END_SECONDS
    for lock in list(_Native.locks):
        lock.acquire(timeout=max(0.0, give_up - time.monotonic()))


@dataclass(slots=True)
class _ArraySet:
    """Arrays of certain shapes, by Python's ids, and the object that owns them and keeps them alive."""

    shapes: Any
    array_ids: frozenset[int]
    owner: Any
    is_free: bool = False


class ArrayPool:
    """The last few sets of arrays. A set is in use, by one thread, until one of its arrays is released."""

    def __init__(self, max_sets: int) -> None:
        self._max_sets = max_sets
        # The set that was used last comes first.
        self._sets: list[_ArraySet] = []
        self._lock = threading.Lock()

    def release(self, array: Array) -> None:
        """Frees the set that has this array; ignores an array of no set."""
        with self._lock:
            for each in self._sets:
                if id(array) in each.array_ids:
                    each.is_free = True
                    return

    def _take(self, shapes: Any) -> Any:
        """Returns the owner of a free set of these shapes, which is in use from now on; None if there is none."""
        with self._lock:
            for place, each in enumerate(self._sets):
                if each.is_free and each.shapes == shapes:
                    if place:  # the set that was not used for longest is dropped first
                        self._sets.insert(0, self._sets.pop(place))
                    each.is_free = False
                    return each.owner
        return None

    def _add(self, shapes: Any, arrays: Iterable[Array], owner: Any) -> None:
        """Keeps a new set, which is in use."""
        with self._lock:
            del self._sets[self._max_sets - 1 :]
            self._sets.insert(0, _ArraySet(shapes, frozenset(map(id, arrays)), owner))


class BoundRuns(ArrayPool):
    """The bindings of one session, for outputs of the shapes that were requested last."""

    def __init__(self, session: Any, dtypes: Mapping[str, str], copied: Collection[str]) -> None:
        """Wraps a session of onnxruntime on the CPU, whose outputs have these dtypes.

        Args:
            copied: small inputs that are usually other arrays each time; they are copied unless they are read-only. All
                others must be contiguous.
        """
        super().__init__(MAX_BINDINGS)
        self._session = session
        self._dtypes = dtypes
        self._copied = frozenset(copied)
        self._last: Mapping[str, Shape] = {}
        self._num_repeats = 0

    def run(self, shapes: Mapping[str, Shape], inputs: Mapping[str, Array]) -> list[Array]:
        """Returns the outputs of these names, which will have these shapes, in order."""
        binding: _Binding | None = self._take(shapes)
        if binding is None:
            self._num_repeats = self._num_repeats + 1 if shapes == self._last else 0
            self._last = shapes
            if self._num_repeats < MIN_REPEATS:
                with _native.lock:
                    return list(self._session.run(list(shapes), inputs))
            binding = _Binding(self._session, shapes, self._dtypes, self._copied)
            self._add(shapes, binding.outputs, binding)
        return binding.run(inputs)


class _Binding:
    """Outputs of fixed shapes, and the inputs of the last run."""

    def __init__(
        self, session: Any, shapes: Mapping[str, Shape], dtypes: Mapping[str, str], copied: frozenset[str]
    ) -> None:
        self.outputs = [np.empty(shape, dtypes[name]) for name, shape in shapes.items()]
        self._session = session
        self._binding = session.io_binding()
        self._copied = copied
        self._inputs: dict[str, Callable[[], Array | None]] = defaultdict(lambda: lambda: None)
        self._copies: dict[str, Array] = {}
        for name, array in zip(shapes, self.outputs, strict=True):
            self._binding.bind_output(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)

    def run(self, inputs: Mapping[str, Array]) -> list[Array]:
        bound = self._inputs
        for name, array in inputs.items():
            if name in self._copied and array.flags.writeable:
                array = self._copy(name, array)  # noqa: PLW2901 - the copy is bound from here on
            if bound[name]() is array:
                continue
            assert array.flags.c_contiguous, f"{name} is not contiguous"
            if array.nbytes <= MAX_HELD_BYTES:
                self._binding.bind_cpu_input(name, array)
            else:
                # An address of an array that died is replaced before the next run reads it.
                self._binding.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
            bound[name] = weakref.ref(array)
        with _native.lock:
            self._session.run_with_iobinding(self._binding)
        return self.outputs.copy()

    def _copy(self, name: str, array: Array) -> Array:
        copy = self._copies.get(name)
        if copy is None or copy.shape != array.shape:
            copy = self._copies[name] = np.empty(array.shape, array.dtype)
        copy[...] = array
        return copy


class OnnxSession:
    """A graph of a bundle on a provider."""

    def __init__(
        self,
        folder: Path,
        spec: GraphSpec,
        *,
        provider: Provider,
        num_threads: int,
        copied: Collection[str] = (),
        exposed: Sequence[str] = (),
    ) -> None:
        """Loads `folder / spec.file`.

        Args:
            copied: small inputs that are other arrays in each run; see `BoundRuns`.
            exposed: values within the graph that become outputs, in addition to those of the specification.

        Raises:
            UserError: the provider is missing, onnxruntime can't run the file, or the file has changed since the
                manifest was checked.
        """
        self.spec = spec
        self._provider: Provider = provider
        self._exposed = frozenset(exposed)
        content = graph_bytes(folder, spec) + outputs_part(exposed)
        self._session = _load(spec.file, content, provider, num_threads)
        self._bound_runs: BoundRuns | None = None
        if provider == "cpu":
            self._bound_runs = BoundRuns(self._session, {o.name: o.dtype for o in spec.outputs}, copied)

    def run(
        self, outputs: Sequence[str] | Mapping[str, Shape], inputs: Mapping[str, Array], *, in_place: bool = False
    ) -> list[Array]:
        """Returns the named outputs, in order; inputs and outputs have the shapes and dtypes of the specification.

        Args:
            outputs: with their shapes if `in_place`.
            in_place: write to released arrays of an earlier run of the same shapes, if there are any; the caller will
                release the outputs. Inputs that are not `copied` then have to be contiguous.
        """
        if in_place and isinstance(outputs, Mapping) and self._bound_runs is not None:
            return self._bound_runs.run(outputs, inputs)
        with _native.lock:
            return list(self._session.run(list(outputs), inputs))

    def release(self, array: Array) -> None:
        """Lets later runs in place write to the outputs of an earlier run, which any one of them identifies."""
        if self._bound_runs is not None:
            self._bound_runs.release(array)

    def differences(self) -> list[str]:
        """Returns one line for each difference of the session's real inputs and outputs from the manifest's."""
        outputs = [output for output in self._session.get_outputs() if output.name not in self._exposed]
        differences: list[str] = []
        for kind, specs, real in (
            ("input", self.spec.inputs, self._session.get_inputs()),
            ("output", self.spec.outputs, outputs),
        ):
            expected = {spec.name: f"{spec.dtype} {list(spec.shape)}" for spec in specs}
            actual = {each.name: f"{DTYPES.get(each.type, each.type)} {list(each.shape)}" for each in real}
            differences += [
                f"{self.spec.file}: {kind} '{name}': the manifest has {expected.get(name, 'none')}, "
                f"the graph has {actual.get(name, 'none')}"
                for name in sorted(expected.keys() | actual.keys())
                if expected.get(name) != actual.get(name)
            ]
        return differences

    def bound(self) -> "BoundSession":
        """Returns the same session, for tensors that stay on the device."""
        return BoundSession(self._session, self._provider)


class BoundSession:
    """A session whose inputs and outputs may stay on the provider's device."""

    def __init__(self, session: Any, provider: Provider) -> None:
        self._session = session
        self._provider = provider

    @classmethod
    def of_bytes(cls, name: str, content: bytes, *, provider: Provider, num_threads: int) -> "BoundSession":
        """Loads a graph that is in no file; messages contain `name`."""
        return cls(_load(name, content, provider, num_threads), provider)

    def run(self, inputs: Mapping[str, Any], outputs: Sequence[str], on_host: Sequence[str] = ()) -> list[Any]:
        """Runs the graph.

        Args:
            inputs: contiguous arrays, and tensors that an earlier run left on the device.

        Returns:
            The named outputs in order, which stay on the device, then those of `on_host` as arrays.
        """
        binding = self._session.io_binding()
        for name, value in inputs.items():
            if isinstance(value, np.ndarray):
                binding.bind_cpu_input(name, value)
            else:
                binding.bind_ortvalue_input(name, value)
        for name in outputs:
            binding.bind_output(name, self._provider)
        for name in on_host:
            binding.bind_output(name, "cpu")
        with _native.lock:
            self._session.run_with_iobinding(binding)
        values = binding.get_outputs()
        return [*values[: len(outputs)], *(np.array(value.numpy()) for value in values[len(outputs) :])]

    def uploaded(self, array: Array) -> Any:
        """Returns a copy of an array on the device."""
        return ort.OrtValue.ortvalue_from_numpy(np.array(array, order="C"), self._provider, 0)


class PlainSession:
    """A graph that belongs to no bundle, on the CPU: its inputs and outputs have any shapes."""

    def __init__(self, label: str, content: bytes, num_threads: int = 1) -> None:
        """Loads it; errors name `label`. Raises UserError: onnxruntime can't run the graph."""
        self._label = label
        self._session = _load(label, content, "cpu", num_threads)

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str]) -> list[Array]:
        """Returns the named outputs. Raises UserError: onnxruntime refuses the inputs, or fails."""
        try:
            with _native.lock:
                return list(self._session.run(outputs, inputs))
        except Exception as error:  # onnxruntime's exceptions have no common base of their own
            raise UserError(f"{self._label}: {_one_line(str(error))}") from None


def graph_bytes(folder: Path, spec: GraphSpec) -> bytes:
    """Returns a checked graph. Exactly these bytes are loaded, even if the file changes meanwhile.

    Raises:
        UserError: it can't be read, no export writes such a graph, or its digest differs from the manifest's.
    """
    try:
        content = read_file(folder / spec.file, MAX_GRAPH_BYTES)
        read_graph(content)
    except OSError as error:
        raise UserError(f"{spec.file}: can't be read: {reading_error(error)}") from error
    except Unfit as error:
        raise UserError(f"{spec.file}: {one_line(str(error))}") from error
    if (digest := hashlib.sha256(content).hexdigest()) != spec.sha256:
        raise UserError(f"{spec.file}: sha256 is {digest}, the manifest has {spec.sha256}")
    return content


def _load(label: str, graph: bytes, provider: Provider, num_threads: int) -> ort.InferenceSession:
    if provider == "cuda":
        _prepare_cuda()
    name, options = PROVIDERS[provider]
    try:
        with quiet_stderr() as captured, _native.lock:
            session = ort.InferenceSession(graph, _session_options(num_threads, provider), providers=[(name, options)])
    # onnxruntime's exceptions have no common base of their own.
    except Exception as error:
        if "pthread_create failed" in str(error):
            raise UserError(f"{label}: {NO_THREAD}") from error
        raise UserError(f"{label}: onnxruntime can't load it on {provider}: {_one_line(str(error))}") from error
    if session.get_providers()[0] != name:
        raise UserError(_missing_cuda(_one_line(captured.text)))
    # Otherwise the session would keep a second copy of the graph.
    session._model_bytes = None
    return session


def _session_options(num_threads: int, provider: Provider) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.intra_op_num_threads = num_threads
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    # The encoder's and the step's sessions run in turns: spinning threads of one would slow the other.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # onnxruntime's own moves of quantizing nodes cost time.
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    # Bytes in its own format would not be the ONNX that was checked.
    options.add_session_config_entry("session.load_model_format", "ONNX")
    # Failures raise with the same message, except the reason why CUDA is missing, which is only logged.
    options.log_severity_level = FATAL if provider == "cpu" else ERROR
    return options


def _prepare_cuda() -> None:
    if PROVIDERS["cuda"][0] not in ort.get_available_providers():
        raise UserError(_missing_cuda("the onnxruntime that is installed is the one for CPUs"))
    # The CUDA libraries of wheels are outside the loader's path: this loads them, and prints those that are missing.
    with quiet_stderr():
        ort.preload_dlls()


def _missing_cuda(reason: str) -> str:
    return (
        f"provider cuda is not available here: {reason or 'onnxruntime gave no reason'}; "
        "install the extra `gpu` and an NVIDIA driver, or take --provider cpu"
    )


def _one_line(text: str) -> str:
    """Returns the first line without onnxruntime's source locations, status codes and colours."""
    line = one_line(text.replace("\x1b[m", "")).split("] ")[-1]
    return re.sub(r"^(\[ONNXRuntimeError\])?\s*: \d+ : [A-Z_]+ : ", "", line).strip()


def step_inputs(
    num_rows: int, previous_ids: Ids, num_candidates: int, forced_ids: Ids | None, banned_ids: Ids | None
) -> dict[str, Array]:
    """Returns the inputs of a step of `num_rows` rows by name, without its state (Stepper.step)."""
    return {
        graph_io.PREVIOUS_IDS: np.ascontiguousarray(previous_ids, np.int64),
        graph_io.FORCED_IDS: _no_ids(num_rows) if forced_ids is None else np.ascontiguousarray(forced_ids, np.int64),
        graph_io.BANNED_IDS: _no_ids(num_rows, 1) if banned_ids is None else np.ascontiguousarray(banned_ids, np.int64),
        graph_io.NUM_CANDIDATES: _number(num_candidates),
    }


@functools.lru_cache(maxsize=16)
def _number(value: int) -> Ids:
    return np.array([value], np.int64)


@functools.lru_cache(maxsize=16)
def _no_ids(*shape: int) -> Ids:
    ids = np.full(shape, NO_ID, np.int64)
    # A read-only input is not copied.
    ids.flags.writeable = False
    return ids
