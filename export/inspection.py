"""`attendant.inspect`: the inner quantities of a run's or a bundle's decoder."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from operator import index
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from attendant.runtime.bundle.bundle import BundleModel, open_bundle
from attendant.runtime.bundle.manifest import Precision
from attendant.runtime.bundle.tokenizer import Tokenizer, UnknownTokenError
from attendant.runtime.bundle_stepper import default_precision
from attendant.runtime.command import needed
from attendant.runtime.decoding.options import default_max_length
from attendant.runtime.errors import UserError, shown
from attendant.runtime.files import path_of
from attendant.runtime.inspection import OF_POSITIONS, OF_SOURCE, Inspection, Record
from attendant.runtime.onnx.inspection import watched
from attendant.runtime.stepper import NO_ID
from attendant.training.evaluation.evaluating import TextModel
from attendant.training.evaluation.session import PathName, is_bundle


def inspect(
    path: PathName,
    source: str | Sequence[str],
    target: str | Sequence[str] | None = None,
    *,
    masked_source_positions: Sequence[int] = (),
    precision: Precision | None = None,
    checkpoint: Literal["best", "last"] | None = None,
) -> Inspection:
    """Returns a decoder's inner quantities: scores, weights, query, keys, context, gates, p_gen.

    Args:
        path: a run, which is decoded in PyTorch and needs torch, or a bundle, whose graphs are run.
        source: a text or its tokens.
        target: a text or its tokens, which the decoder is forced to take, and then its end; if None, the model's own
            greedy answer.
        masked_source_positions: places of the source's tokens, from 0, that attention must not look at.
        precision: of a bundle's graphs; if None, fp32, or the bundle's default if it has none.
        checkpoint: of a run; if None, the best.

    Raises:
        UserError: the path is neither, the bundle is refused, or the source or target is invalid.
    """
    path = path_of("path", path)
    if precision is not None and precision not in get_args(Precision):
        raise UserError(f"precision={shown(precision)}: must be {' or '.join(get_args(Precision))}, or None")
    if is_bundle(path):
        if checkpoint is not None:
            raise UserError(f"checkpoint: is {checkpoint}, must be None: the bundle {path} has one set of weights")
        subject = _of_bundle(path, precision)
    elif precision is not None:
        raise UserError(f"precision: is {precision}, must be None: {path} is a run, which is computed in fp32")
    else:
        subject = _of_run(path, checkpoint or "best")
    return subject.inspect(source, target, masked_source_positions)


def _of_bundle(path: Path, precision: Precision | None) -> "Subject":
    bundle, record = open_bundle(path), Record()
    manifest = bundle.manifest
    chosen = precision or ("fp32" if "fp32" in manifest.graphs else default_precision(bundle, "cpu"))
    max_length = default_max_length(manifest, manifest.limits.max_source_tokens)
    model = TextModel.of_bundle(bundle, watched(bundle, chosen, record), max_length)
    has_mask = BundleModel(bundle=bundle, precision=chosen, limits=manifest.limits).masks_positions
    return Subject(model=model, record=record, has_mask=has_mask)


def _of_run(path: Path, checkpoint: Literal["best", "last"]) -> "Subject":
    try:  # torch is only needed here
        loading = import_module("attendant.training.run.loading")
        inspection, stepper = (import_module(f"attendant.training.model.{name}") for name in ("inspection", "stepper"))
    except ModuleNotFoundError as missing:
        raise UserError(f"{path} is a run, and {needed(missing, 'cpu,training')}") from None
    run, record = loading.load_run(path, checkpoint), Record()
    model = run.text_model(stepper.TorchStepper(inspection.watched(run.model, record)))
    return Subject(model=model, record=record, has_mask=run.model.decoder.attention is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A model whose steps are watched.

    Attributes:
        model: its stepper fills `record` at every step, for its first row.
        has_mask: positions of the source can be masked.
    """

    model: TextModel
    record: Record
    has_mask: bool

    def inspect(
        self, source: str | Sequence[str], target: str | Sequence[str] | None, masked_source_positions: Sequence[int]
    ) -> Inspection:
        """Decodes a source; see the function `inspect`."""
        model, stepper, eos = self.model, self.model.stepper, self.model.special_ids.eos
        own_ids = _ids("source", source, model.source_tokenizer)
        if not own_ids:
            fault = f"{shown(source)}, of which normalization leaves nothing" if source else "empty"
            raise UserError(f"source: is {fault}, must have a token at least")
        source_ids = model.encoder_ids(own_ids)
        forced = None if target is None else [*_ids("target", target, model.target_tokenizer), eos]
        try:
            masked = sorted(map(index, set(masked_source_positions)))
        except TypeError:
            must = "must be places of tokens, e.g. [0, 2]"
            raise UserError(f"masked_source_positions: is {masked_source_positions!r}, {must}") from None
        if masked and not self.has_mask:
            raise UserError("masked_source_positions: must be empty, because this model has no attention of ours")
        if masked and not (masked[0] >= 0 and masked[-1] < len(source_ids) and len(masked) < len(source_ids)):
            limit = f"positions from 0 to {len(source_ids) - 1}, not all of them"
            raise UserError(f"masked_source_positions: is {masked}, must be {limit}")
        state = stepper.encode([source_ids], [masked]) if masked else stepper.encode([source_ids])
        previous, target_ids, log_probs = model.special_ids.start, list[int](), list[float]()
        steps: list[Record] = []
        for forced_id in [NO_ID] * (model.max_length + 1) if forced is None else forced:
            self.record.clear()
            output, state = stepper.step(
                state, np.array([previous]), num_candidates=1, forced_ids=np.array([forced_id]), attention=True
            )
            weights = {} if output.attention is None else {"weights": output.attention[0]}
            steps.append(weights | self.record)
            is_free = forced_id == NO_ID
            previous = int(output.candidate_ids[0, 0]) if is_free else forced_id
            target_ids.append(previous)
            log_probs.append(float((output.candidate_log_probs[0] if is_free else output.forced_log_probs)[0]))
            if previous == eos:
                break
        if forced is None and previous != eos:  # cut at the maximum length: the last step only showed that it goes on
            for each in (steps, target_ids, log_probs):
                each.pop()
        values = _stacked(steps, len(source_ids))
        gates = {name.removeprefix("gates."): values.pop(name) for name in list(values) if name.startswith("gates.")}
        return Inspection(
            source_tokens=tuple(model.source_tokenizer.tokens_of(source_ids)),
            target_tokens=tuple(model.target_tokenizer.tokens_of(target_ids)),
            log_probs=np.array(log_probs, np.float32),
            gates=gates,
            **values,
        )


