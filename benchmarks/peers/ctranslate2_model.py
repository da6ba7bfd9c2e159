"""Makes a Transformer for CTranslate2: python -m benchmarks.peers.ctranslate2_model FOLDER ENCODER DECODER WIDTH
FEED_FORWARD VOCABULARY, in its own environment. Seeded random weights, int8; prints the number of parameters.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from ctranslate2.specs import TransformerSpec

from benchmarks.decoding.job import NUM_SPECIAL_SYMBOLS, word_of

SPECIAL_TOKENS = ["<pad>", "<unk>", "<s>", "</s>"]
NUM_HEADS = 8
SCALE = 0.05


def main(
    folder: str, num_encoder_layers: int, num_decoder_layers: int, width: int, feed_forward: int, vocabulary: int
) -> None:
    spec = TransformerSpec.from_config((num_encoder_layers, num_decoder_layers), NUM_HEADS)
    random = np.random.default_rng(1)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return random.normal(0, SCALE, (rows, columns)).astype(np.float32)

    def linear(layer: Any, rows: int, columns: int) -> None:
        layer.weight, layer.bias = matrix(rows, columns), np.zeros(rows, np.float32)

    def norm(layer: Any) -> None:
        layer.gamma, layer.beta = np.ones(width, np.float32), np.zeros(width, np.float32)

    def attention(layer: Any, *, own: bool) -> None:
        norm(layer.layer_norm)
        # Self-attention projects queries, keys and values at once; attention to the source has queries apart.
        for number, factor in enumerate((3, 1) if own else (1, 2, 1)):
            linear(layer.linear[number], factor * width, width)

    def layer(one: Any, *, decoder: bool) -> None:
        attention(one.self_attention, own=True)
        if decoder:
            attention(one.attention, own=False)
        norm(one.ffn.layer_norm)
        linear(one.ffn.linear_0, feed_forward, width)
        linear(one.ffn.linear_1, width, feed_forward)

    for side, decoder in ((spec.encoder, False), (spec.decoder, True)):
        embeddings = side.embeddings if decoder else side.embeddings[0]
        embeddings.weight = matrix(vocabulary, width)
        side.scale_embeddings = True
        side.position_encodings.encodings = matrix(512, width)
        norm(side.layer_norm)
        for one in side.layer:
            layer(one, decoder=decoder)
    linear(spec.decoder.projection, vocabulary, width)
    num_parameters = sum(value.size for name, value in spec.variables().items() if name.endswith(("weight", "bias")))
    words = [*SPECIAL_TOKENS, *(word_of(number) for number in range(NUM_SPECIAL_SYMBOLS, vocabulary))]
    spec.register_source_vocabulary(words)
    spec.register_target_vocabulary(words)
    spec.validate()
    spec.optimize(quantization="int8")
    spec.save(folder)
    print(num_parameters)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
