"""OpenNMT-py 3 (Klein et al. 2017): a checkpoint of a recurrent model."""

from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from torch import Tensor

from attendant.export.importing.checkpoint import (
    Imported,
    Settings,
    Vocabulary,
    Weights,
    checkpoint_file,
    read_torch,
    table_of,
)
from attendant.runtime.errors import UserError
from attendant.training.data.tokenization import tokenizer_of
from attendant.training.model import AttentionConfig, DecoderConfig, EncoderConfig, ModelConfig

SPECIAL: Final = ("<blank>", "<unk>", "<s>", "</s>")  # In our order (onmt/constants.py).
SCORES: Final = {"general": "general", "dot": "dot", "mlp": "additive", "none": "none"}
CELLS: Final[Mapping[str, Literal["lstm", "gru"]]] = {"LSTM": "lstm", "GRU": "gru"}
EMBEDDING = "{}.embeddings.make_embedding.emb_luts.0.weight"

LEAVES_TEXTS: Final = frozenset({"filtertoolong", "clean", "switchout", "tokendrop", "tokenmask", "bart"})
"""Transforms that leave a source unchanged in translation: they drop pairs, or add noise in training only."""


def read(path: Path, segmented: bool) -> Imported:
    """Reads a checkpoint; see checkpoint.Reader."""
    checkpoint = read_torch(checkpoint_file(path, "*.pt"), Namespace)
    namespace = checkpoint.get("opt")
    if not isinstance(namespace, Namespace):
        raise UserError(f"{path}: no checkpoint of this toolkit: it has no opt")
    options = Settings(path, vars(namespace))
    _refuse_transforms(options, segmented)
    vocabularies = table_of(path, checkpoint, "vocab")
    source, target = _vocabulary(path, vocabularies, "src"), _vocabulary(path, vocabularies, "tgt")
    tensors_by_name = {**table_of(path, checkpoint, "model")}
    tensors_by_name |= {f"generator.{name}": tensor for name, tensor in table_of(path, checkpoint, "generator").items()}
    start = Settings(path, vocabularies, "vocab.").one_of("decoder_start_token", {"<s>": "bos", "</s>": "eos"}, "<s>")
    _refuse_architectures(options)
    cell: Literal["lstm", "gru"] = options.one_of("rnn_type", CELLS, "LSTM")
    model, tensors = _model(options, Weights(path, tensors_by_name, cell), cell, source, target, start)
    return Imported(
        file=path,
        config=model,
        tensors=tensors,
        source_tokenizer=tokenizer_of("word", source.symbols),
        target_tokenizer=tokenizer_of("word", target.symbols),
        append_eos=False,
    )


def _refuse_transforms(options: Settings, segmented: bool) -> None:
    """Raises UserError, which names them, if transforms change a text before the model reads it.

    A checkpoint lists the transforms of all its corpora, and may list those of each corpus.
    """
    data = options.values.get("data")
    tables = [options.values, *(data.values() if isinstance(data, dict) else ())]
    fields = [
        table.get(name) for table in tables if isinstance(table, Mapping) for name in ("transforms", "_all_transform")
    ]
    names = {str(name) for field in fields if isinstance(field, list | tuple | set | frozenset) for name in field}
    names |= {field for field in fields if isinstance(field, str)}
    if (changing := sorted(names - LEAVES_TEXTS)) and not segmented:
        raise UserError(
            f"{options.path}: its transforms {', '.join(changing)} can't be imported: add --segmented and give "
            "texts as they leave them"
        )


def _vocabulary(path: Path, vocabularies: Mapping[str, Any], side: str) -> Vocabulary:
    symbols = vocabularies.get(side)
    if not (isinstance(symbols, list) and all(isinstance(symbol, str) for symbol in symbols)):
        raise UserError(f"{path}: its vocab.{side} is no list of symbols: convert the checkpoint to OpenNMT-py 3")
    # Sources get neither <s> nor </s>, which their vocabulary may lack.
    special = SPECIAL if side == "tgt" else (*SPECIAL[:2], *(name if name in symbols else None for name in SPECIAL[2:]))
    return Vocabulary(path, symbols, special)


