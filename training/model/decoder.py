"""The decoder: recurrent layers that attend to the source.

Shapes: B sources, R rows (R = B in teacher forcing), T target positions, S source positions, M rows of one source,
E embedding size, D memory size, H decoder size, A key size, L layers.
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from training.model.attention import Attention, AttentionLoop
from training.model.cells import (
    CELL_CLASSES,
    STATE_NAMES,
    CellLoop,
    CellState,
    DecoderCell,
    stack_states,
    unstack_states,
)
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
        self.state_names = STATE_NAMES[config.cell]
        feed_size = config.memory_size if self.asks_before else config.hidden_size if self.feeds_input else 0
        sizes = [(config.embedding_size, feed_size), *[(config.hidden_size, 0)] * (config.decoder.num_layers - 1)]
        cell_class = CELL_CLASSES[config.cell]
        self.cells = nn.ModuleList(cell_class(*size, config.hidden_size) for size in sizes)
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
        num_rows, num_steps, _ = embedded.shape
        attention = AttentionLoop(self.attention, source, num_steps)
        cells = [
            CellLoop(cell, None if index else embedded, num_rows, num_steps) for index, cell in enumerate(self.cells)
        ]
        joining = self.joining.loop(num_rows, num_steps)
        attentional = torch.zeros_like(states[0][0])
        contexts, outputs = [], []
        for _ in range(num_steps):
            if self.asks_before:
                contexts.append(attention.step(states[-1][0]))
            states = self._run_cells(cells, contexts[-1] if self.asks_before else attentional, states)
            top = states[-1][0]
            if self.feeds_input:
                attentional = joining(attention.step(top), top)
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
        states = self._run_cells(self.cells, inputs, states)
        top = states[-1][0]
        if not self.asks_before:
            context, weights = self._attend_rows(top, source_tensors, source_rows, row_slots)
        joined = self.joining(context, top)
        rows = dict(zip(self.state_names, stack_states(states), strict=True))
        if self.feeds_input:
            rows[ATTENTIONAL] = joined
        return joined, rows, weights

    def _run_cells(
        self, cells: Iterable[DecoderCell | CellLoop], inputs: Tensor, states: list[CellState]
    ) -> list[CellState]:
        """One step of all layers."""
        new_states: list[CellState] = []
        for cell, state in zip(cells, states, strict=True):
            new_states.append(cell.step(self.dropout(new_states[-1][0]) if new_states else inputs, state))
        return new_states

    def _attend_rows(
        self, hidden: Tensor, source: Mapping[str, Tensor], source_rows: Tensor, row_slots: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Contexts [R, D] and weights [R, S] of states [R, H]; the rows of a source query its memory together."""
        query = self.attention.query(hidden)
        num_sources, width = source_rows.shape
        grid = query.index_select(0, source_rows.flatten()).view(num_sources, width, query.shape[-1])
        contexts, weights = self.attention(grid, source)
        return contexts.flatten(0, 1).index_select(0, row_slots), weights.flatten(0, 1).index_select(0, row_slots)
