"""Validation during training: the loss under teacher forcing, and a metric of decoded outputs."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from attendant.runtime.bundle.tokenizer import Tokenizer, special_ids
from attendant.runtime.decoding.options import DecodingOptions
from attendant.training.data.batches import all_batches, collate
from attendant.training.data.corpus import Corpus
from attendant.training.data.pairs import Example
from attendant.training.evaluation.decoding import Decoded, TextModel, decode_examples
from attendant.training.evaluation.metrics import take_statistics
from attendant.training.kernels.loss import smoothed_cross_entropy
from attendant.training.model import Seq2Seq
from attendant.training.model.stepping.stepper import TorchStepper, evaluating
from attendant.training.perplexity import perplexity
from attendant.training.recipe.recipe import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Validator:
    """Validates a model as it stands.

    Attributes:
        corpus: the pairs whose loss is taken.
        num_words: of their targets, as perplexity counts them.
        examples: what is decoded.
    """

    recipe: Recipe
    corpus: Corpus
    num_words: int
    examples: Sequence[Example]
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer

    @property
    def names(self) -> list[str]:
        """Of the values that `validate` returns, in their order."""
        return list(dict.fromkeys(("loss", "perplexity", "word_perplexity", self.recipe.validation.metric)))

    def validate(self, model: Seq2Seq, device: torch.device) -> dict[str, float]:
        """The loss (nats per target token, not smoothed), its perplexities and the configured metric, by name.

        Draws no random numbers: a training goes on as if it had not been looked at.
        """
        metric = self.recipe.validation.metric
        with evaluating(model):
            total, num_tokens = self._total_loss(model, device)
            decoded = [] if metric == "loss" else self._decoded(model, device)
        values = {
            "loss": total / num_tokens,
            "perplexity": perplexity(-total, num_tokens),
            "word_perplexity": perplexity(-total, self.num_words),
        }
        if metric != "loss":
            outputs, references = [one.text for one in decoded], [one.example.references for one in decoded]
            values[metric] = round(
                take_statistics(metric, outputs, references, self.recipe.evaluation.bleu_tokenizer).value, 4
            )
        return values

    def _total_loss(self, model: Seq2Seq, device: torch.device) -> tuple[float, int]:
        """The sum over all target tokens, and their number."""
        total, num_tokens = 0.0, 0
        for indices in all_batches(self.corpus, self.recipe.batches):
            batch = collate(self.corpus, indices, model.start_id).to(device)
            logits = model(batch.source_ids, batch.source_lengths, batch.previous_ids, batch.positions)
            total += smoothed_cross_entropy(logits, batch.target_ids, label_smoothing=0.0).item()
            num_tokens += batch.num_target_tokens
        return total, num_tokens

    def _decoded(self, model: Seq2Seq, device: torch.device) -> list[Decoded]:
        max_length = self.recipe.data.max_target_tokens
        text_model = TextModel(
            stepper=TorchStepper(model, device),
            source_tokenizer=self.source_tokenizer,
            target_tokenizer=self.target_tokenizer,
            special_ids=special_ids(model.start_id),
            append_eos=self.recipe.source.append_eos,
            max_length=max_length,
        )
        return decode_examples(text_model, self.examples, DecodingOptions(max_length=max_length))
