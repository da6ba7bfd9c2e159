"""The whole model: embeddings, encoder, bridge, decoder, output; and its initial weights.

Shapes: B sources, R rows, S source positions, T target positions, M rows of one source, H decoder size,
P readout size, V target vocabulary, N wanted positions.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from attendant.runtime.bundle.manifest import StateTensor
from attendant.runtime.bundle.tokenizer import BOS_ID, EOS_ID, PAD_ID
from attendant.training.kernels.cells import Dropout, weights_of
from attendant.training.kernels.loss import Copies, mixed
from attendant.training.model.attention import SYMBOLS, AdditiveScore, Attention
from attendant.training.model.config import Initialization, ModelConfig
from attendant.training.model.decoder import Decoder, TeacherForcing
from attendant.training.model.encoder import Bridge, Encoder
from attendant.training.model.readout import Output

UNIFORM_BOUND: Final = 0.08
NORMAL_DEVIATION: Final = 0.01
ALIGNMENT_DEVIATION: Final = 0.001


@dataclass(frozen=True, slots=True)
class Encoded:
    """The start of decoding: an encoded source.

    Attributes:
        row_tensors: name -> [B, ...], the first state of each source's single row.
        source_tensors: name -> [B, S, ...].
    """

    row_tensors: dict[str, Tensor]
    source_tensors: dict[str, Tensor]


class Seq2Seq(nn.Module):
    """A recurrent encoder-decoder with attention, by configuration. State goes in and comes out; none is kept.

    Attributes:
        source_vocabulary_size, target_vocabulary_size: special symbols included.
        source_embedding: None if the target's serves both sides (shared).

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
        """Returns the logits of every next symbol given the true ones before it (teacher forcing).

        Args:
            source_ids: [B, S] int64, padded.
            source_lengths: [B] int64, at least 1.
            previous_ids: [B, T] int64: the start symbol, then the target without its last symbol; padded.
            positions: [N] int64 indices into the flattened [B * T] of the wanted positions. If None, all positions.
                Without padding, the vocabulary-wide layer, which costs most, has less to compute.

        Returns:
            logits [B, T, V], or [N, V] of the wanted positions.
        """
        forced = self.teacher_forcing(source_ids, source_lengths, previous_ids, positions)
        logits: Tensor = self.output(forced.readouts, self.target_embedding.weight)
        if forced.copies is not None:
            logits = mixed(logits, forced.copies)
        return logits if positions is not None else logits.view(*previous_ids.shape, -1)

    def teacher_forcing(
        self,
        source_ids: Tensor,
        source_lengths: Tensor,
        previous_ids: Tensor,
        positions: Tensor | None = None,
        *,
        keep_attention: bool = False,
    ) -> TeacherForcing:
        """Runs `forward` up to the output layer; N = B T if all positions are wanted: readouts [N, P].

        Args:
            source_ids, source_lengths, previous_ids, positions: as `forward` takes them.
            keep_attention: return the attention's weights too.
        """
        encoded = self.encode(source_ids, source_lengths)
        embedded = self.dropout(self.target_embedding(previous_ids))
        rows, source = encoded.row_tensors, encoded.source_tensors
        forced: TeacherForcing = self.decoder(embedded, rows, source, keep_attention=keep_attention)

        def wanted(values: Tensor) -> Tensor:
            flat = values.flatten(0, 1)
            return flat if positions is None else flat.index_select(0, positions)

        copies = None if forced.copies is None else Copies(*map(wanted, forced.copies))
        return TeacherForcing(self.dropout(wanted(forced.readouts)), forced.weights, copies)

    @property
    def embedding_of_sources(self) -> nn.Embedding:
        """The source embedding, or the target embedding if it serves both sides."""
        return self.target_embedding if self.source_embedding is None else self.source_embedding

    @property
    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())

    def output_layer(self) -> tuple[Tensor, Tensor]:
        """Returns the output layer's matrix [V, P] and bias [V], for a loss that takes their product itself."""
        return self.output.matrix_and_bias(self.target_embedding.weight)

    def encode(self, source_ids: Tensor, source_lengths: Tensor) -> Encoded:
        """Encodes source_ids [B, S] of lengths [B], for `step`."""
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
        """Returns the tensors that pass from `encode` to `step` and from step to step."""
        rows = (StateTensor(input=name, output=f"{name}_out", scope="row") for name in self.decoder.row_names)
        sources = (StateTensor(input=name, output=None, scope="source") for name in self.decoder.source_names)
        return (*rows, *sources)


def initialize(model: nn.Module, kind: Initialization) -> None:
    """Draws every weight of `model`.

    "glorot": matrices uniform as Glorot and Bengio (2010), recurrent ones orthogonal per gate (Saxe et al. 2014),
    biases zero, except the LSTM's forget gate, which starts open with 1 (Jozefowicz et al. 2015); embeddings uniform
    in [-0.1, 0.1] (Luong et al. 2015).
    "uniform": everything, biases included, uniform in [-0.08, 0.08] (Sutskever et al. 2014, section 3.4).
    "normal": matrices N(0, 0.01^2), recurrent ones orthogonal per gate; those of the attention's score N(0, 0.001^2),
    its vector and all biases zero (Bahdanau et al. 2015, appendix B.1).
    """
    match kind:
        case "glorot":
            _glorot(model)
        case "uniform":
            for parameter in model.parameters():
                nn.init.uniform_(parameter, -UNIFORM_BOUND, UNIFORM_BOUND)
        case "normal":
            _normal(model)
    for module in model.modules():
        if isinstance(module, nn.Embedding) and module.padding_idx is not None:
            nn.init.zeros_(module.weight[PAD_ID])


def _glorot(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            nn.init.uniform_(module.weight, -0.1, 0.1)
        elif isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.RNNBase):
            _initialize_recurrence(module)
        elif isinstance(module, Output) and module.weight is not None:
            nn.init.xavier_uniform_(module.weight)
        elif isinstance(module, AdditiveScore):
            bound = 1 / math.sqrt(len(module.weight))
            nn.init.uniform_(module.weight, -bound, bound)


def _initialize_recurrence(rnn: nn.RNNBase) -> None:
    weights = weights_of(rnn)
    for gate in torch.split(weights.of_inputs, rnn.hidden_size):
        nn.init.xavier_uniform_(gate)
    _make_orthogonal(rnn)
    nn.init.zeros_(weights.input_bias)
    nn.init.zeros_(weights.hidden_bias)
    if isinstance(rnn, nn.LSTM):
        nn.init.ones_(weights.input_bias[rnn.hidden_size : 2 * rnn.hidden_size])


def _normal(model: nn.Module) -> None:
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=NORMAL_DEVIATION)
        else:
            nn.init.zeros_(parameter)
    for module in model.modules():
        if isinstance(module, nn.RNNBase):
            _make_orthogonal(module)
        elif isinstance(module, Attention):
            for parameter in module.score.parameters():
                if parameter.dim() > 1:
                    nn.init.normal_(parameter, std=ALIGNMENT_DEVIATION)


def _make_orthogonal(rnn: nn.RNNBase) -> None:
    """Draws an orthogonal recurrent matrix for each gate (Saxe et al. 2014)."""
    for gate in torch.split(weights_of(rnn).of_hidden, rnn.hidden_size):
        nn.init.orthogonal_(gate)
