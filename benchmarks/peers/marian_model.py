"""Makes an LSTM for Marian: python -m benchmarks.peers.marian_model FOLDER VOCABULARY EMBEDDING LAYERS PARAMETERS,
in the environment of `bergamot`. Seeded random weights; prints the number of parameters and the width.

In Marian's `s2s` each direction of the encoder is as wide as the decoder, and a second cell follows the attention. It
is made as wide as it can be with no more than the parameters given: those of the model beside it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece

from benchmarks.decoding.job import NUM_SPECIAL_SYMBOLS, word_of
from benchmarks.peers.marian_shapes import BLOCK, narrowed, num_parameters, shapes_of

MODEL, VOCABULARY = "model.npz", "vocabulary.spm"
EOS_ID, UNK_ID = 0, 1
EOS_BIAS = -50.0
SCALE = 0.05
PEAKEDNESS = 40.0


def main(folder: str, vocabulary: int, embedding: int, num_layers: int, most: int) -> None:
    embedding = -(-embedding // BLOCK) * BLOCK
    width = narrowed(vocabulary, embedding, num_layers, most)
    shapes = shapes_of(vocabulary, embedding, width, num_layers)
    random = np.random.default_rng(1)
    arrays: dict[str, Any] = {
        name: np.zeros(shape, np.float32) if shape[0] == 1 else random.normal(0, SCALE, shape).astype(np.float32)
        for name, shape in shapes.items()
    }
    arrays["decoder_ff_logit_l2_Wt"] *= PEAKEDNESS
    arrays["decoder_ff_logit_l2_b"][0, EOS_ID] = EOS_BIAS
    settings = {
        "type": "s2s",
        "dim-vocabs": [vocabulary, vocabulary],
        "dim-emb": embedding,
        "dim-rnn": width,
        "enc-type": "bidirectional",
        "enc-cell": "lstm",
        "enc-cell-depth": 1,
        "enc-depth": num_layers,
        "dec-cell": "lstm",
        "dec-cell-base-depth": 2,
        "dec-cell-high-depth": 1,
        "dec-depth": num_layers,
        "skip": False,
        "layer-normalization": False,
        "tied-embeddings": False,
        "tied-embeddings-src": False,
        "tied-embeddings-all": False,
        "input-types": ["sequence"],
        "version": "v1.9.0",
    }
    text = "".join(f"{name}: {str(value).lower()}\n" for name, value in settings.items())
    # It ends with a zero, as C++ wants it.
    arrays["special:model.yml"] = np.frombuffer(text.encode() + b"\0", np.int8)
    np.savez(Path(folder) / MODEL, **arrays)
    write_vocabulary(Path(folder) / VOCABULARY, vocabulary)
    print(num_parameters(shapes), width)


def write_vocabulary(path: Path, size: int) -> None:
    """One piece per word of the benchmarks' sentences, and as many more as the size asks for."""
    first = NUM_SPECIAL_SYMBOLS - 2  # Marian knows two special symbols
    with path.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(word_of(number) for number in range(first, size)),
            model_writer=file,
            model_type="word",
            vocab_size=size,
            bos_id=-1,
            pad_id=-1,
            eos_id=EOS_ID,
            unk_id=UNK_ID,
            minloglevel=2,
        )


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
