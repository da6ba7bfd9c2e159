"""What a model of another toolkit gives a bundle: the same as one of ours, once it is in our terms."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import torch
from pydantic import ValidationError
from torch import Tensor

from attendant.export.importing import g2p_en, joeynmt, opennmt
from attendant.export.importing.imported import Reader
from attendant.export.origins.from_model import ExportableModel, bundle_name, exporting_versions, limits_of
from attendant.runtime.bundle.manifest import Provenance
from attendant.runtime.errors import UserError
from attendant.runtime.files import sha256_of
from attendant.training.model import Seq2Seq

READERS: Final[Mapping[str, Reader]] = {
    "g2p_en": g2p_en.read,
    "joeynmt": joeynmt.read,
    "opennmt-py": opennmt.read,
}


def exportable_checkpoint(
    toolkit: str,
    path: Path,
    output: Path,
    name: str | None = None,
    *,
    segmented: bool = False,
    texts: Sequence[str] = (),
    data: str = "",
) -> ExportableModel:
    """Returns everything that a bundle says of this checkpoint.

    Args:
        toolkit: of `READERS`.
        output: the folder that the bundle will have.
        name: the bundle's; None: its folder's.
        segmented: texts are given segmented into the toolkit's symbols, with blanks between them.
        texts: real sources, on which the graphs are verified too.
        data: what they are.

    Raises:
        UserError: the checkpoint can't be read, or holds what can't be represented; the name can't be a bundle's.
    """
    name = bundle_name(name, output.absolute().name)
    try:
        imported = READERS[toolkit](path, segmented)
    except ValidationError as error:
        raise UserError(f"{path}: its model can't be imported: {error.errors()[0]['msg']}") from None
    tokenizers = imported.source_tokenizer, imported.target_tokenizer
    widths = {side: imported.tensors[f"{side}_embedding.weight"].shape[1] for side in ("source", "target")}
    if widths["source"] != widths["target"]:
        raise UserError(
            f"{imported.file}: embeddings of width {widths['source']} for sources and {widths['target']} for targets "
            "can't be imported: both must have one width"
        )
    model = Seq2Seq(imported.config, *(one.vocabulary_size for one in tokenizers))
    _refuse_other_shapes(imported.file, imported.tensors, model.state_dict())
    model.load_state_dict(imported.tensors)
    encoded = imported.source_tokenizer.encode_batch(list(texts))
    sources = [source for source in encoded if 0 < len(source) <= imported.max_source_tokens]
    limits = limits_of(imported.target_tokenizer, imported.max_source_tokens, imported.max_target_tokens)
    return ExportableModel(
        name=name,
        model=model.eval(),
        source_tokenizer=imported.source_tokenizer,
        target_tokenizer=imported.target_tokenizer,
        append_eos=imported.append_eos,
        limits=limits,
        decoding=imported.decoding.model_copy(
            update={"beam_size": min(imported.decoding.beam_size, limits.max_beam_size)}
        ),
        provenance=Provenance(
            commit=f"imported from {toolkit}",
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            versions={"torch": torch.__version__, **exporting_versions()},
            recipe={"model": imported.config.model_dump(mode="json")},
            data_digest="",
            checkpoint=f"sha256:{sha256_of(imported.file)}",
        ),
        sources=sources,
        validation=sources,
        validation_name=data,
    )


def _refuse_other_shapes(path: Path, tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Raises UserError, naming the first of them, if weights don't have the shapes of the model."""
    if unmatched := sorted(expected.keys() ^ tensors.keys()):
        raise UserError(
            f"{path}: the weights are not of the model that its settings describe: only one of both has "
            f"{', '.join(unmatched)}"
        )
    differing = [name for name in expected if tensors[name].shape != expected[name].shape]
    if differing:
        first, *others = differing
        shapes = [" x ".join(map(str, side[first].shape)) for side in (tensors, expected)]
        more = f"; so are {len(others)} more" if others else ""
        raise UserError(
            f"{path}: the weights are not of the model that its settings describe: {first} is {shapes[0]}, must be "
            f"{shapes[1]}{more}"
        )
