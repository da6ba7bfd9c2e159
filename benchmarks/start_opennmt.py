"""Starts a command of OpenNMT-py in its environment: `start_opennmt.py onmt.bin.train -config FILE`."""

import argparse
import runpy
import sys
import types
from typing import Any

import torch

# OpenNMT-py imports all of its text transforms, and with them these modules, which are not used.
sys.modules |= {name: types.ModuleType(name) for name in ("fasttext", "spacy")}
# OpenNMT-py reads checkpoints as torch did before 2.6.
torch.serialization.add_safe_globals([argparse.Namespace])


def mend_copying() -> None:
    """Lets version 3.5.1 load and decode the models with copying attention that it trains."""
    from onmt import inference_engine  # noqa: PLC0415
    from onmt.constants import CorpusTask  # noqa: PLC0415
    from onmt.models.model import BaseModel  # noqa: PLC0415

    load = BaseModel.load_state_dict

    def load_state_dict(self: BaseModel, checkpoint: dict[str, Any], *more: Any, **options: Any) -> None:
        # OpenNMT-py looks for the weights of copying under wrong names.
        checkpoint["model"].update({f"generator.{name}": weights for name, weights in checkpoint["generator"].items()})
        load(self, checkpoint | {"generator": {}}, *more, **options)

    def infer_file(self: inference_engine.InferenceEnginePY) -> Any:
        # Left out there: which symbols of the source are which of the target.
        sources = inference_engine.build_dynamic_dataset_iter(
            self.opt,
            self.transforms_cls,
            self.vocabs,
            copy=self.translator.copy_attn,
            task=CorpusTask.INFER,
            device_id=self.device_id,
        )
        return self._translate(sources)

    BaseModel.load_state_dict = load_state_dict
    inference_engine.InferenceEnginePY.infer_file = infer_file


if __name__ == "__main__":
    mend_copying()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__")
