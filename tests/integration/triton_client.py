"""Calls a server with NVIDIA's tritonclient and prints the answers as JSON.

Usage: python -m tests.integration.triton_client TARGET ADMIN_TOKEN FOLDER. It runs in its own process, because its
generated code and ours describe the same messages, and a process can hold only one description of a message.
"""

import json
import re
import shutil
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from tests.paths import ROOT

DOCS = ROOT / "docs"


def refusal(call: Any, *arguments: Any, **named: Any) -> str:
    """Returns the status and message with which a call is refused."""
    try:
        call(*arguments, **named)
    except InferenceServerException as error:
        return f"{error.status()}: {error.message()}"
    return "OK"


def texts(*sources: str) -> list[triton.InferInput]:
    tensor = triton.InferInput("text", [len(sources)], "BYTES")
    tensor.set_data_from_numpy(np.array([source.encode() for source in sources], object))
    return [tensor]


def outputs(*names: str) -> list[triton.InferRequestedOutput]:
    return [triton.InferRequestedOutput(name) for name in names]


def plain(array: Any) -> Any:
    return (
        [plain(item) for item in array]
        if isinstance(array, np.ndarray)
        else array.decode()
        if isinstance(array, bytes)
        else float(array)
    )


def documented(target: str) -> Any:
    """Runs the example of docs/open-inference.md; returns its result."""
    (code,) = re.findall(r"```python\n(.*?)```", (DOCS / "open-inference.md").read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    with redirect_stdout(None):
        exec(code.replace("localhost:50051", target).replace('"g2p-en"', '"tiny"'), names)
    return plain(names["answer"].as_numpy("text"))


def main(target: str, admin_token: str, folder: Path) -> dict[str, Any]:
    client = triton.InferenceServerClient(target)
    admin = {"authorization": f"Bearer {admin_token}"}
    answers: dict[str, Any] = {
        "documented": documented(target),
        "live": client.is_server_live(),
        "ready": client.is_server_ready(),
        "model ready": [client.is_model_ready("first", version) for version in ("", "1", "7")],
        "unknown ready": client.is_model_ready("nobody"),
        "server": client.get_server_metadata(as_json=True),
        "model": client.get_model_metadata("first", as_json=True),
    }
    result = client.infer("first", texts("badge", "jab", "face"), request_id="mine")
    answers["plain"] = {name: plain(result.as_numpy(name)) for name in ("text", "score", "log_prob")}
    answers["echoed"] = [result.get_response().id, result.get_response().model_version]
    names = ("text", "tokens", "token_log_probs", "attention", "source_tokens")
    result = client.infer(
        "first",
        texts("badge", "jab"),
        model_version="1",
        outputs=outputs(*names),
        parameters={"beam_size": 4, "num_hypotheses": 3, "length_penalty": 0.5, "suppress_unk": True, "max_length": 9},
    )
    answers["full"] = {name: plain(result.as_numpy(name)) for name in names}
    drawn = [client.infer("first", texts("badge"), parameters={"seed": 5, "top_k": 4}) for _ in range(2)]
    answers["drawn"] = [plain(result.as_numpy("text")) for result in drawn]

    def states() -> dict[str, str]:
        index = client.get_model_repository_index(as_json=True)["models"]
        return {f"{entry['name']}/{entry['version']}": entry["state"] for entry in index}

    answers["before"] = states()
    client.unload_model("first", headers=admin)
    answers["unloaded"] = [
        client.is_model_ready("first"),
        refusal(client.infer, "first", texts("a")),
        states()["first/1"],
    ]
    shutil.copytree(folder / "first" / "1", folder / "first" / "2")
    (folder / "first" / "2" / "golden.jsonl").write_text("{}\n")
    answers["broken"] = refusal(client.load_model, "first", headers=admin)
    answers["after"] = [client.is_model_ready("first"), states()]
    answers["nowhere"] = refusal(client.load_model, "nobody", headers=admin)
    return answers


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))))
