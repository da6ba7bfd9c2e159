"""The whole model: embeddings, encoder, bridge, decoder, output.

Shapes: B sources, R rows, S source positions, T target positions, M rows of one source, H decoder size,
P readout size, V target vocabulary, N wanted positions.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attendant.runtime.bundle.manifest import StateTensor
from attendant.runtime.bundle.tokenizer import BOS_ID, EOS_ID, PAD_ID
from attendant.training.kernels.mixture import Copies, mixed
from attendant.training.model.attention.copying import SYMBOLS
from attendant.training.model.bridge import Bridge
from attendant.training.model.config import ModelConfig
from attendant.training.model.decoder import Decoder, Forced
from attendant.training.model.dropout import Dropout
from attendant.training.model.encoder import Encoder
from attendant.training.model.initialization import initialize
from attendant.training.model.output import Output


@dataclass(frozen=True, slots=True)
class Encoded:
    """What decoding starts from.

    Attributes:
        row_tensors: name -> [B, ...], the first state of each source's single row.
        source_tensors: name -> [B, S, ...].
    """

    row_tensors: dict[str, Tensor]
    source_tensors: dict[str, Tensor]


class Seq2Seq(nn.Module):
    """A recurrent encoder-decoder with attention, by configuration. State goes in and comes out; none is kept.

    Attributes:
        config: the architecture.
        source_vocabulary_size, target_vocabulary_size: special symbols included.
        source_embedding: None where the target's serves both sides (shared).
        start_id: what the first step is fed.

    Raises:
        ValueError: shared embeddings, but not one vocabulary.
    """

    def __init__(self, config: ModelConfig, source_vocabulary_size: int, target_vocabulary_size: int) -> None:
        super().__init__()
        if config.shared_embeddings and source_vocabulary_size != target_vocabulary_size:
            raise ValueError(
                "model.shared_embeddings = true needs one vocabulary for both sides, got a source vocabulary of "
                f"{source_vocabulary_size} symbols and a target vocabulary of {target_vocabulary_size}: share the "
                "tokenizer or leave it out"
            )
        self.config = config
        self.source_vocabulary_size = source_vocabulary_size
        self.target_vocabulary_size = target_vocabulary_size
        self.start_id = EOS_ID if config.decoder.start_symbol == "eos" else BOS_ID
        self.target_embedding = nn.Embedding(target_vocabulary_size, config.embedding_size)
        self.source_embedding = None
        if not config.shared_embeddings:
            self.source_embedding = nn.Embedding(source_vocabulary_size, config.embedding_size, padding_idx=PAD_ID)
        self.encoder = Encoder(config)
        self.bridge = Bridge(config)
        self.decoder = Decoder(config)
        self.output = Output(config.readout_size, target_vocabulary_size, tied=config.decoder.tied_embeddings)
        self.dropout = Dropout(config.dropout)
        initialize(self, config.initialization)

    def forward(
        self, source_ids: Tensor, source_lengths: Tensor, previous_ids: Tensor, positions: Tensor | None = None
    ) -> Tensor:
        """Teacher forcing: logits of every next symbol given the true ones before it.

        Args:
            source_ids: [B, S] int64, padded.
            source_lengths: [B] int64, at least 1.
            previous_ids: [B, T] int64: the start symbol, then the target without its last symbol; padded.
            positions: [N] int64 indices into the flattened [B * T] of the positions wanted; None: all. Without
                padding the vocabulary-wide layer, which costs most, has less to do.

        Returns:
            logits [B, T, V], or [N, V] of the wanted positions.
        """
        forced = self.forced(source_ids, source_lengths, previous_ids, positions)
        logits: Tensor = self.output(forced.readouts, self.target_embedding.weight)
        if forced.copies is not None:
            logits = mixed(logits, forced.copies)
        return logits if positions is not None else logits.view(*previous_ids.shape, -1)

    def forced(
        self,
        source_ids: Tensor,
        source_lengths: Tensor,
        previous_ids: Tensor,
        positions: Tensor | None = None,
        *,
        keep_attention: bool = False,
    ) -> Forced:
        """`forward` up to the output layer, of N = B T positions where all are wanted: readouts [N, P].

        Args:
            source_ids, source_lengths, previous_ids, positions: as `forward` takes them.
            keep_attention: the attention's weights are returned too.
        """
        encoded = self.encode(source_ids, source_lengths)
        embedded = self.dropout(self.target_embedding(previous_ids))
        found: Forced = self.decoder(
            embedded, encoded.row_tensors, encoded.source_tensors, keep_attention=keep_attention
        )

        def wanted(values: Tensor) -> Tensor:
            flat = values.flatten(0, 1)
            return flat if positions is None else flat.index_select(0, positions)

        copies = None if found.copies is None else Copies(*map(wanted, found.copies))
        return Forced(self.dropout(wanted(found.readouts)), found.weights, copies)

    @property
    def embedding_of_sources(self) -> nn.Embedding:
        """The target's where one serves both sides."""
        return self.target_embedding if self.source_embedding is None else self.source_embedding

    @property
    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())

    def output_layer(self) -> tuple[Tensor, Tensor]:
        """The output layer's matrix [V, P] and bias [V], for a loss that takes their product itself."""
        return self.output.matrix_and_bias(self.target_embedding.weight)

    def encode(self, source_ids: Tensor, source_lengths: Tensor) -> Encoded:
        """Encodes source_ids [B, S] of lengths [B]: what `step` starts from."""
        positions = torch.arange(source_ids.shape[1], device=source_ids.device)
        source_mask = positions < source_lengths.unsqueeze(1)
        outputs, finals = self.encoder(self.dropout(self.embedding_of_sources(source_ids)), source_lengths)
        rows = self.decoder.start(self.bridge(outputs, source_mask, finals), source_mask, finals[-1][0])
        attention = self.decoder.attention
        sources = {} if attention is None else attention.source_tensors(outputs, source_mask)
        if self.decoder.copying is not None:
            sources[SYMBOLS] = source_ids
        return Encoded(rows, sources)

    def step(
        self,
        previous_ids: Tensor,
        row_tensors: Mapping[str, Tensor],
        source_tensors: Mapping[str, Tensor],
        source_rows: Tensor | None,
        row_slots: Tensor | None,
    ) -> tuple[Tensor, dict[str, Tensor], Tensor | None]:
        """Feeds each row its previous symbol.

        Args:
            previous_ids: [R] int64.
            row_tensors, source_tensors: by the names of `state_tensors`.
            source_rows, row_slots: [B, M] and [R] int64, see runtime.stepper.attention_layout; unused without
                attention.

        Returns:
            logits [R, V]; the new row tensors; and the attention weights [R, S], zero on padding, or None without
            attention.
        """
        embedded = self.dropout(self.target_embedding(previous_ids))
        readouts, rows, weights, copies = self.decoder.step(
            embedded, row_tensors, source_tensors, source_rows, row_slots
        )
        logits = self.output(self.dropout(readouts), self.target_embedding.weight)
        return logits if copies is None else mixed(logits, copies), rows, weights

    def state_tensors(self) -> tuple[StateTensor, ...]:
        """The tensors that pass from `encode` to `step` and from step to step."""
        rows = (StateTensor(input=name, output=f"{name}_out", scope="row") for name in self.decoder.row_names)
        sources = (StateTensor(input=name, output=None, scope="source") for name in self.decoder.source_names)
        return (*rows, *sources)
