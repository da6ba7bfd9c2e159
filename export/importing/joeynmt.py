"""Reads recurrent models of JoeyNMT 2 (Kreutzer et al. 2019): config.yaml, its vocabularies, and the weights."""

import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch
import yaml
from tokenizers import Regex, normalizers
from torch import Tensor

from attendant.export.importing.checkpoint import (
    MAX_TOKENS,
    Imported,
    Settings,
    Vocabulary,
    Weights,
    checkpoint_file,
    read_torch,
    table_of,
)
from attendant.runtime.bundle.manifest import DecodingDefaults
from attendant.runtime.bundle.tokenizer import Tokenizer
from attendant.runtime.errors import UserError
from attendant.runtime.files import read_text
from attendant.training.data.tokenization import tokenizer_of
from attendant.training.model import AttentionConfig, DecoderConfig, EncoderConfig, ModelConfig

logger = logging.getLogger(__name__)

SPECIAL: Final = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
"""In our order, with their default names."""

BLANK = "▁"  # The symbol of a blank in vocabularies of characters.
MAX_LENGTH_RATIO = 1.5
"""Target symbols per source symbol, if `testing.max_output_length` is not set (joeynmt/search.py)."""


def read(path: Path, segmented: bool) -> Imported:
    """Reads a checkpoint, or the best one in a model folder; see checkpoint.Reader."""
    if not path.exists():
        raise UserError(f"{path}: there is no such model folder or checkpoint")
    file = checkpoint_file(path, "*.ckpt", best="best.ckpt")
    config = _configuration(file.parent / "config.yaml")
    data = config.table("data")
    _refuse_version_1(data, config.table("testing"))
    special = data.table("special_symbols")
    special.only("sep_token", None)
    special.only("lang_tags", None)
    names = [special.value(name, default) for name, default in SPECIAL.items()]
    source = _vocabulary(file.parent / "src_vocab.txt", names)
    target = _vocabulary(file.parent / "trg_vocab.txt", names)
    model, tensors = _model(config.table("model"), file, source, target)
    testing = config.table("testing")
    _warn_of_defaults(testing)
    max_target_tokens = testing.value("max_output_length", -1)
    return Imported(
        file=file,
        config=model,
        tensors=tensors,
        source_tokenizer=_tokenizer(data.table("src"), source.symbols, segmented),
        target_tokenizer=_tokenizer(data.table("trg"), target.symbols, segmented),
        append_eos=True,
        max_source_tokens=_limit(data.table("src").value("max_length", -1)),
        max_target_tokens=_limit(max_target_tokens),
        decoding=DecodingDefaults(
            beam_size=max(1, testing.value("beam_size", 1)),
            length_penalty=max(0.0, testing.value("beam_alpha", testing.value("alpha", -1.0))),
            max_length_ratio=None if max_target_tokens > 0 else MAX_LENGTH_RATIO,
        ),
    )


def _warn_of_defaults(testing: Settings) -> None:
    """Warns of settings that change answers, and that can't be a bundle's defaults."""
    changes = {
        "generate_unk": (not testing.value("generate_unk", True), "suppress_unk"),
        "min_output_length": (testing.value("min_output_length", 1) > 1, "min_length"),
        "no_repeat_ngram_size": (testing.value("no_repeat_ngram_size", -1) > 0, "no_repeat_ngram_size"),
        "repetition_penalty": (testing.value("repetition_penalty", -1.0) > 1, "repetition_penalty"),
    }
    for name, (is_changed, option) in changes.items():
        if is_changed:
            logger.warning("%s is no default of the bundle: set %s in requests", testing.name_of(name), option)


def _limit(setting: int) -> int:
    return setting if setting > 0 else MAX_TOKENS


def _refuse_version_1(data: Settings, testing: Settings) -> None:
    """Raises UserError, with the lines of version 2, if a configuration is of version 1.

    Version 1 has one set of settings for both sides, and their languages where version 2 has a table for each.
    """
    if not any(isinstance(data.values.get(side), str) for side in ("src", "trg")) and "level" not in data.values:
        return
    same = {"level": "level", "lowercase": "lowercase", "max_sent_length": "max_length"}
    both = {ours: data.values[theirs] for theirs, ours in same.items() if theirs in data.values}
    sides = {side: {"lang": data.values.get(side), **both} for side in ("src", "trg")}
    lines = yaml.safe_dump({"data": sides}, default_flow_style=True, sort_keys=False, width=math.inf).strip()
    alpha = ", and testing.alpha is testing.beam_alpha" if "alpha" in testing.values else ""
    raise UserError(
        f"{data.path}: is of version 1 of JoeyNMT, whose models version 2 computes too: write its data as version 2 "
        f"does, {lines}{alpha}"
    )


def _configuration(path: Path) -> Settings:
    try:
        content = yaml.safe_load(read_text(path))
    except (yaml.YAMLError, ValueError) as error:  # a date that is none raises ValueError
        raise UserError(f"{path}: can't be read: {' '.join(str(error).split())}") from None
    return Settings(path, content if isinstance(content, dict) else {})


def _vocabulary(path: Path, special: Sequence[str]) -> Vocabulary:
    return Vocabulary(path, read_text(path).removesuffix("\n").split("\n"), special)


