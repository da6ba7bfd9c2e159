"""What a model of another toolkit gives a bundle: the same as one of ours, once it is in our terms."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import torch
from pydantic import ValidationError

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
    name: str | None = None,
    *,
    segmented: bool = False,
    texts: Sequence[str] = (),
    data: str = "",
) -> ExportableModel:
    """Everything that a bundle says of this checkpoint.

    Args:
        toolkit: of `READERS`.
        name: the bundle's; None: the file's, or its folder's.
        segmented: texts are given segmented into the toolkit's symbols, with blanks between them.
        texts: real sources, on which the graphs are verified too.
        data: what they are.

    Raises:
        UserError: the checkpoint can't be read, or holds what can't be represented; the name can't be a bundle's.
    """
    try:
        imported = READERS[toolkit](path, segmented)
    except ValidationError as error:
        raise UserError(f"{path}: its model can't be imported: {error.errors()[0]['msg']}") from None
    tokenizers = imported.source_tokenizer, imported.target_tokenizer
    model = Seq2Seq(imported.config, *(one.vocabulary_size for one in tokenizers))
    try:
        model.load_state_dict(imported.tensors)
    except RuntimeError as error:
        raise UserError(
            f"{imported.file}: the weights are not of the model that it describes: {' '.join(str(error).split())}"
        ) from None
    encoded = imported.source_tokenizer.encode_batch(list(texts))
    sources = [source for source in encoded if 0 < len(source) <= imported.max_source_tokens]
    return ExportableModel(
        name=bundle_name(name, path.resolve().stem),
        model=model.eval(),
        source_tokenizer=imported.source_tokenizer,
        target_tokenizer=imported.target_tokenizer,
        append_eos=imported.append_eos,
        limits=limits_of(imported.target_tokenizer, imported.max_source_tokens, imported.max_target_tokens),
        decoding=imported.decoding,
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
