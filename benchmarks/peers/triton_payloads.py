"""Requests as Triton takes them: python -m benchmarks.peers.triton_payloads, in its environment.

A job in JSON on standard input; a request per line, in base64, on standard output.
"""

from __future__ import annotations

import base64
import json
import sys

import numpy as np
from tritonclient.grpc import service_pb2 as messages

from benchmarks.decoding.job import Job, sentences


def main() -> None:
    for source in sentences(Job(**json.loads(sys.stdin.read()))):
        tensor = messages.ModelInferRequest.InferInputTensor(
            name="source_ids", datatype="INT64", shape=[1, len(source)]
        )
        ids = np.array(source, "<i8").tobytes()
        request = messages.ModelInferRequest(model_name="mt", inputs=[tensor], raw_input_contents=[ids])
        print(base64.b64encode(request.SerializeToString()).decode())


if __name__ == "__main__":
    main()
