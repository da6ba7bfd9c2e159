"""What can be evaluated: a run, by PyTorch (runs.py), or a bundle, by the very loader and graphs that serve.

A bundle is evaluated without PyTorch, also in a server's environment.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final, get_args

from attendant.runtime.bundle.bundle import open_bundle
from attendant.runtime.bundle.manifest import MANIFEST_NAME, Manifest, Precision, Provider, search_of
from attendant.runtime.bundle_stepper import default_precision
from attendant.runtime.errors import UserError
from attendant.runtime.onnx.stepper import OnnxStepper
from attendant.training.evaluation.decoding import TextModel
from attendant.training.evaluation.evaluating import EvaluationConfig
from attendant.training.evaluation.metrics import MetricName

RECIPE_NAME: Final = "recipe.toml"
"""What every run directory has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedModel:
    """A run or a bundle, ready to decode.

    Attributes:
        config: what is measured, and how, unless the user says otherwise.
        variant: what else a protocol has to say, e.g. "int8 on cpu" or "last checkpoint"; may be empty.
        max_beam_size: the widest beam; None: no limit.
    """

    path: Path
    model: TextModel
    config: EvaluationConfig
    variant: str
    max_beam_size: int | None

    @property
    def name(self) -> str:
        """What it is called where several are compared."""
        return ", ".join(filter(None, (str(self.path), self.variant)))


def is_bundle(path: Path) -> bool:
    """Whether the directory is a bundle, and not a run. Raises UserError where it is neither."""
    if (path / MANIFEST_NAME).is_file():
        return True
    if not (path / RECIPE_NAME).is_file():
        what = "is neither a run (no recipe.toml) nor a bundle (no manifest.json)" if path.exists() else "is not there"
        raise UserError(f"{path} {what}: give the directory that training or export has written")
    return False


def open_bundle_model(path: Path, precision: Precision | None = None, provider: Provider = "cpu") -> OpenedModel:
    """Opens a bundle as the server would.

    Args:
        precision: None: the manifest's default on that provider.

    Raises:
        UserError: a bundle that is refused, a precision that it lacks, a provider that this host lacks.
    """
    bundle = open_bundle(path)
    manifest = bundle.manifest
    precision = precision or default_precision(bundle, provider)
    model = TextModel(
        stepper=OnnxStepper(bundle, precision, provider),
        source_tokenizer=bundle.source_tokenizer,
        target_tokenizer=bundle.target_tokenizer,
        special_ids=manifest.special_ids,
        append_eos=manifest.source.append_eos,
        max_length=manifest.decoding.max_length or manifest.limits.max_target_tokens,
    )
    return OpenedModel(
        path=path,
        model=model,
        config=_config_of(manifest),
        variant=f"{precision} on {provider}",
        max_beam_size=manifest.limits.max_beam_size,
    )


def _config_of(manifest: Manifest) -> EvaluationConfig:
    """The metrics that the manifest was measured by, and the search that it serves by."""
    measured = {entry.metric for entry in manifest.evaluation}
    metrics = tuple(metric for metric in get_args(MetricName) if metric in measured)
    return EvaluationConfig.model_validate(search_of(manifest.decoding) | ({"metrics": metrics} if metrics else {}))
