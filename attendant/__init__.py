"""Attendant: attention sequence-to-sequence models, trained, exported to ONNX and served.

    model = attendant.load("models/g2p-en")
    print(model.generate("phoneme", beam_size=4).best.text)

The packages in here stand at the top of the repository (`runtime`, `training`, `export`, `server`, `recipes`); this
folder links to them, so that what is installed is `attendant.*` alone. CONTRIBUTING.md says why. Each is imported when
it is first asked for.
"""

import importlib as _importlib
import typing as _typing

if _typing.TYPE_CHECKING:
    from attendant.export import export_model as export_model
    from attendant.server.library import *  # noqa: F403

_PACKAGES = {"export", "runtime", "server", "training"}


def __getattr__(name: str) -> _typing.Any:
    """A package, or what the library offers by that name."""
    if name in _PACKAGES:
        return _importlib.import_module(f"attendant.{name}")
    if name == "export_model":
        return _importlib.import_module("attendant.export").export_model
    # What Python and its tools look for is not worth an import.
    if name == "__all__" or not name.startswith("_"):
        library = _importlib.import_module("attendant.server.library")
        if name in ("__all__", *library.__all__):
            return getattr(library, name)
    raise AttributeError(f"module 'attendant' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Returns the names that a prompt completes."""
    return sorted(
        {*globals(), *_PACKAGES, "export_model", *_importlib.import_module("attendant.server.library").__all__}
    )