def _ids(field: str, value: str | Sequence[str], tokenizer: Tokenizer) -> list[int]:
    is_text = isinstance(value, str)
    if is_text and not tokenizer.takes_texts:
        raise UserError(f"{field}: is a text, must be tokens: this model's texts are segmented by its user's program")
    if not isinstance(value, Sequence) or not all(isinstance(token, str) for token in value):
        raise UserError(f"{field}: is {shown(value)}, must be a text or a list of tokens")
    try:
        "".join(value).encode()
        return tokenizer.encode(str(value)) if is_text else tokenizer.ids_of(value)
    except UnicodeEncodeError:
        raise UserError(f"{field}: is {shown(value)}, must be a text without half a surrogate pair") from None
    except UnknownTokenError as error:
        unknown = ", ".join(repr(value[place]) for place in error.positions[:4])
        raise UserError(f"{field}: has tokens that are not in the vocabulary: {unknown}") from None


def _stacked(steps: Sequence[Record], num_positions: int) -> dict[str, NDArray[np.float32]]:
    """Returns the quantities of all steps; those of the source once, of its valid positions."""
    values = {}
    for name in steps[0]:
        rows = [np.asarray(step[name], np.float32) for step in steps]
        if name in OF_SOURCE:
            values[name] = rows[0][:num_positions]
        else:
            values[name] = np.stack([row[:num_positions] if name in OF_POSITIONS else row for row in rows])
    return values