def _refuse_architectures(options: Settings) -> None:
    """Raises UserError, which names the option, if the model has a part that our models can't have."""
    options.one_of("model_task", {"seq2seq": None}, "seq2seq")
    options.one_of("decoder_type", {"rnn": None}, "rnn")
    options.one_of("global_attention_function", {"softmax": None}, "softmax")
    options.one_of("generator_function", {"softmax": None}, "softmax")
    for name in ("position_encoding", "copy_attn", "coverage_attn", "bridge", "context_gate", "n_src_feats"):
        options.only(name, False)


def _model(
    options: Settings,
    weights: Weights,
    cell: Literal["lstm", "gru"],
    source: Vocabulary,
    target: Vocabulary,
    start: str,
) -> tuple[ModelConfig, dict[str, Tensor]]:
    bidirectional = options.one_of("encoder_type", {"rnn": False, "brnn": True}, "rnn")
    score = options.one_of("global_attention", SCORES, "general")
    feeds_input = options.value("input_feed", True)
    if feeds_input and score == "none":
        raise UserError(f"{options.path}: input_feed = 1 can't be imported with global_attention = 'none'")
    num_layers = tuple(_of_side(options, ("layers",), f"{side}_layers", 2) for side in ("enc", "dec"))
    encoder_size, hidden_size = (
        _of_side(options, ("hidden_size", "rnn_size"), f"{side}_hid_size", 500) for side in ("enc", "dec")
    )
    direction_size = encoder_size // (2 if bidirectional else 1)
    tensors = {
        "source_embedding.weight": source.rows(weights.take(EMBEDDING.format("encoder"))),
        "target_embedding.weight": target.rows(weights.take(EMBEDDING.format("decoder"))),
        "output.weight": target.rows(weights.take("generator.weight")),
        "output.bias": target.rows(weights.take("generator.bias")),
        **weights.encoder(
            "encoder.rnn", num_layers=num_layers[0], hidden_size=direction_size, bidirectional=bidirectional
        ),
        **weights.decoder(
            (
                f"decoder.rnn.layers.{layer}.{{}}" if feeds_input else f"decoder.rnn.{{}}_l{layer}"
                for layer in range(num_layers[1])
            ),
            hidden_size,
        ),
        **_attention(weights, score),
    }
    weights.refuse_others()
    model = ModelConfig(
        cell=cell,
        embedding_size=tensors["target_embedding.weight"].shape[1],
        hidden_size=hidden_size,
        residual=max(num_layers) <= 2,
        encoder=EncoderConfig(num_layers=num_layers[0], bidirectional=bidirectional, hidden_size=direction_size),
        attention=AttentionConfig(score=score),
        decoder=DecoderConfig(
            num_layers=num_layers[1],
            input_feeding=feeds_input,
            initial_state="final",
            readout="linear" if score == "additive" else "tanh",
            readout_bias=score == "additive",
            start_symbol=start,
        ),
    )
    return model, tensors


def _of_side(options: Settings, of_both: Sequence[str], name: str, default: int) -> int:
    """Returns an option of one side, or the option of both sides if that is set (onmt/utils/parse.py)."""
    for each in of_both:
        if (value := options.value(each, -1)) > 0:
            return value
    return options.value(name, default)


def _attention(weights: Weights, score: str) -> dict[str, Tensor]:
    """Returns the tensors of its GlobalAttention, which is our score and our readout."""
    if score == "none":
        return {}
    tensors = {"decoder.readout.project.weight": weights.take("decoder.attn.linear_out.weight")}
    ours = "decoder.attention.score"
    if score == "general":
        # s . W h, where it has W s . h.
        tensors[f"{ours}.project_keys.weight"] = weights.take("decoder.attn.linear_in.weight").T.contiguous()
    if score == "additive":
        tensors[f"{ours}.project_keys.weight"] = weights.take("decoder.attn.linear_context.weight")
        tensors[f"{ours}.project_keys.bias"] = weights.take("decoder.attn.linear_query.bias")
        tensors[f"{ours}.project_query.weight"] = weights.take("decoder.attn.linear_query.weight")
        tensors[f"{ours}.weight"] = weights.take("decoder.attn.v.weight")[0]
        tensors["decoder.readout.project.bias"] = weights.take("decoder.attn.linear_out.bias")
    return tensors
