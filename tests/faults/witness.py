"""A well-behaved client during an attack."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from attendant_client.v1 import seq2seq_pb2 as messages
from attendant_client.v1 import seq2seq_pb2_grpc

PAUSE_SECONDS = 0.02


@contextmanager
def witness(target: str) -> Iterator[Counter[str]]:
    """Makes one call after another from its own thread, without retries, until the context ends.

    Yields:
        The number of its calls per status name.
    """
    codes, ending = Counter[str](), threading.Event()

    def ask() -> None:
        options = [("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(target, options) as channel:
            stub = seq2seq_pb2_grpc.Seq2SeqStub(channel)
            while not ending.wait(PAUSE_SECONDS):
                try:
                    stub.Generate(messages.GenerateRequest(text="badge"), timeout=20.0)
                    codes["OK"] += 1
                except grpc.RpcError as error:
                    codes[error.code().name] += 1

    thread = threading.Thread(target=ask, name="witness")
    thread.start()
    try:
        yield codes
    finally:
        ending.set()
        thread.join()
