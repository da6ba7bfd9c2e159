"""Attendant: attention sequence-to-sequence models, trained, exported to ONNX and served.

    run = attendant.train("pairs.tsv")
    bundle = attendant.export_run(run, "bundles/mine")
    print(attendant.load(bundle).generate("a source", beam_size=4).best.text)

The packages of this folder are links to folders at the top of the repository (`runtime`, `training`, `export`,
`server`, `recipes`), so that only `attendant.*` is installed; CONTRIBUTING.md has the reasons. Each package is imported
at its first use.
"""

import importlib as _importlib
import typing as _typing

if _typing.TYPE_CHECKING:
    from attendant.export.commands import ExportedBundle as ExportedBundle
    from attendant.export.commands import export_run as export_run
    from attendant.export.inspection import inspect as inspect
    from attendant.export.model import export_model as export_model
    from attendant.export.published import Check as Check
    from attendant.export.published import verify as verify
    from attendant.runtime.errors import VerificationFailed as VerificationFailed
    from attendant.server.library import *  # noqa: F403
    from attendant.training.library.evaluation import evaluate as evaluate
    from attendant.training.library.evaluation import report as report
    from attendant.training.library.results import Results as Results
    from attendant.training.library.training import TrainedRun as TrainedRun
    from attendant.training.library.training import train as train
    from attendant.training.loop.callbacks import Record as Record
    from attendant.training.loop.callbacks import StepProgress as StepProgress
    from attendant.training.loop.callbacks import TrainingCallback as TrainingCallback
    from attendant.training.loop.callbacks import TrainingStart as TrainingStart

_PACKAGES = {"export", "runtime", "server", "training"}

# The module under `attendant` of each name, and the extras of the distribution that it needs.
_PLACES = {
    "export_model": ("export.model", "cpu,export"),
    "export_run": ("export.commands", "cpu,export"),
    "ExportedBundle": ("export.commands", "cpu,export"),
    "inspect": ("export.inspection", "cpu"),
    "verify": ("export.published", "cpu"),
    "Check": ("export.published", "cpu"),
    "VerificationFailed": ("runtime.errors", "cpu"),
    "evaluate": ("training.library.evaluation", "cpu,training"),
    "Results": ("training.library.results", "cpu,training"),
    "report": ("training.library.evaluation", "cpu,training"),
    "train": ("training.library.training", "cpu,training"),
    "TrainedRun": ("training.library.training", "cpu,training"),
    "Record": ("training.loop.callbacks", "cpu,training"),
    "StepProgress": ("training.loop.callbacks", "cpu,training"),
    "TrainingCallback": ("training.loop.callbacks", "cpu,training"),
    "TrainingStart": ("training.loop.callbacks", "cpu,training"),
}


def __getattr__(name: str) -> _typing.Any:
    """Returns a package, or the library's object of that name."""
    if name in _PACKAGES:
        return _importlib.import_module(f"attendant.{name}")
    if name in _PLACES:
        place, extras = _PLACES[name]
        try:
            return getattr(_importlib.import_module(f"attendant.{place}"), name)
        except ModuleNotFoundError as missing:
            return _needing(missing, name, extras)
    # Names that Python and its tools look up are not worth an import.
    if name == "__all__" or not name.startswith("_"):
        library = _importlib.import_module("attendant.server.library")
        if name in ("__all__", *library.__all__):
            return getattr(library, name)
    raise AttributeError(f"module 'attendant' has no attribute {name!r}")


def _needing(missing: ModuleNotFoundError, name: str, extras: str) -> _typing.Any:
    """Returns a class that raises UserError when it is called or derived from, as functions and classes are used."""
    from attendant.runtime.command import needed  # noqa: PLC0415

    message = f"attendant.{name}: {needed(missing, extras)}"

    def refuse(*_: object, **__: object) -> _typing.NoReturn:
        from attendant.runtime.errors import UserError  # noqa: PLC0415

        raise UserError(message)

    return type(name, (), {"__new__": refuse, "__init_subclass__": refuse})


def __dir__() -> list[str]:
    """Returns the names that a prompt completes."""
    names = _importlib.import_module("attendant.server.library").__all__
    return sorted({*globals(), *_PACKAGES, *_PLACES, *names})
