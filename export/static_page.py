"""A bundle as a static page: `attendant export BUNDLE --web FOLDER`.

The folder works on any static host: the graphs run in the browser by onnxruntime-web (WebAssembly), and the page
requests only files of its folder. The search is examples/javascript/bundle.mjs; the drawing is the playground's.
"""

import argparse
import json
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from attendant.export.published import publish, refuse_occupied, refuse_options
from attendant.runtime.bundle.bundle import TEXTS, Bundle, open_bundle
from attendant.runtime.bundle.manifest import MANIFEST_NAME, SEARCH_OPTIONS, TEXT_OPTIONS, Precision
from attendant.runtime.errors import UserError

MARKER: Final = "page.json"  # Every such folder has this file, so that `--force` replaces nothing else.
PAGE: Final = Path(__file__).parent / "page"
PLAYGROUND: Final = Path(__file__).parents[1] / "server" / "http" / "page"
SHARED: Final = ("address.js", "answers.js", "attention.js", "dom.js", "numbers.js", "text.js", "style.css", "icon.svg")
LIBRARIES: Final = {
    "@huggingface/tokenizers": ("dist/tokenizers.min.mjs",),
    "onnxruntime-web": ("dist/ort.wasm.min.mjs", "dist/ort-wasm-simd-threaded.mjs", "dist/ort-wasm-simd-threaded.wasm"),
}
"""Files of the npm packages that package-lock.json pins."""

LICENCES: Final = """\
The files of this folder are under the Apache License 2.0 (https://www.apache.org/licenses/LICENSE-2.0), except
ort.wasm.min.mjs and ort-wasm-simd-threaded.*, which are ONNX Runtime's (MIT, https://github.com/microsoft/onnxruntime).
tokenizers.min.mjs is Hugging Face's (Apache License 2.0). The bundle is under its own licence.
"""


def export(options: argparse.Namespace) -> str:
    """Publishes the page. Returns its size, and the command that shows it."""
    changing = ("weights", "sources", "data", "name", "checkpoint", *SEARCH_OPTIONS, *TEXT_OPTIONS)
    refuse_options(options, changing, "changes the bundle: export it by --output first, then by --web")
    refuse_occupied(options.web, force=options.force, marker=MARKER)
    if not (options.origin / MANIFEST_NAME).is_file():
        raise UserError(
            f"--web takes a bundle, and {options.origin} has no {MANIFEST_NAME}: export a run by --output first"
        )
    precision, *others = options.precision or (None,)
    if others:
        raise UserError(f"--precision {','.join(options.precision)}: a page runs one precision")
    bundle = open_bundle(options.origin)
    write_page(bundle, options.web, precision=precision, libraries=options.web_libraries, force=options.force)
    size = sum(path.stat().st_size for path in options.web.rglob("*"))
    return (
        f"{options.web}: a page of {size / 1e6:.0f} MB that runs {bundle.manifest.name} {bundle.manifest.version}\n"
        f"look at it: python -m http.server --directory {shlex.quote(str(options.web))}"
    )


def write_page(
    bundle: Bundle, output: Path, *, precision: Precision | None, libraries: Path | None, force: bool
) -> None:
    """Publishes the page, completely or not at all.

    Args:
        precision: None takes int8 if the bundle has it, because of its size.
        libraries: a `node_modules` folder with the packages of LIBRARIES; None installs them by npm.
    """
    chosen: Precision = precision or ("int8" if "int8" in bundle.manifest.graphs else "fp32")
    if chosen == "fp16":
        raise UserError("--precision fp16 is for CUDA: name fp32 or int8 for a page")
    graphs = bundle.graphs_in(chosen)
    with publish(output, force=force, marker=MARKER) as folder, _installed(libraries) as installed:
        for name in SHARED:
            shutil.copyfile(PLAYGROUND / name, folder / name)
        for name in ("index.html", "main.js", "worker.js", "page.css"):
            shutil.copyfile(PAGE / name, folder / name)
        search = (PAGE / "bundle.mjs").read_text(encoding="utf-8")
        # Browsers have no packages: the import names the file.
        search = search.replace('"@huggingface/tokenizers"', '"./tokenizers.min.mjs"')
        (folder / "bundle.mjs").write_text(search, encoding="utf-8")
        for package, files in LIBRARIES.items():
            for name in files:
                source = installed / package / name
                if not source.is_file():
                    raise UserError(f"{source} is missing: install {package} by npm, or leave out --web-libraries")
                shutil.copyfile(source, folder / source.name)
        for name in (MANIFEST_NAME, *TEXTS, graphs.encoder.file, graphs.decoder_step.file):
            (folder / "bundle" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(bundle.path / name, folder / "bundle" / name)
        (folder / "LICENCES.txt").write_text(LICENCES, encoding="utf-8")
        page = {"precision": chosen, "description": bundle.description, "examples": bundle.examples()}
        (folder / MARKER).write_text(json.dumps(page) + "\n", encoding="utf-8")


@contextmanager
def _installed(libraries: Path | None) -> Iterator[Path]:
    """Yields a `node_modules` folder."""
    if libraries is not None:
        yield libraries
        return
    npm = shutil.which("npm")
    if npm is None:
        raise UserError(
            "--web needs two libraries from npm, which is not installed: install npm, or name a node_modules folder "
            f"with {' and '.join(LIBRARIES)} by --web-libraries"
        )
    with tempfile.TemporaryDirectory(prefix="attendant-web-") as folder:
        for name in ("package.json", "package-lock.json"):
            shutil.copyfile(PAGE / name, Path(folder) / name)
        line = [npm, "ci", "--omit=dev", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
        environment = dict(os.environ)
        # An arbitrary user of a container may have no home, or one that it can't write to: npm refuses to run then.
        if not os.access(home := os.path.expanduser("~"), os.W_OK):  # noqa: PTH111  # Path raises if there is none
            environment |= {"HOME": home if Path(home).is_dir() else folder, "npm_config_cache": f"{folder}/cache"}
        done = subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            reason = next((text for text in done.stderr.splitlines() if text.strip()), f"status {done.returncode}")
            remedy = "--web-libraries names a node_modules folder that has them"
            raise UserError(f"npm could not install {' and '.join(LIBRARIES)}: {reason}; {remedy}")
        yield Path(folder) / "node_modules"
