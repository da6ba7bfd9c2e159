"""`attendant.export_model`: a bundle of a user's own model in PyTorch."""

import importlib.util
import json
import logging
import os
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from numbers import Integral
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch.nn.parameter import is_lazy

from attendant.export import origins
from attendant.export.bundle_writer import precisions_of, write_bundle
from attendant.export.contract import UserModule
from attendant.export.graph import TracedPair
from attendant.export.importing.checkpoint import fill, read_torch
from attendant.export.own import traceable_module
from attendant.export.published import refuse_occupied
from attendant.export.remedies import explained, line_in
from attendant.export.tracing import TraceableModel, trace_graphs
from attendant.export.verification.probes import FULL_PLAN, VerificationPlan, checked_plan
from attendant.export.verification.quality import NUM_REFERENCE, QualityMeasurement
from attendant.runtime.bundle import manifest
from attendant.runtime.bundle.bundle import Bundle
from attendant.runtime.bundle.tokenizer import BOS_ID, EOS_ID, UNK_ID
from attendant.runtime.errors import UserError, VerificationFailed, reason_of
from attendant.runtime.files import path_of
from attendant.training.data.vocabulary import NAMES, SymbolKind, Symbols, Vocabulary, read_vocabulary
from attendant.training.evaluation.evaluating import EvaluationConfig, TextModel
from attendant.training.evaluation.session import Data, read_data

logger = logging.getLogger(__name__)

ENCODER: Final = (
    "to encode batches, let nothing beyond source_lengths reach valid positions: set padding to zero before every "
    "convolution and sum over positions, and mask it before every softmax"
)
ALONE: Final = "sources are encoded one by one, which is slower"

REMEDY: Final = (
    "the graphs compute something else than the module alone, without padding: mask all positions beyond "
    "source_lengths (before every softmax, and in convolutions and sums over positions; for ONNX graphs, see whether "
    "mask_is_true_on is right), let no `if` of Python depend on a size, since a trace keeps one branch, give each row "
    "its own result by row_slots if it has shares_sources, and read docs/export-your-own.md#padding"
)


@dataclass(frozen=True, kw_only=True)
class UserModel:
    """A user's own model, with all that a bundle needs; `build` of `attendant export FILE.py:build` returns it.

    Attributes:
        module: its trained encoder and step.
        source_tokenizer, target_tokenizer: symbols by their ids (a list, or a file with a symbol per line), or a file
            of Hugging Face's `tokenizers`.
        source_special, target_special: the names of "pad", "unk", "bos" and "eos" there; if None, the usual names are
            recognized.
        source_kind, target_kind: for lists of symbols: texts are split at white space, or into characters.
        append_eos, prepend_bos: the module was trained with EOS after every source, with BOS before it.
        max_source_tokens, max_target_tokens: limits of a request, without BOS and EOS.
        beam_size, length_penalty, length_penalty_offset, patience, protect_spans, split_sentences: defaults of a
            request (DecodingDefaults).
        origin: a description of the module's origin, for the bundle's provenance.
    """

    module: UserModule
    source_tokenizer: Symbols
    target_tokenizer: Symbols
    source_special: Mapping[str, str] | None = None
    target_special: Mapping[str, str] | None = None
    source_kind: SymbolKind = "word"
    target_kind: SymbolKind = "word"
    append_eos: bool = True
    prepend_bos: bool = False
    max_source_tokens: int = 100
    max_target_tokens: int = 100
    beam_size: int = 1
    length_penalty: float = 0.0
    length_penalty_offset: float = manifest.GNMT_OFFSET
    patience: float | None = None
    protect_spans: bool = False
    split_sentences: bool = False
    origin: Mapping[str, Any] = field(default_factory=dict)


def _trace_user_module(model: TraceableModel, module: UserModule) -> TracedPair:
    """Traces a user's module. Raises UserError, which names the module's own line, if it can't be traced."""
    try:
        return trace_graphs(model)
    except UserError:
        raise
    except Exception as error:
        raise explained(error, module) from error


