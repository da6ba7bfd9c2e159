"""OpenNMT-py 3 (Klein et al. 2017): a checkpoint of a recurrent model."""

from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from torch import Tensor

from attendant.export.importing.imported import Imported
from attendant.export.importing.settings import Settings
from attendant.export.importing.vocabulary import Vocabulary
from attendant.export.importing.weights import Weights, read_torch, table_of
from attendant.runtime.errors import UserError
from attendant.training.data.tokenization import tokenizer_of
from attendant.training.model import AttentionConfig, DecoderConfig, EncoderConfig, ModelConfig

SPECIAL: Final = ("<blank>", "<unk>", "<s>", "</s>")
"""By our order (onmt/constants.py)."""

SCORES: Final = {"general": "general", "dot": "dot", "mlp": "additive", "none": "none"}
EMBEDDING = "{}.embeddings.make_embedding.emb_luts.0.weight"

CHANGES_TEXTS: Final = frozenset(
    {
        "sentencepiece",
        "bpe",
        "onmt_tokenize",
        "uppercase",
        "inlinetags",
        "normalize",
        "docify",
        "fuzzymatch",
        "terminology",
    }
)
"""Its transforms that a text goes through before it is split at blanks, in translation too."""


def read(path: Path, segmented: bool) -> Imported:
    """As imported.Reader."""
    checkpoint = read_torch(path, Namespace)
    options = checkpoint.get("opt")
    if not isinstance(options, Namespace):
        raise UserError(f"{path}: no checkpoint of this toolkit: it has no opt")
    said = Settings(path, vars(options))
    transforms = CHANGES_TEXTS.intersection(said.value("transforms", list[Any]()))
    if transforms and not segmented:
        raise UserError(
            f"{path}: its transforms {', '.join(sorted(transforms))} can't be imported: add --segmented and give "
            "texts as they leave them"
        )
    vocabularies = table_of(path, checkpoint, "vocab")
    source, target = _vocabulary(path, vocabularies, "src"), _vocabulary(path, vocabularies, "tgt")
    weights = {**table_of(path, checkpoint, "model")}
    weights |= {f"generator.{name}": tensor for name, tensor in table_of(path, checkpoint, "generator").items()}
    start = Settings(path, vocabularies, "vocab.").one_of("decoder_start_token", {"<s>": "bos", "</s>": "eos"}, "<s>")
    model, tensors = _model(said, Weights(path, weights), source, target, start)
    return Imported(
        file=path,
        config=model,
        tensors=tensors,
        source_tokenizer=tokenizer_of("word", source.symbols),
        target_tokenizer=tokenizer_of("word", target.symbols),
        append_eos=False,
    )


def _vocabulary(path: Path, vocabularies: Mapping[str, Any], side: str) -> Vocabulary:
    symbols = vocabularies.get(side)
    if not (isinstance(symbols, list) and all(isinstance(one, str) for one in symbols)):
        raise UserError(f"{path}: its vocab.{side} is no list of symbols: convert the checkpoint to OpenNMT-py 3")
    return Vocabulary(path, symbols, SPECIAL)


def _model(
    said: Settings, weights: Weights, source: Vocabulary, target: Vocabulary, start: str
) -> tuple[ModelConfig, dict[str, Tensor]]:
    said.one_of("model_task", {"seq2seq": None}, "seq2seq")
    said.one_of("decoder_type", {"rnn": None}, "rnn")
    said.one_of("global_attention_function", {"softmax": None}, "softmax")
    said.one_of("generator_function", {"softmax": None}, "softmax")
    said.only("position_encoding", False)
    bidirectional = said.one_of("encoder_type", {"rnn": False, "brnn": True}, "rnn")
    score = said.one_of("global_attention", SCORES, "general")
    feeds_input = bool(said.value("input_feed", 1))
    if feeds_input and score == "none":
        raise UserError(f"{said.path}: input_feed = 1 can't be imported with global_attention = 'none'")
    num_layers = said.value("enc_layers", 2), said.value("dec_layers", 2)
    hidden_size = said.value("dec_hid_size", 500)
    tensors = {
        "source_embedding.weight": source.rows(weights.take(EMBEDDING.format("encoder"))),
        "target_embedding.weight": target.rows(weights.take(EMBEDDING.format("decoder"))),
        "output.weight": target.rows(weights.take("generator.weight")),
        "output.bias": target.rows(weights.take("generator.bias")),
        **weights.encoder("encoder.rnn", num_layers=num_layers[0], bidirectional=bidirectional),
        **weights.decoder(
            f"decoder.rnn.layers.{layer}.{{}}" if feeds_input else f"decoder.rnn.{{}}_l{layer}"
            for layer in range(num_layers[1])
        ),
        **_attention(weights, score),
    }
    weights.refuse_others()
    model = ModelConfig(
        cell=said.one_of("rnn_type", {"LSTM": "lstm", "GRU": "gru"}, "LSTM"),
        embedding_size=tensors["target_embedding.weight"].shape[1],
        hidden_size=hidden_size,
        residual=max(num_layers) <= 2,
        encoder=EncoderConfig(
            num_layers=num_layers[0],
            bidirectional=bidirectional,
            hidden_size=said.value("enc_hid_size", 500) // (2 if bidirectional else 1),
        ),
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


def _attention(weights: Weights, score: str) -> dict[str, Tensor]:
    """Its GlobalAttention, which is our score and our readout."""
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
