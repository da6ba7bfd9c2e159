"""`attendant.inspect`: the inner quantities of a run's or a bundle's decoder."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Literal

from attendant.runtime.bundle.bundle import BundleModel, open_bundle
from attendant.runtime.bundle.manifest import MANIFEST_NAME, Precision
from attendant.runtime.bundle_stepper import default_precision
from attendant.runtime.command import needed
from attendant.runtime.decoding.options import default_max_length
from attendant.runtime.errors import UserError
from attendant.runtime.inspection import Inspection, Record, Subject
from attendant.runtime.onnx.inspection import watched


def inspect(
    path: Path | str,
    source: str | Sequence[str],
    target: str | Sequence[str] | None = None,
    *,
    masked_source_positions: Sequence[int] = (),
    precision: Precision | None = None,
    checkpoint: Literal["best", "last"] = "best",
) -> Inspection:
    """Returns what a decoder computes inside: scores, weights, query, keys, context, gates, p_gen.

    Args:
        path: a run, which is decoded in PyTorch and needs torch, or a bundle, whose graphs are run.
        source: a text or its tokens.
        target: a text or its tokens, which the decoder is forced to take, and then its end; if None, the model's own
            greedy answer.
        masked_source_positions: places of the source's tokens, from 0, that attention must not look at.
        precision: of a bundle's graphs; if None, fp32, or the bundle's default if it has none.
        checkpoint: of a run.

    Raises:
        UserError: the path is neither, the bundle is refused, or the source or target is invalid.
    """
    path = Path(path)
    if (path / MANIFEST_NAME).is_file():
        subject = _of_bundle(path, precision)
    elif (path / "recipe.toml").is_file():
        if precision is not None:
            raise UserError(f"precision: is {precision}, must be None: {path} is a run, which is computed in fp32")
        subject = _of_run(path, checkpoint)
    else:
        raise UserError(f"{path}: is neither a run (a folder with recipe.toml) nor a bundle (with {MANIFEST_NAME})")
    if masked_source_positions and not subject.has_mask:
        raise UserError("masked_source_positions: must be empty, because this model has no attention of ours")
    return subject.inspect(source, target, masked_source_positions)


def _of_bundle(path: Path, precision: Precision | None) -> Subject:
    bundle, record = open_bundle(path), Record()
    manifest = bundle.manifest
    chosen = precision or ("fp32" if "fp32" in manifest.graphs else default_precision(bundle, "cpu"))
    return Subject(
        stepper=watched(bundle, chosen, record),
        record=record,
        source_tokenizer=bundle.source_tokenizer,
        target_tokenizer=bundle.target_tokenizer,
        special_ids=manifest.special_ids,
        encoder_ids=bundle.source_ids,
        max_length=default_max_length(manifest, manifest.limits.max_source_tokens),
        has_mask=BundleModel(bundle=bundle, precision=chosen, limits=manifest.limits).masks_positions,
    )


def _of_run(path: Path, checkpoint: Literal["best", "last"]) -> Subject:
    try:  # torch is only needed here
        loading = import_module("attendant.training.run.loading")
        inspection, stepper = (import_module(f"attendant.training.model.{name}") for name in ("inspection", "stepper"))
    except ModuleNotFoundError as missing:
        raise UserError(f"{path} is a run, and {needed(missing, 'cpu,training')}") from None
    run, record = loading.load_run(path, checkpoint), Record()
    model = run.text_model(stepper.TorchStepper(inspection.watched(run.model, record)))
    return Subject(
        stepper=model.stepper,
        record=record,
        source_tokenizer=model.source_tokenizer,
        target_tokenizer=model.target_tokenizer,
        special_ids=model.special_ids,
        encoder_ids=model.encoder_ids,
        max_length=model.max_length,
        has_mask=run.model.decoder.attention is not None,
    )
