"""What can be evaluated: a run, by PyTorch, or a bundle, by the very loader and graphs that serve."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from attendant.runtime.bundle.bundle import open_bundle
from attendant.runtime.bundle.manifest import MANIFEST_NAME, Manifest, Precision, Provider, search_of
from attendant.runtime.bundle.tokenizer import special_ids
from attendant.runtime.bundle_stepper import default_precision
from attendant.runtime.errors import UserError
from attendant.runtime.onnx.stepper import OnnxStepper
from attendant.runtime.stepper import Stepper
from attendant.training.evaluation.decoding import TextModel
from attendant.training.evaluation.evaluating import EvaluationConfig
from attendant.training.evaluation.metrics import MetricName
from attendant.training.kernels.device import choose_device, use_threads
from attendant.training.model.stepping.ensemble import Ensemble
from attendant.training.model.stepping.stepper import TorchStepper
from attendant.training.run.checkpoint import BEST
from attendant.training.run.directory import Run
from attendant.training.run.loading import LoadedRun, load_members


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
    if not Run(path).recipe_path.is_file():
        what = "is neither a run (no recipe.toml) nor a bundle (no manifest.json)" if path.exists() else "is not there"
        raise UserError(f"{path} {what}: give the directory that training or export has written")
    return False


def open_run(path: Path, checkpoint: str = BEST) -> OpenedModel:
    """Raises UserError where the run has no such checkpoint, or is damaged."""
    return open_runs([path], "", checkpoint)


def open_runs(paths: Sequence[Path], option: str, checkpoint: str = BEST) -> OpenedModel:
    """A run, or several as one model, which is measured as the first one's recipe says.

    Args:
        option: what names them, for errors.

    Raises:
        UserError: a run that can't be opened, or that has another tokenizer than the first.
    """
    loaded = load_members(paths, option, checkpoint)
    weights = "" if checkpoint == BEST else f"{checkpoint} checkpoint"
    others = f"with {', '.join(map(str, paths[1:]))} as an ensemble" if len(paths) > 1 else ""
    return OpenedModel(
        path=paths[0],
        model=model_of_runs(loaded),
        config=loaded[0].recipe.evaluation,
        variant=", ".join(filter(None, (weights, others))),
        max_beam_size=None,
    )


def model_of_runs(loaded: Sequence[LoadedRun]) -> TextModel:
    """A run's model, or several as an ensemble, on the device of the first one's recipe."""
    first = loaded[0]
    use_threads(None)
    model = first.model if len(loaded) == 1 else Ensemble([one.model for one in loaded])
    return text_model(first, TorchStepper(model, choose_device(first.recipe.training.device)))


def text_model(loaded: LoadedRun, stepper: Stepper) -> TextModel:
    """A run's text model around a stepper of its weights."""
    recipe = loaded.recipe
    return TextModel(
        stepper=stepper,
        source_tokenizer=loaded.source_tokenizer,
        target_tokenizer=loaded.target_tokenizer,
        special_ids=special_ids(loaded.model.start_id),
        append_eos=recipe.source.append_eos,
        max_length=recipe.data.max_target_tokens,
    )


def open_bundle_model(path: Path, precision: Precision | None = None, provider: Provider = "cpu") -> OpenedModel:
    """Opens a bundle as the server would.

    Args:
        precision: None: the manifest's default on that provider.

    Raises:
        UserError: a bundle that is refused, a precision that it lacks, a provider that this host lacks.
    """
    bundle = open_bundle(path)
    manifest = bundle.manifest
    precision = precision or default_precision(manifest, provider)
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
