"""The decoder: recurrent layers that attend to the source.

Shapes: B sources, R rows (R = B in teacher forcing), T target positions, S source positions, M rows of one source,
E embedding size, D memory size, H decoder size, A key size, L layers.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from training.model.attention import Attention
from training.model.cells import CELL_CLASSES, STATE_NAMES, CellState, stack_states, unstack_states
from training.model.config import ModelConfig
from training.model.joining import Joining

ATTENTIONAL = "attentional"


class Decoder(nn.Module):
    """Cells, attention and joining in the order that the configuration says.

    query = "current": the cells run, the new state attends, both join (Luong et al. 2015). With input feeding what
    they join to is part of the next step's input; without it nothing of a step needs the attention of the one before,
    and teacher forcing has no loop over time.
    query = "previous": the state attends, its context is part of the cells' input (Bahdanau et al. 2015).

    Nothing is kept on the module between calls: a row's state is `row_tensors`, by the names of `row_names`.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.asks_before = config.attention.query == "previous"
        self.feeds_input = config.decoder.input_feeding
        self.hidden_size = config.hidden_size
        self.state_names = STATE_NAMES[config.cell]
        feed_size = config.memory_size if self.asks_before else config.hidden_size if self.feeds_input else 0
        cell_class = CELL_CLASSES[config.cell]
        self.cells = nn.ModuleList(
            cell_class(config.hidden_size if layer else config.embedding_size, 0 if layer else feed_size, self.hidden_size)
            for layer in range(config.decoder.num_layers)
        )
        self.attention = Attention(config)
        self.joining = Joining(config)
        self.dropout = nn.Dropout(config.dropout)

    @property
    def row_names(self) -> tuple[str, ...]:
        """Names of the row tensors: hidden [R, L, H]; cell [R, L, H] (LSTM); attentional [R, H] (input feeding)."""
        return self.state_names + ((ATTENTIONAL,) if self.feeds_input else ())

    def start(self, states: list[CellState]) -> dict[str, Tensor]:
        """The row tensors of B first states, given by layer."""
        rows = dict(zip(self.state_names, stack_states(states), strict=True))
        if self.feeds_input:
            rows[ATTENTIONAL] = torch.zeros_like(states[0][0])
        return rows

    def forward(self, embedded: Tensor, states: list[CellState], source: Mapping[str, Tensor]) -> Tensor:
        """Teacher forcing: the joined vectors [B, T, H] of embedded previous symbols [B, T, E].

        Args:
            states: the first state of each layer, parts [B, H].
            source: what `self.attention.source_tensors` made.
        """
        if self.asks_before or self.feeds_input:
            return self._loop(embedded, states, source)
        hidden = embedded
        for index, (cell, state) in enumerate(zip(self.cells, states, strict=True)):
            hidden = cell.unroll(self.dropout(hidden) if index else hidden, state)
        context, _ = self.attention(self.attention.query(hidden), source)
        joined: Tensor = self.joining(context, hidden)
        return joined

    def _loop(self, embedded: Tensor, states: list[CellState], source: Mapping[str, Tensor]) -> Tensor:
        """Teacher forcing where a step needs the attention of this or the previous one: only what does is looped."""
        first = self.cells[0]
        feed_weight = first.feed_weight
        attentional = torch.zeros_like(states[0][0])
        contexts, outputs = [], []
        for projected in first.project(embedded).unbind(1):
            if self.asks_before:
                context = self._attend_alone(states[-1][0], source)
                contexts.append(context)
            feed = context if self.asks_before else attentional
            states = self._run_cells(projected + F.linear(feed, feed_weight), states)
            top = states[-1][0]
            if self.feeds_input:
                attentional = self.joining(self._attend_alone(top, source), top)
            outputs.append(attentional if self.feeds_input else top)
        stacked = torch.stack(outputs, 1)
        return stacked if self.feeds_input else self.joining(torch.stack(contexts, 1), stacked)

    def step(
        self,
        embedded: Tensor,
        row_tensors: Mapping[str, Tensor],
        source_tensors: Mapping[str, Tensor],
        source_rows: Tensor,
        row_slots: Tensor,
    ) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        """One step of R rows over B sources.

        Args:
            embedded: [R, E] the previous symbols.
            row_tensors: by `row_names`.
            source_tensors: what `self.attention.source_tensors` made.
            source_rows, row_slots: [B, M] and [R], see runtime.stepper.attention_layout.

        Returns:
            joined vectors [R, H], the new row tensors and the attention weights [R, S].
        """
        states = unstack_states(tuple(row_tensors[name] for name in self.state_names))
        inputs = embedded
        if self.asks_before:
            context, weights = self._attend_rows(states[-1][0], source_tensors, source_rows, row_slots)
            inputs = torch.cat([embedded, context], -1)
        elif self.feeds_input:
            inputs = torch.cat([embedded, row_tensors[ATTENTIONAL]], -1)
        first = self.cells[0].rnn
        states = self._run_cells(F.linear(inputs, first.weight_ih_l0, first.bias_ih_l0), states)
        top = states[-1][0]
        if not self.asks_before:
            context, weights = self._attend_rows(top, source_tensors, source_rows, row_slots)
        joined = self.joining(context, top)
        rows = dict(zip(self.state_names, stack_states(states), strict=True))
        if self.feeds_input:
            rows[ATTENTIONAL] = joined
        return joined, rows, weights

    def _run_cells(self, projected: Tensor, states: list[CellState]) -> list[CellState]:
        """One step of all layers from the first one's projected inputs [R, G]."""
        new_states = [self.cells[0].recur(projected, states[0])]
        for cell, state in zip(self.cells[1:], states[1:], strict=True):
            new_states.append(cell.step(self.dropout(new_states[-1][0]), state))
        return new_states

    def _attend_alone(self, hidden: Tensor, source: Mapping[str, Tensor]) -> Tensor:
        """Contexts [B, D] of one state [B, H] per source."""
        context, _ = self.attention(self.attention.query(hidden).unsqueeze(1), source)
        return context.squeeze(1)

    def _attend_rows(
        self, hidden: Tensor, source: Mapping[str, Tensor], source_rows: Tensor, row_slots: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Contexts [R, D] and weights [R, S] of states [R, H]; the rows of a source query its memory together."""
        query = self.attention.query(hidden)
        num_sources, width = source_rows.shape
        grid = query.index_select(0, source_rows.flatten()).view(num_sources, width, query.shape[-1])
        contexts, weights = self.attention(grid, source)
        return contexts.flatten(0, 1).index_select(0, row_slots), weights.flatten(0, 1).index_select(0, row_slots)
