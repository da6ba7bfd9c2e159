"""The export: two ONNX graphs of a trained model, verified and published as a bundle.

Begin with commands.py. origins.py reads a model from its origin, and bundle_writer.py writes the bundle. Users' models
enter by `export_model` (model.py): contract.py defines their modules, own.py wraps them. The names below need torch and
are imported on first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attendant.export.contract import Seq2SeqModule, SharingModule
    from attendant.export.model import UserModel, export_model

__all__ = ["Seq2SeqModule", "SharingModule", "UserModel", "export_model"]

_PLACES = {"Seq2SeqModule": "contract", "SharingModule": "contract", "UserModel": "model", "export_model": "model"}


def __getattr__(name: str) -> Any:
    """Imports one of the names above."""
    if name not in _PLACES:
        raise AttributeError(f"module 'attendant.export' has no attribute {name!r}")
    return getattr(importlib.import_module(f"attendant.export.{_PLACES[name]}"), name)
