"""g2p_en (Park and Kim 2019): pronunciations of English words, by one GRU on each side and without attention.

Its checkpoint is `checkpoint20.npz` in the package's folder. The package's code has the symbols.
"""

import string
from pathlib import Path

from tokenizers import normalizers

from attendant.export.importing.checkpoint import Imported, Vocabulary, Weights, checkpoint_file, read_arrays
from attendant.runtime.bundle.tokenizer import SPECIAL_TOKENS
from attendant.runtime.errors import UserError
from attendant.training.data.tokenization import tokenizer_of
from attendant.training.model import AttentionConfig, DecoderConfig, EncoderConfig, ModelConfig

VOWELS = ("AA", "AE", "AH", "AO", "AW", "AY", "EH", "ER", "EY", "IH", "IY", "OW", "OY", "UH", "UW")
STOPS_AND_FRICATIVES = ("B", "CH", "D", "DH", "F", "G", "HH", "JH", "K", "P", "S", "SH", "T", "TH", "V", "Z", "ZH")
SONORANTS = ("L", "M", "N", "NG", "R", "W", "Y")

LETTERS = ("<pad>", "<unk>", "</s>", *string.ascii_lowercase)
# Each vowel has a stress; UW occurs without, too.
SOUNDS = (
    *SPECIAL_TOKENS,
    *sorted([f"{vowel}{stress}" for vowel in VOWELS for stress in "012"] + [*STOPS_AND_FRICATIVES, *SONORANTS, "UW"]),
)

MAX_LETTERS = 64
MAX_SOUNDS = 20  # Limit of a word's sounds: `G2p.predict` takes no more steps.


def read(path: Path, segmented: bool) -> Imported:
    """Reads a checkpoint; see checkpoint.Reader."""
    if segmented:
        raise UserError("--segmented is for subwords, and the symbols of g2p_en are letters: leave it out")
    weights = Weights(path, read_arrays(checkpoint_file(path, "*.npz")), "gru")
    letters = Vocabulary(path, LETTERS, ("<pad>", "<unk>", None, "</s>"))
    sounds = Vocabulary(path, SOUNDS, SPECIAL_TOKENS)
    tensors = {
        "source_embedding.weight": letters.rows(weights.take("enc_emb")),
        "target_embedding.weight": sounds.rows(weights.take("dec_emb")),
        "output.weight": sounds.rows(weights.take("fc_w")),
        "output.bias": sounds.rows(weights.take("fc_b")),
    }
    names = {"weight_ih": "w_ih", "weight_hh": "w_hh", "bias_ih": "b_ih", "bias_hh": "b_hh"}
    for ours, side in (("encoder.layers.0.forward_rnn", "enc"), ("decoder.cells.0.rnn", "dec")):
        tensors |= {f"{ours}.{part}_l0": weights.take(f"{side}_{theirs}") for part, theirs in names.items()}
    weights.refuse_others()
    return Imported(
        file=path,
        config=ModelConfig(
            cell="gru",
            embedding_size=tensors["target_embedding.weight"].shape[1],
            hidden_size=tensors["output.weight"].shape[1],
            encoder=EncoderConfig(bidirectional=False),
            attention=AttentionConfig(score="none"),
            decoder=DecoderConfig(initial_state="final"),
        ),
        tensors=tensors,
        # `G2p` prepares texts like this.
        source_tokenizer=tokenizer_of(
            "character", letters.symbols, [normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase()]
        ),
        target_tokenizer=tokenizer_of("word", sounds.symbols),
        append_eos=True,
        max_source_tokens=MAX_LETTERS,
        max_target_tokens=MAX_SOUNDS,
    )
