"""A plain `grpc.aio` server that refuses every call at once, beside processes that never stop computing.

No server can refuse sooner while workers fill the processors, since gRPC and the scheduler set the time. Its
argument is the number of these processes; it prints its port.
"""

import json
import os
import subprocess
import sys
from typing import Never

import grpc
import uvloop

from attendant.server.process.worker_main import NICENESS
from attendant_client.v1 import seq2seq_pb2 as messages
from attendant_client.v1 import seq2seq_pb2_grpc

BUSY = f"""\
import os
import numpy as np
os.nice({NICENESS})
matrix, parent = np.ones((512, 512), np.float32), os.getppid()
while os.getppid() == parent:
    matrix @ matrix
"""


class Refusing(seq2seq_pb2_grpc.Seq2SeqServicer):
    """Has never room."""

    async def Generate(  # noqa: N802
        self, request: messages.GenerateRequest, context: "grpc.aio.ServicerContext[object, object]"
    ) -> Never:
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "no room")


async def serve(num_busy: int) -> None:
    """Until it is ended; the busy processes then end by themselves."""
    server = grpc.aio.server()
    seq2seq_pb2_grpc.add_Seq2SeqServicer_to_server(Refusing(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    for _ in range(num_busy):
        subprocess.Popen([sys.executable, "-c", BUSY], env=os.environ | {"OPENBLAS_NUM_THREADS": "1"})
    print(json.dumps(port), flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
