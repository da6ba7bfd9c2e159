"""A well-behaved client during an attack, with the status codes and durations of its calls."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import grpc

from attendant_client.v1 import seq2seq_pb2 as messages
from attendant_client.v1 import seq2seq_pb2_grpc


@dataclass
class Witness:
    """The calls of a well-behaved client.

    Attributes:
        codes: the number of its calls per status name.
        seconds: the duration of each call.
    """

    codes: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)

    @property
    def num_calls(self) -> int:
        return self.codes.total()

    @property
    def num_failed(self) -> int:
        return self.num_calls - self.codes["OK"]

    def quantile(self, share: float) -> float:
        """Returns the quantile of the calls' seconds."""
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@contextmanager
def witness(
    target: str,
    request: messages.GenerateRequest | None = None,
    *,
    pause_seconds: float = 0.02,
    timeout_seconds: float | None = 20.0,
) -> Iterator[Witness]:
    """Makes one call after another from its own thread, without retries, until the context ends.

    If latencies matter, run the attacker in another process: this thread shares the interpreter with the test.
    """
    sent_request = request or messages.GenerateRequest(text="badge")
    seen, ending = Witness(), threading.Event()

    def ask() -> None:
        options = [("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(target, options) as channel:
            stub = seq2seq_pb2_grpc.Seq2SeqStub(channel)
            while not ending.wait(pause_seconds):
                began = time.monotonic()
                try:
                    stub.Generate(sent_request, timeout=timeout_seconds)
                    code = "OK"
                except grpc.RpcError as error:
                    code = error.code().name
                seen.seconds.append(time.monotonic() - began)
                seen.codes[code] += 1

    thread = threading.Thread(target=ask, name="witness")
    thread.start()
    try:
        yield seen
    finally:
        ending.set()
        thread.join()