def _tokenizer(side: Settings, symbols: Sequence[str], segmented: bool) -> Tokenizer:
    """Returns the tokenizer of one side, from `data.src` or `data.trg`."""
    if segmented:
        return tokenizer_of("word", symbols)
    if side.values.get("level") == "bpe":
        raise UserError(
            f'{side.path}: {side.prefix}level = "bpe" can\'t be imported: add --segmented and give texts as subwords'
        )
    kind = side.one_of("level", {"word": "word", "char": "character"}, "word")
    tokenizer_settings = side.table("tokenizer_cfg")
    tokenizer_settings.one_of("pretokenizer", {"none": None}, "none")
    steps = _NORMALIZATION if side.value("normalize", False) else []
    steps = [*steps, normalizers.Lowercase()] if side.value("lowercase", False) else steps
    if kind == "word":
        return tokenizer_of("word", symbols, steps)
    return tokenizer_of("character", [" " if symbol == BLANK else symbol for symbol in symbols], steps)


_NORMALIZATION: Final[Sequence[normalizers.Normalizer]] = [
    normalizers.NFKC(),
    *(normalizers.Replace(*pair) for pair in (("’", "'"), ("“", '"'), ("”", '"'), ("\u200b", ""))),
    normalizers.Replace(Regex("[ \u3000]+"), " "),
    *(normalizers.Replace(f" {mark}", mark) for mark in "?!,.:"),
    normalizers.Strip(),
]
"""joeynmt/helpers.py: unicode_normalize and remove_extra_spaces."""


def _model(
    config: Settings, file: Path, source: Vocabulary, target: Vocabulary
) -> tuple[ModelConfig, dict[str, Tensor]]:
    encoder, decoder = config.table("encoder"), config.table("decoder")
    encoder.one_of("type", {"recurrent": None}, "recurrent")
    decoder.one_of("type", {"recurrent": None}, "transformer")
    encoder.one_of("bidirectional", {True: None}, True)
    cells = {"lstm": "lstm", "gru": "gru"}
    cell = decoder.one_of("rnn_type", cells, "gru")
    encoder.one_of("rnn_type", {cell: None}, "gru")
    decoder.one_of("activation", {"tanh": None}, "tanh")
    weights = Weights(file, table_of(file, read_torch(file), "model_state"), cell)
    num_layers = encoder.value("num_layers", 1), decoder.value("num_layers", 1)
    first_state = decoder.one_of("init_hidden", {"bridge": "top", "zero": "zeros", "zeros": "zeros"}, "bridge")
    score = decoder.one_of("attention", {"bahdanau": "concat", "luong": "general"}, "bahdanau")
    embeds_target = encoder if config.value("tied_embeddings", False) else decoder
    tensors = {
        "source_embedding.weight": source.rows(_embedding(encoder, weights, "src_embed")),
        "target_embedding.weight": target.rows(_embedding(embeds_target, weights, "trg_embed")),
        "output.weight": target.rows(weights.take("decoder.output_layer.weight")),
        "decoder.attention.score.project_keys.weight": weights.take("decoder.attention.key_layer.weight"),
        "decoder.readout.project.bias": weights.take("decoder.att_vector_layer.bias"),
    }
    tensors["output.bias"] = torch.zeros(len(tensors["output.weight"]))
    hidden_size = tensors["decoder.readout.project.bias"].shape[0]
    # JoeyNMT's readout takes the state before the context.
    of_state, of_context = weights.take("decoder.att_vector_layer.weight").tensor_split([hidden_size], 1)
    tensors["decoder.readout.project.weight"] = torch.cat([of_context, of_state], 1)
    if score == "concat":
        tensors["decoder.attention.score.project_query.weight"] = weights.take("decoder.attention.query_layer.weight")
        tensors["decoder.attention.score.weight"] = weights.take("decoder.attention.energy_layer.weight")[0]
    if first_state == "top":
        for part in ("weight", "bias"):
            tensors[f"bridge.layers.0.{part}"] = weights.take(f"decoder.bridge_layer.{part}")
    encoder_size = encoder.value("hidden_size", 1)
    tensors |= weights.encoder("encoder.rnn", num_layers=num_layers[0], hidden_size=encoder_size, bidirectional=True)
    names = (f"decoder.rnn.{{}}_l{layer}" for layer in range(num_layers[1]))
    tensors |= weights.decoder(names, decoder.value("hidden_size", hidden_size))
    weights.refuse_others()
    model = ModelConfig(
        cell=cell,
        embedding_size=tensors["target_embedding.weight"].shape[1],
        hidden_size=hidden_size,
        residual=max(num_layers) <= 2,
        encoder=EncoderConfig(num_layers=num_layers[0], hidden_size=encoder_size),
        attention=AttentionConfig(score=score),
        decoder=DecoderConfig(
            num_layers=num_layers[1],
            input_feeding=decoder.value("input_feeding", True),
            initial_state=first_state,
            readout="tanh",
            readout_bias=True,
        ),
    )
    return model, tensors


def _embedding(side: Settings, weights: Weights, name: str) -> Tensor:
    tensor = weights.take(f"{name}.lut.weight")
    return tensor * math.sqrt(tensor.shape[1]) if side.table("embeddings").value("scale", False) else tensor