def _refuse_wrong_values(model: UserModel) -> None:
    """Raises UserError: a field has a wrong type or is out of its range, and nothing that gets it checks it."""
    if not isinstance(model, UserModel):
        raise UserError(f"model is of type {type(model).__name__}: must be a UserModel, which describes a module")
    for name in ("max_source_tokens", "max_target_tokens"):
        limit = getattr(model, name)
        if not isinstance(limit, Integral) or not 1 <= int(limit) <= manifest.MAX_TOKENS:
            raise UserError(f"{name} is {limit!r}: must be a whole number from 1 to {manifest.MAX_TOKENS}")
    for name in ("append_eos", "prepend_bos"):
        if getattr(model, name) not in (True, False):
            raise UserError(f"{name} is {getattr(model, name)!r}: must be True or False")
    try:
        json.dumps(dict(model.origin), allow_nan=False)
    except (TypeError, ValueError):
        raise UserError(
            f"origin is {model.origin!r}: must be a dictionary of texts, numbers, lists and dictionaries"
        ) from None


@torch.inference_mode(False)
def export_model(
    model: UserModel,
    output: str | os.PathLike[str],
    *,
    sources: Sequence[str] = (),
    data: Data | None = None,
    name: str | None = None,
    precisions: manifest.Precision | Sequence[manifest.Precision] = ("fp32",),
    force: bool = False,
    plan: VerificationPlan = FULL_PLAN,
) -> Bundle:
    """Publishes a bundle of a user's own model, verified against the module run naively, or nothing.

    Args:
        sources: held-out texts: the graphs are verified on them, and golden examples are chosen from them.
        data: pairs on which every precision is measured: files (FILE.tsv or SOURCE,TARGET) or pairs, as in
            `attendant.evaluate`; their sources are used like `sources`. int8 becomes the default only if it was
            measured.
        name: the bundle's; by default the output folder's.

    Raises:
        UserError: the module does not keep the contract of Seq2SeqModule, a vocabulary is wrong, or `output` exists.
        VerificationFailed: the graphs compute something else than the module.
    """
    output = path_of("output", output)
    refuse_occupied(output, force=force)
    wanted, plan = precisions_of(precisions), checked_plan(plan)
    _refuse_wrong_values(model)
    texts = [*sources] if isinstance(sources, Iterable) else [sources]
    if isinstance(sources, str) or not all(isinstance(text, str) for text in texts):
        raise UserError("sources: must be a list of texts")
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        raise UserError("sources: a text has half a surrogate pair") from None
    source = read_vocabulary(model.source_tokenizer, model.source_special, model.source_kind, field="source_tokenizer")
    target = read_vocabulary(model.target_tokenizer, model.target_special, model.target_kind, field="target_tokenizer")
    needed = [name for name, used in (("bos", model.prepend_bos), ("eos", model.append_eos)) if used]
    _require(source.module_ids, needed, "source")
    _require(target.module_ids, ("bos", "eos"), "target")
    _warn_of_other_symbols(source, model)
    # Two, at least, show the axes of positions.
    max_positions = max(2, model.max_source_tokens + model.append_eos + model.prepend_bos)
    traced = traceable_module(
        model.module, source, target, max_positions=max_positions, max_target_tokens=model.max_target_tokens
    )
    if traced.encode_alone:
        logger.warning("the encoder takes only %d positions, so padding has no place: %s", max_positions, ALONE)
    pairs = None if data is None else read_data(data)
    texts += [example.source for example in (() if pairs is None else pairs.examples)]
    encoded = origins.held_out_sources(source.tokenizer, texts, model.max_source_tokens)
    validation = encoded[:: max(1, len(encoded) // NUM_REFERENCE)]
    # The graphs don't depend on `encode_alone`.
    graphs = cache(partial(_trace_user_module, traced, model.module))
    plain = origins.ExportableModel(
        name=origins.bundle_name(name, output.absolute().name),
        model=traced,
        trace=lambda _: graphs(),
        architecture=traced.architecture,
        special_ids=traced.special_ids,
        must_be_invariant=False,
        encode_alone=traced.encode_alone,
        source_tokenizer=source.tokenizer,
        target_tokenizer=target.tokenizer,
        append_eos=model.append_eos,
        prepend_bos=model.prepend_bos,
        limits=origins.limits_of(target.tokenizer, model.max_source_tokens, model.max_target_tokens),
        decoding=manifest.DecodingDefaults(),
        provenance=origins.provenance_of(
            commit="a model of a user's own",
            versions={"torch": torch.__version__},
            recipe={"module": type(model.module).__qualname__, **{str(key): model.origin[key] for key in model.origin}},
            data_digest="",
            checkpoint="",
        ),
        sources=validation[: origins.NUM_SOURCES],
        validation=validation,
        validation_name="" if pairs is None else pairs.name,
    )
    exportable = origins.with_defaults(plain, **manifest.defaults_of(model))
    measurement = None
    if pairs is not None:

        def text_model(stepper: Any) -> TextModel:
            return TextModel(
                stepper=stepper,
                source_tokenizer=source.tokenizer,
                target_tokenizer=target.tokenizer,
                special_ids=traced.special_ids,
                append_eos=model.append_eos,
                prepend_bos=model.prepend_bos,
                max_length=model.max_target_tokens,
            )

        config = EvaluationConfig().model_copy(update=manifest.search_of(exportable.decoding))
        measurement = QualityMeasurement(data=pairs, config=config, model_of=text_model)

    plan = _within(plan, max_positions)
    write = partial(write_bundle, output=output, precisions=wanted, force=force, plan=plan, measurement=measurement)
    try:
        try:
            return write(exportable)
        except VerificationFailed as error:
            tensors = [line.partition(":")[0] for line in error.differences if line.startswith("encoder/")]
            if not tensors:
                raise
            logger.warning("padding changes %s: %s; %s", ", ".join(tensors), ALONE, ENCODER)
            return write(replace(exportable, encode_alone=True))
    except VerificationFailed as error:
        rewritten = [precision for precision in wanted if precision != "fp32" and precision in error.summary]
        remedy = f"leave {rewritten[0]} out of the precisions" if rewritten else REMEDY
        raise VerificationFailed(f"{error.summary}; {remedy}", error.differences) from None


MAX_PROBED: Final = 256
"""Longest probed source: some modules add up over positions, and lose a short source's values alongside a long one."""


def _within(plan: VerificationPlan, longest: int) -> VerificationPlan:
    """Returns the plan with sources that the model takes: a module may have learned positions up to a limit.

    The full plan also gets a source as long as the model takes.
    """
    lengths = (*plan.source_lengths, MAX_PROBED) if plan == FULL_PLAN else plan.source_lengths
    return replace(plan, source_lengths=tuple(dict.fromkeys(min(length, longest) for length in lengths)))


def _require(module_ids: Sequence[int], roles: Sequence[str], side: str) -> None:
    places = dict(zip(NAMES, module_ids, strict=False))
    if missing := [role for role in roles if places[role] < 0]:
        raise UserError(
            f"{side}_tokenizer: no symbol is known to be {' or '.join(missing)}: declare it by {side}_special, for "
            f"instance {{'{missing[0]}': '...'}}"
        )


def _warn_of_other_symbols(source: Vocabulary, model: UserModel) -> None:
    """Warns if the module may get other symbols than in its training."""
    if source.module_ids[UNK_ID] < 0 and UNK_ID in source.tokenizer.encode("\U0010fffe"):
        logger.warning(
            "source_tokenizer: no symbol is known to be unk, so the module gets the id 0 instead of unknown symbols: "
            "if it has one, declare it by source_special"
        )
    added = [*[BOS_ID] * model.prepend_bos, *[EOS_ID] * model.append_eos]
    if source.around and [*source.around] != added:
        of_file, of_bundle = (" ".join(source.tokenizer.tokens_of(ids)) for ids in (source.around, added))
        logger.warning(
            "source_tokenizer: its post-processor adds %s to a source, and the bundle %s: set prepend_bos and "
            "append_eos as the module was trained",
            of_file,
            of_bundle or "nothing",
        )


def load_user_model(named: str, weights: Path | None) -> UserModel:
    """Runs `build` of FILE.py:build; `weights`, a state_dict that torch has saved, is loaded into the module. Raises
    UserError: there is no such file or function, it returns something else, or the weights don't fit.
    """
    path, _, function = named.rpartition(":")
    file = Path(path)
    if not file.is_file() or file.suffix != ".py":
        raise UserError(f"{named}: must be FILE.py:FUNCTION, and there is no file {path or named}")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # So that its own imports, and pickled classes, find it.
    sys.modules.setdefault(file.stem, module)
    sys.path.insert(0, str(file.parent.absolute()))
    try:
        spec.loader.exec_module(module)
        build = getattr(module, function, None)
        if not callable(build):
            raise UserError(f"{named}: {file} has no function {function}")
        model = build()
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        where = line_in(error, {str(file), str(file.absolute())})
        raise UserError(f"{named}: {type(error).__name__}: {reason_of(error)}{where}") from error
    finally:
        with suppress(ValueError):  # the program may have removed it itself
            sys.path.remove(str(file.parent.absolute()))
    if not isinstance(model, UserModel):
        raise UserError(f"{named}: {function}() must return attendant.export.UserModel, got {type(model).__name__}")
    # `export_model` refuses anything else.
    if weights is not None and isinstance(model.module, torch.nn.Module):
        _load_weights(model.module, weights)
    return model


CONTAINERS: Final = ("state_dict", "model_state_dict", "model")
"""Usual keys of the weights in a checkpoint that has other values, too; they come before all others."""


def _unwrapped(weights: Mapping[Any, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Returns weights without the names of objects in which the module was saved, and without these objects' own.

    nn.DataParallel saves "module.", torch.compile "_orig_mod.", and programs the attribute that the module is, such as
    "model." in PyTorch Lightning, alongside a loss. If several objects fit `own`, the module's state_dict, alike, all
    weights are returned.
    """
    named: dict[str, Any] = {str(name): value for name, value in weights.items()}
    counts = Counter(name.removesuffix(each) for name in named for each in own if f".{name}".endswith(f".{each}"))
    (prefix, most), (_, second) = [*counts.most_common(2), ("", 0), ("", 0)][:2]
    if not prefix or most == second:
        return named
    return {name.removeprefix(prefix): value for name, value in named.items() if name.startswith(prefix)}


def _load_weights(module: Any, path: Path) -> None:
    """Loads a state_dict into a module. Raises UserError if it can't be read, or does not fit."""
    remedy = f"save the weights alone, by torch.save(model.state_dict(), {path.name!r})"
    if path.suffix == ".safetensors":
        try:
            content: Mapping[str, Any] = load_file(path)
        except (OSError, SafetensorError) as error:
            raise UserError(f"{path}: can't be read: {reason_of(error)}") from None
    else:
        content = read_torch(path, Namespace, remedy=remedy)
    own = module.state_dict()
    nested = [content[key] for key in (*CONTAINERS, *content) if isinstance(content.get(key), Mapping)]
    if not any(key in content for key in CONTAINERS):
        nested = [weights for weights in nested if _unwrapped(weights, own).keys() & own.keys()]
        nested = nested if len(nested) == 1 else []  # of a teacher and its student, neither is chosen
    content = _unwrapped(nested[0] if nested else content, own)
    # safetensors saves one of several tied weights.
    for name in (name for name in own.keys() - content.keys() if not is_lazy(own[name])):
        tied = [other for other in own.keys() & content.keys() if own[name].is_set_to(own[other])]
        content |= {name: content[tied[0]]} if tied else {}
    fill(module, content, f"{path}: the weights don't fit {type(module).__name__}")
    for name, tensor in module.state_dict().items():
        if not torch.equal(tensor.nan_to_num(), content[name].to(tensor.dtype).nan_to_num()):
            raise UserError(f"{path}: the weights {name} differ from those to which {type(module).__name__} ties them")
