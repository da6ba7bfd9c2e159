"""fairseq (Ott et al. 2019): a checkpoint of its `lstm` architectures, with the dictionaries in the same folder.

Its decoder always has input feeding; its attention is Luong's general score with a tanh readout.
"""

from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
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
from attendant.runtime.errors import UserError
from attendant.runtime.files import read_text
from attendant.training.data.tokenization import tokenizer_of
from attendant.training.model import AttentionConfig, DecoderConfig, EncoderConfig, ModelConfig

FIRST_SYMBOLS: Final = ("<s>", "<pad>", "</s>", "<unk>")
"""Every dictionary begins with these symbols; its file has only the others (fairseq/data/dictionary.py)."""

SPECIAL: Final = ("<pad>", "<unk>", "<s>", "</s>")  # In our order.
DEFAULTS: Final = DecodingDefaults(beam_size=5, length_penalty=1.0, length_penalty_offset=0.0)
"""Those of fairseq-generate: a score is the log-probability divided by the number of symbols, EOS included."""


def read(path: Path, segmented: bool) -> Imported:
    """Reads a checkpoint, or the best one in a folder; see checkpoint.Reader."""
    file = checkpoint_file(path, "*.pt", best="checkpoint_best.pt")
    checkpoint = read_torch(file, Namespace)
    settings = _settings(file, checkpoint)
    source, target = (_vocabulary(settings, f"{side}_lang", segmented) for side in ("source", "target"))
    model, tensors = _model(settings, table_of(file, checkpoint, "model"), source, target)
    limits = (min(settings.value(f"max_{side}_positions", MAX_TOKENS), MAX_TOKENS) for side in ("source", "target"))
    max_source_tokens, max_target_tokens = limits
    return Imported(
        file=file,
        config=model,
        tensors=tensors,
        source_tokenizer=tokenizer_of("word", source.symbols),
        target_tokenizer=tokenizer_of("word", target.symbols),
        append_eos=True,
        max_source_tokens=max_source_tokens,
        max_target_tokens=max_target_tokens,
        decoding=DEFAULTS,
    )


def _settings(path: Path, checkpoint: Mapping[str, Any]) -> Settings:
    """Returns the model's and the task's settings; a checkpoint may be older than fairseq 0.10."""
    tables: list[Any] = [checkpoint.get("args")]
    if isinstance(cfg := checkpoint.get("cfg"), Mapping):
        tables += [cfg.get("task"), cfg.get("model")]
    values: dict[str, Any] = {}
    for table in tables:
        values |= vars(table) if isinstance(table, Namespace) else table if isinstance(table, Mapping) else {}
    if not values:
        raise UserError(f"{path}: no checkpoint of this toolkit: it has neither args nor cfg")
    settings = Settings(path, values)
    arch = settings.value("arch", "") or settings.value("_name", "")
    if not arch.startswith("lstm") or arch.startswith("lstm_lm"):
        raise UserError(f"{path}: arch = {arch!r}: can't be imported, only 'lstm' and its variants can")
    return settings


def _vocabulary(settings: Settings, side: str, segmented: bool) -> Vocabulary:
    language = settings.value(side, "")
    path = settings.path.parent / f"dict.{language}.txt"
    remedy = ": copy the dictionaries from the folder of fairseq's data to the checkpoint's"
    symbols = []
    for number, line in enumerate(read_text(path, remedy=remedy).removesuffix("\n").split("\n"), 1):
        symbol, _, count = line.removesuffix(" #fairseq:overwrite").rpartition(" ")
        if not symbol or not count.isdigit():
            raise UserError(f"{path}: line {number} is no symbol with its count: {line!r}")
        symbols.append(symbol)
    subwords = [symbol for symbol in symbols if symbol.endswith("@@") or symbol.startswith("▁")]
    if subwords and not segmented:
        raise UserError(
            f"{path}: has subwords, such as {subwords[0]!r}, whose segmentation can't be imported: add --segmented and "
            "give texts as subwords"
        )
    return Vocabulary(path, [*FIRST_SYMBOLS, *symbols], SPECIAL)


def _model(
    settings: Settings, state: Mapping[str, Any], source: Vocabulary, target: Vocabulary
) -> tuple[ModelConfig, dict[str, Tensor]]:
    if str(settings.values.get("decoder_attention", "1")).lower() in ("0", "false"):
        raise UserError(f"{settings.name_of('decoder_attention')}: can't be imported, only with attention")
    settings.only("residuals", False)
    weights = Weights(settings.path, state, "lstm")
    bidirectional = settings.value("encoder_bidirectional", False)
    num_layers = settings.value("encoder_layers", 1)
    settings.one_of("decoder_layers", {num_layers: None}, 1)
    encoder_size = settings.value("encoder_hidden_size", settings.value("encoder_embed_dim", 512))
    hidden_size = settings.value("decoder_hidden_size", settings.value("decoder_embed_dim", 512))
    projected = encoder_size * (2 if bidirectional else 1) != hidden_size
    embedding = weights.take("decoder.embed_tokens.weight")
    tensors = {
        "source_embedding.weight": source.rows(weights.take("encoder.embed_tokens.weight")),
        "target_embedding.weight": target.rows(embedding),
        # h . W s, where ours is s . W' h.
        "decoder.attention.score.project_keys.weight": weights.take(
            "decoder.attention.input_proj.weight"
        ).T.contiguous(),
        "decoder.readout.project.weight": weights.take("decoder.attention.output_proj.weight"),
        **weights.encoder("encoder.lstm", num_layers=num_layers, hidden_size=encoder_size, bidirectional=bidirectional),
        **weights.decoder((f"decoder.layers.{layer}.{{}}" for layer in range(num_layers)), hidden_size),
    }
    for place, part in enumerate(("hidden", "cell") if projected else ()):
        for kind in ("weight", "bias"):
            tensors[f"bridge.layers.{place}.{kind}"] = weights.take(f"decoder.encoder_{part}_proj.{kind}")
    output = _output(weights, state, embedding)
    tensors |= {f"output.{kind}": target.rows(tensor) for kind, tensor in output.items()}
    weights.refuse_others()
    model = ModelConfig(
        cell="lstm",
        embedding_size=embedding.shape[1],
        hidden_size=hidden_size,
        residual=num_layers <= 2,
        encoder=EncoderConfig(num_layers=num_layers, bidirectional=bidirectional, hidden_size=encoder_size),
        attention=AttentionConfig(score="general"),
        decoder=DecoderConfig(
            num_layers=num_layers,
            input_feeding=True,
            initial_state="projected" if projected else "final",
            readout="tanh",
            start_symbol="eos",
        ),
    )
    return model, tensors


def _output(weights: Weights, state: Mapping[str, Any], embedding: Tensor) -> dict[str, Tensor]:
    """Returns weights [V, H] and biases [V] of the output layer; two layers are multiplied into one."""
    if "decoder.fc_out.weight" in state:
        weight, bias = weights.take("decoder.fc_out.weight"), weights.take("decoder.fc_out.bias")
    else:
        weight, bias = embedding, torch.zeros(len(embedding))
    if "decoder.additional_fc.weight" in state:
        before = weights.take("decoder.additional_fc.weight")
        bias = bias + weight @ weights.take("decoder.additional_fc.bias")
        weight = weight @ before
    return {"weight": weight, "bias": bias}
