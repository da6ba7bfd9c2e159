"""Tiny bundles for tests: untrained weights, real graphs, written and verified by the real writer."""

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as LibraryTokenizer

from attendant.export.bundle_writer import write_bundle
from attendant.export.origins import ExportableModel
from attendant.export.tracing import traceable
from attendant.export.verification.probes import VerificationPlan
from attendant.runtime.bundle.manifest import DecodingDefaults, Evaluation, Limits, Provenance
from attendant.runtime.bundle.tokenizer import EOS_ID, SPECIAL_TOKENS, UNK_ID, Tokenizer
from attendant.training.model import AttentionConfig, DecoderConfig, EncoderConfig, ModelConfig, Seq2Seq

LETTERS = "abcdefghij"
SOUNDS = ("AA", "AE", "B", "D", "EH", "F", "G", "IY", "K", "L", "M", "N")

TINY_PLAN = VerificationPlan(
    batch_sizes=(1, 3, 8),
    source_lengths=(17, 1, 8, 5, 2),
    beam_sizes=(1, 3),
    num_steps=3,
    num_decoded=12,
    num_alone=3,
    max_length=12,
)

THOROUGH_PLAN = VerificationPlan(
    batch_sizes=(1, 2, 5, 64), num_steps=3, num_decoded=12, num_alone=4, beam_sizes=(1, 2, 4), max_length=16
)
"""The full plan with fewer batches and decodings: 64 sources of 1 to 80 symbols."""

KINDS: dict[str, dict[str, Any]] = {"lstm": {}} | {name: {"weight_bound": 0.5, **options} for name, options in {
    "luong": {"cell": "lstm", "attention_score": "general", "decoder_input_feeding": True, "encoder_num_layers": 2,
              "decoder_num_layers": 2},
    "tied": {"cell": "gru", "attention_score": "dot", "encoder_hidden_size": 8, "decoder_initial_state": "zeros",
             "decoder_tied_embeddings": True, "embedding_size": 16, "append_eos": False},
    "unequal sizes": {"cell": "rnn", "attention_score": "scaled_dot", "attention_key_size": 8,
                      "attention_value_size": 10, "attention_query": "previous", "decoder_readout": "addition"},
    "concat": {"cell": "rnn", "attention_score": "concat", "encoder_bidirectional": False,
               "encoder_reverse_source": True, "decoder_initial_state": "mean", "decoder_start_symbol": "eos"},
    "fixed vector": {"cell": "lstm", "attention_score": "none", "decoder_source_vector": True,
                     "decoder_readout": "concatenation", "encoder_bidirectional": False, "encoder_num_layers": 3,
                     "decoder_num_layers": 3, "residual": False, "decoder_initial_state": "final"},
    "see": {"cell": "lstm", "attention_score": "additive", "attention_coverage": True, "decoder_input_feeding": True,
            "decoder_copying": True, "shared_embeddings": True, "encoder_hidden_size": 8, "decoder_readout": "sum"},
    "bahdanau": {"cell": "gru", "attention_score": "additive", "attention_query": "previous",
                 "attention_coverage": True, "decoder_num_layers": 2, "decoder_readout": "maxout",
                 "decoder_initial_state": "backward"},
}.items()}  # fmt: skip
"""Models that compute their steps in different ways, the plain one first.

The others cover every value of every option, and the pairs that interact in the graphs: cell and direction, score and
query, depth and feeding, source ending and first state.
"""

TINY_SIZES: dict[str, Any] = {"embedding_size": 12, "hidden_size": 16}


def tiny_config(**options: Any) -> ModelConfig:
    """Returns the configuration of a small model with these options of `[model]`.

    Options of its tables have the table's name as a prefix: encoder_num_layers, attention_score, ...
    """
    tables: dict[str, dict[str, Any]] = {"encoder": {}, "attention": {}, "decoder": {}}
    plain: dict[str, Any] = dict(TINY_SIZES)
    for name, value in options.items():
        prefix, _, rest = name.partition("_")
        if prefix in tables:
            tables[prefix][rest] = value
        else:
            plain[name] = value
    return ModelConfig(
        **plain,
        encoder=EncoderConfig(**tables["encoder"]),
        attention=AttentionConfig(**tables["attention"]),
        decoder=DecoderConfig(**tables["decoder"]),
    )


