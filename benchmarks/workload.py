"""The work that every toolkit does: one architecture, one size, one shape of batch."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """A translation model of the kind of Luong et al. 2015, and its batches.

    Attributes:
        vocabulary_size, embedding_size: of each side, the four special symbols included.
        hidden_size: of the decoder and of both encoder directions together.
        num_layers: of the encoder and of the decoder.
        dropout: where each toolkit applies it in training.
        batch_sentences: of a training batch.
        num_tokens: source positions and target positions of a sentence, the target's end symbol included.
        num_batches: of an epoch of training.
        window_steps: training steps between two readings of the clock.
    """

    vocabulary_size: int = 8000
    embedding_size: int = 256
    hidden_size: int = 512
    num_layers: int = 2
    dropout: float = 0.2
    batch_sentences: int = 64
    num_tokens: int = 20
    num_batches: int = 300
    window_steps: int = 5

    @property
    def batch_tokens(self) -> int:
        """Target positions of a batch."""
        return self.batch_sentences * self.num_tokens


QUICK = Workload(
    vocabulary_size=200, embedding_size=16, hidden_size=32, batch_sentences=8, num_batches=40, window_steps=20
)
"""Too small to say anything of speed; shows within minutes that everything runs."""
