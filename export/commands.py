"""The commands that make a bundle: export, import and reference. Their parsers are in __main__.py."""

import argparse
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Final

from attendant.export.bundle_writer import write_bundle
from attendant.export.model import ENCODER, export_model, load_user_model
from attendant.export.origins import exportable_checkpoint
from attendant.export.published import publish
from attendant.export.run import export_run, summaries, with_defaults
from attendant.export.verification.quality import MIN_REFERENCE, NUM_REFERENCE, references_of, with_references
from attendant.runtime.bundle.bundle import open_bundle
from attendant.runtime.bundle.manifest import MANIFEST_NAME, SEARCH_OPTIONS, search_of
from attendant.runtime.bundle_stepper import open_stepper
from attendant.runtime.errors import UserError
from attendant.training.evaluation.session import read_data


def export(options: argparse.Namespace) -> str:
    """Publishes a bundle of a run or of another bundle. Returns a summary, a line per precision."""
    options.precision = options.precision or ("fp32",)
    if options.web_libraries is not None:
        raise UserError("--web-libraries is for --web")
    if re.fullmatch(r".+\.py:\w+", str(options.origin)):
        return _export_user_model(options)
    if options.weights is not None:
        raise UserError("--weights is for a model of your own, FILE.py:FUNCTION")
    published = export_run(
        options.origin,
        options.output,
        precisions=options.precision,
        data=options.data,
        measure=not options.skip_evaluation,
        **{name: getattr(options, name) for name in SEARCH_OPTIONS},
        name=options.name,
        checkpoint=options.checkpoint,
        force=options.force,
    )
    return str(published)


def _export_user_model(options: argparse.Namespace) -> str:
    if options.checkpoint is not None:
        raise UserError("--checkpoint is for runs: a model of your own takes --weights")
    model = load_user_model(str(options.origin), options.weights)
    model = replace(model, **search_of(options))
    bundle = export_model(
        model,
        options.output,
        sources=[] if options.sources is None else _lines(options.sources),
        data=None if options.skip_evaluation else options.data,
        name=options.name,
        precisions=options.precision,
        force=options.force,
    )
    alone = any(pair.encode_alone for pair in bundle.manifest.graphs.values())
    advice = [f"sources are encoded one by one, since padding changes the encoder: {ENCODER}"] if alone else []
    return "\n".join([*summaries(options.output, bundle), *advice])


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UserError(f"--sources {path}: can't be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"--sources {path}: it is not UTF-8") from None


def import_checkpoint(options: argparse.Namespace) -> str:
    """Publishes a bundle of another toolkit's checkpoint. Returns a summary."""
    exportable = exportable_checkpoint(
        options.toolkit,
        options.checkpoint,
        options.output,
        options.name,
        segmented=options.segmented,
        texts=[] if options.data is None else _some_sources(options.data),
        data=options.data or "",
    )
    chosen = with_defaults(exportable, **{name: getattr(options, name) for name in SEARCH_OPTIONS})
    return "\n".join(summaries(options.output, write_bundle(chosen, options.output, force=options.force)))


def _some_sources(data: str) -> list[str]:
    """Returns sources from all parts of the files, which may be sorted: NUM_REFERENCE or up to twice as many."""
    examples = read_data(data).examples
    return [example.source for example in examples[:: max(1, len(examples) // NUM_REFERENCE)]]


def reference(options: argparse.Namespace) -> str:
    """Publishes the bundle with reference distributions: the same files, another manifest.

    Raises:
        UserError: too few texts, or `options.output` is occupied.
    """
    bundle = open_bundle(options.bundle)
    sources = bundle.source_tokenizer.encode_batch(_some_sources(options.data))
    with publish(options.output, force=options.force) as folder:
        steppers = (open_stepper(bundle, precision) for precision in bundle.manifest.graphs if precision != "fp16")
        references = references_of(bundle, steppers, sources, options.data)
        if not references:
            raise UserError(f"--data {options.data}: fewer than {MIN_REFERENCE} sources that a request could give")
        for name in bundle.manifest.files:
            (folder / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(bundle.path / name, folder / name)
        manifest = with_references(bundle.manifest, references).signed()
        (folder / MANIFEST_NAME).write_text(manifest.to_text(), encoding="utf-8")
        open_bundle(folder)
    num_texts = next(iter(references.values())).num_examples
    return (
        f"{options.output}: {manifest.name} {manifest.version}, with references of {num_texts} texts in "
        f"{' and '.join(references)}"
    )


COMMANDS: Final = {"export": export, "import": import_checkpoint, "reference": reference}
