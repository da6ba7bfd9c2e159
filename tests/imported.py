"""Comparisons of imported models with the models that their toolkits compute."""

import torch
from torch import Tensor

from attendant.export.importing.checkpoint import Imported
from attendant.runtime.bundle.tokenizer import EOS_ID
from attendant.training.model import Seq2Seq


def assert_same(imported: Imported, source: str, target: str, theirs: Tensor) -> None:
    """Compares the distributions of every symbol of a target, and of the symbol after the last.

    Args:
        theirs: the toolkit's logits [T, V] of the unknown symbol, EOS and the ordinary symbols.
    """
    ours = _logits_of(imported, source, target)[:, [1, *range(3, theirs.shape[1] + 2)]]
    torch.testing.assert_close(torch.log_softmax(ours, -1), torch.log_softmax(theirs, -1), atol=1e-5, rtol=1e-5)


def _logits_of(imported: Imported, source: str, target: str) -> Tensor:
    """Returns the logits [T, V] of every symbol of a target, and of the symbol after the last."""
    tokenizers = imported.source_tokenizer, imported.target_tokenizer
    model = Seq2Seq(imported.config, *(tokenizer.vocabulary_size for tokenizer in tokenizers)).eval()
    model.load_state_dict(imported.tensors)
    source_ids, target_ids = (
        tokenizer.encode(text) for tokenizer, text in zip(tokenizers, (source, target), strict=True)
    )
    if imported.append_eos:
        source_ids.append(EOS_ID)
    previous_ids = torch.tensor([[model.start_id, *target_ids]])
    with torch.no_grad():
        logits: Tensor = model(torch.tensor([source_ids]), torch.tensor([len(source_ids)]), previous_ids)[0]
    return logits