def tiny_model(*, seed: int = 27, weight_bound: float = 1.5, **options: Any) -> Seq2Seq:
    """Returns a model with random weights, so large that its distributions are peaked and depend on the source.

    With the default options some hypotheses end with EOS early, some late, and some are cut.

    Args:
        weight_bound: weights are uniform up to this bound. With the default, deep or recurrent stacks are chaotic.
    """
    config = tiny_config(**options)
    targets = LETTERS if config.shared_embeddings else SOUNDS
    with torch.random.fork_rng():
        model = Seq2Seq(config, len(SPECIAL_TOKENS) + len(LETTERS), len(SPECIAL_TOKENS) + len(targets))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            bound = 2.4 if name.startswith("output.") else weight_bound
            # Seeded by name: the weights don't change when a module is defined in another order.
            own = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))
            parameter.uniform_(-bound, bound, generator=own)
        model.output.bias[EOS_ID] += 3.0
    return model.eval()


def letter_tokenizer(letters: Sequence[str] = LETTERS) -> Tokenizer:
    """Makes a tokenizer of lower-cased characters."""
    library = word_level(letters)
    library.normalizer = normalizers.Lowercase()
    library.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    library.decoder = decoders.Fuse()
    return Tokenizer(library)


def sound_tokenizer(sounds: Sequence[str] = SOUNDS) -> Tokenizer:
    """Makes a tokenizer of words, which are decoded with spaces between them."""
    library = word_level(sounds)
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return Tokenizer(library)


def word_level(symbols: Sequence[str]) -> LibraryTokenizer:
    """Makes a tokenizer of whole words, each of which is a symbol."""
    vocabulary = {symbol: number for number, symbol in enumerate([*SPECIAL_TOKENS, *symbols])}
    return LibraryTokenizer(models.WordLevel(vocabulary, unk_token=SPECIAL_TOKENS[UNK_ID]))


def tiny_exportable(
    model: Seq2Seq | None = None, *, name: str = "tiny", append_eos: bool = True, **options: Any
) -> ExportableModel:
    """Makes the input of `write_bundle` from `model`, or from a new model with these options."""
    source_tokenizer, model = letter_tokenizer(), model or tiny_model(**options)
    traced = traceable(model)
    words = ["abc", "jab", "face", "bead", "hid", "badge", "cage", "deaf", "ice", "ahead", "jig", "gag"]
    return ExportableModel(
        name=name,
        model=traced,
        architecture=traced.architecture,
        special_ids=traced.special_ids,
        source_tokenizer=source_tokenizer,
        target_tokenizer=source_tokenizer if model.config.shared_embeddings else sound_tokenizer(),
        append_eos=append_eos,
        limits=Limits(max_source_tokens=64, max_target_tokens=48, max_beam_size=8, max_num_hypotheses=8),
        decoding=DecodingDefaults(beam_size=1, length_penalty=0.6),
        provenance=Provenance(
            commit="", created="2026-01-01T00:00:00+00:00", versions={}, recipe={}, data_digest="", checkpoint="best"
        ),
        evaluation=(Evaluation(metric="wer", value=1.0, protocol="untrained", num_examples=1),),
        sources=[source_tokenizer.encode(word) for word in words],
    )


def tiny_bundle(
    path: Path, *, name: str = "tiny", append_eos: bool = True, all_precisions: bool = False, **options: Any
) -> Path:
    """Writes a tiny bundle at `path` (a few seconds: two graphs are traced and verified) and returns it.

    Args:
        all_precisions: writes all precisions, verified by `THOROUGH_PLAN`.
        options: the options of `tiny_model`.
    """
    exportable = tiny_exportable(name=name, append_eos=append_eos, **options)
    if all_precisions:
        write_bundle(exportable, path, precisions=("fp32", "int8", "fp16"), plan=THOROUGH_PLAN)
    else:
        write_bundle(exportable, path, plan=TINY_PLAN)
    return path
