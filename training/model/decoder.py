"""The decoder: recurrent layers that read the source by attention or by a fixed vector.

Shapes: B sources, R rows (R = B in teacher forcing), T target positions, S source positions, M rows of one source,
E embedding size, D encoder size, C context size, H decoder size, P readout size, A key size, L layers, I inputs of a
cell, F inputs that the loop feeds back, G width of the gates.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attendant.training.kernels.cells import (
    RNN_CLASSES,
    STATE_NAMES,
    CellKind,
    CellState,
    Dropout,
    LoopedProduct,
    adds,
    at_every_step,
    next_state,
    step_of,
    unroll,
    weights_of,
)
from attendant.training.kernels.loss import Copies
from attendant.training.model.attention import SYMBOLS, Attention, AttentionLoop, Copying
from attendant.training.model.config import ModelConfig
from attendant.training.model.readout import READOUTS

ATTENTIONAL = "attentional"
COVERAGE = "coverage"
VECTOR = "vector"


class DecoderCell(nn.Module):
    """A one-layer recurrence with the weights of `self.rnn`: over a whole target at once, or step by step.

    The inputs of a step may have two parts: inputs known beforehand (I), and inputs that the loop feeds back (F).
    """

    def __init__(self, kind: CellKind, input_size: int, feed_size: int, hidden_size: int) -> None:
        super().__init__()
        self.kind = kind
        self.input_size = input_size
        self.feed_size = feed_size
        self.rnn = RNN_CLASSES[kind](input_size + feed_size, hidden_size, batch_first=True)

    def unroll(self, inputs: Tensor, state: CellState) -> Tensor:
        """Returns the hidden states [R, T, H] of inputs [R, T, I], if nothing is fed back."""
        return unroll(self.rnn, inputs, state)

    def step(self, inputs: Tensor, state: CellState) -> CellState:
        """Returns the state after one step from inputs [R, I + F]."""
        return step_of(weights_of(self.rnn), self.kind, inputs, state)


class CellLoop:
    """A cell in a training loop over T steps, each fed by the results of the step before; see LoopedProduct.

    Args:
        known: [T, R, I] inputs known beforehand, projected outside of the loop. If None, all inputs are fed.
        num_rows, num_steps: R and T.
    """

    def __init__(self, cell: DecoderCell, known: Tensor | None, num_rows: int, num_steps: int) -> None:
        weights = weights_of(cell.rnn)
        self._kind = cell.kind
        bias = weights.input_bias + weights.hidden_bias if adds(cell.kind) else weights.input_bias
        fed_weight = weights.of_inputs
        if known is None:
            projected = at_every_step(bias, num_rows, num_steps)
        else:
            known_weight, fed_weight = torch.split(fed_weight, [cell.input_size, cell.feed_size], 1)
            projected = F.linear(known, known_weight, bias)
        if adds(cell.kind):
            self._products = [LoopedProduct(projected, fed_weight, weights.of_hidden)]
        else:
            recurrent = at_every_step(weights.hidden_bias, num_rows, num_steps)
            self._products = [LoopedProduct(projected, fed_weight), LoopedProduct(recurrent, weights.of_hidden)]

    def step(self, fed: Tensor, state: CellState) -> CellState:
        """Returns the next state from fed inputs [R, F]. It has at least 32 bits, also if the products have 16."""
        inputs = [(fed, state[0])] if adds(self._kind) else [(fed,), (state[0],)]
        products = [product(*each) for product, each in zip(self._products, inputs, strict=True)]
        wide = [product.to(torch.promote_types(product.dtype, torch.float32)) for product in products]
        return next_state(self._kind, wide, state)


class TeacherForcing(NamedTuple):
    """The results of teacher forcing, for B x T target positions or for N chosen ones.

    Attributes:
        readouts: [B, T, P] or [N, P].
        weights: [B, T, S] of attention, always at all positions; None if they were not kept.
        copies: [B, T, S] or [N, S], symbols and scores; None if the model does not copy.
    """

    readouts: Tensor
    weights: Tensor | None
    copies: Copies | None


class _Attended(NamedTuple):
    """The results of attention for R rows.

    Attributes:
        context: [R, C].
        weights, coverage: [R, S]; coverage None if the model has none.
        copyable: [R, S] the source's symbols, and the attention on each (see Copying); None without copying.
    """

    context: Tensor
    weights: Tensor
    coverage: Tensor | None
    copyable: tuple[Tensor, Tensor] | None


class Decoder(nn.Module):
    """Cells, attention and readout in the order of the configuration.

    query = "current": the cells run, the new state attends, and the readout combines both (Luong et al. 2015). With
    input feeding the readout is part of the next step's input. Without it no step needs the attention of the one
    before, and teacher forcing has no loop over time.
    query = "previous": the state attends, and its context is part of the cells' input (Bahdanau et al. 2015).
    No attention: the context, if any, is the same vector at every step (Cho et al. 2014).

    Nothing is kept on the module between calls: a row's state is `row_tensors`, by the names of `row_names`.

    Attributes:
        row_names: hidden [R, L, H]; cell [R, L, H] (LSTM); attentional [R, P] (input feeding); coverage [R, S];
            vector [R, C] (no attention).
        source_names: the source tensors of attention and copying; empty without attention.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attends_first = config.attention.query == "previous"
        self.feeds_input = config.decoder.input_feeding
        self.has_coverage = config.attention.coverage
        self.has_vector = config.decoder.source_vector
        self.readout_size = config.readout_size
        self.first_residual_layer = config.first_residual_layer
        self.state_names = STATE_NAMES[config.cell]
        known_size = config.embedding_size + (config.context_size if self.has_vector else 0)
        feed_size = config.context_size if self.attends_first else config.readout_size if self.feeds_input else 0
        sizes = [(known_size, feed_size), *[(config.hidden_size, 0)] * (config.decoder.num_layers - 1)]
        cells = nn.ModuleList(DecoderCell(config.cell, *size, config.hidden_size) for size in sizes)
        self.cells = cast("Sequence[DecoderCell]", cells)
        self.attention = Attention(config) if config.has_attention else None
        self.readout = READOUTS[config.decoder.readout](config) if config.context_size else None
        self.copying = Copying(config) if config.decoder.copying else None
        self.dropout = Dropout(config.dropout)
        flags = {ATTENTIONAL: self.feeds_input, COVERAGE: self.has_coverage, VECTOR: self.has_vector}
        self.row_names = (*self.state_names, *(name for name, has in flags.items() if has))
        self.source_names = () if self.attention is None else self.attention.source_names
        if self.copying is not None:
            self.source_names += (SYMBOLS,)

    def start(self, states: list[CellState], source_mask: Tensor, vector: Tensor) -> dict[str, Tensor]:
        """Returns the row tensors of B first rows.

        Args:
            states: the first state of each layer, parts [B, H].
            source_mask: [B, S].
            vector: [B, D] the encoder's last state.
        """
        rows = self._stacked(states)
        if self.feeds_input:
            # Not `new_zeros`: an exported graph would not show that they are bounded.
            rows[ATTENTIONAL] = torch.zeros_like(vector[:, :1]).expand(-1, self.readout_size)
        if self.has_coverage:
            rows[COVERAGE] = torch.zeros_like(source_mask, dtype=vector.dtype)
        if self.has_vector:
            rows[VECTOR] = vector
        return rows

    def forward(
        self,
        embedded: Tensor,
        rows: Mapping[str, Tensor],
        source: Mapping[str, Tensor],
        *,
        keep_attention: bool = False,
    ) -> TeacherForcing:
        """Runs teacher forcing from embedded previous symbols [B, T, E].

        Args:
            rows: the result of `start`.
            source: by `source_names`.
            keep_attention: return the attention's weights, whether the model copies or not.
        """
        keep_attention |= self.copying is not None
        if self.attends_first or self.feeds_input:
            return self._loop(embedded, rows, source, keep_attention)
        hidden, context, weights = embedded, None, None
        if self.has_vector:
            context = rows[VECTOR].unsqueeze(1).expand(-1, embedded.shape[1], -1)
            hidden = torch.cat([embedded, context], -1)
        for index, (cell, state) in enumerate(zip(self.cells, self._states(rows), strict=True)):
            outputs = cell.unroll(self.dropout(hidden) if index else hidden, state)
            hidden = outputs + hidden if index >= self.first_residual_layer else outputs
        if self.attention is not None:
            context, weights = self._attend_all(self.attention, hidden, rows, source)
        return self._forced(self._read_out(context, hidden, embedded), context, weights, hidden, embedded, source)

    def _attend_all(
        self, attention: Attention, hidden: Tensor, rows: Mapping[str, Tensor], source: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Returns contexts [B, T, C] and weights [B, T, S] of states [B, T, H].

        Only coverage makes a step's attention depend on the step before.
        """
        if not self.has_coverage:
            context, weights, _ = attention(attention.score.query(hidden), source)
            return context, weights
        loop, steps = AttentionLoop(attention, source, hidden.shape[1]), []
        coverage: Tensor | None = rows[COVERAGE]
        for state in hidden.unbind(1):
            context, weights, coverage = loop.step(state, coverage)
            steps.append((context, weights))
        contexts, all_weights = (torch.stack(parts, 1) for parts in zip(*steps, strict=True))
        return contexts, all_weights

    def _loop(
        self, embedded: Tensor, rows: Mapping[str, Tensor], source: Mapping[str, Tensor], keep_attention: bool
    ) -> TeacherForcing:
        """Runs teacher forcing if the cells need the attention of this or the last step; loops over dependent parts."""
        assert self.attention is not None and self.readout is not None
        num_rows, num_steps, _ = embedded.shape
        attention = AttentionLoop(self.attention, source, num_steps)
        known = embedded.transpose(0, 1).contiguous()
        cells = [CellLoop(cell, None if index else known, num_rows, num_steps) for index, cell in enumerate(self.cells)]
        states, coverage = self._states(rows), rows.get(COVERAGE)
        outputs: list[Tensor] = []
        contexts: list[Tensor] = []
        weights: list[Tensor] = []
        drops = [self.dropout.looped(hidden, num_steps) for hidden, *_ in states[:-1]]
        if self.attends_first:
            for _ in range(num_steps):
                context, of_step, coverage = attention.step(states[-1][0], coverage)
                contexts.append(context)
                weights.append(of_step)
                output, states = self._run_cells(cells, context, states, drops)
                outputs.append(output)
            all_contexts, hidden = torch.stack(contexts, 1), torch.stack(outputs, 1)
            readouts = self._read_out(all_contexts, hidden, embedded)
            all_weights = torch.stack(weights, 1) if keep_attention else None
            return self._forced(readouts, all_contexts, all_weights, hidden, embedded, source)
        read_out, attentional = self.readout.loop(num_rows, num_steps), rows[ATTENTIONAL]
        attentionals = []
        for symbol in embedded.unbind(1):
            output, states = self._run_cells(cells, attentional, states, drops)
            context, of_step, coverage = attention.step(output, coverage)
            attentional = read_out(context, output, symbol)
            attentionals.append(attentional)
            outputs.append(output)
            contexts.append(context)
            weights.append(of_step)
        readouts = torch.stack(attentionals, 1)
        if not keep_attention:  # only the readouts are needed, and stacking takes time
            return TeacherForcing(readouts, None, None)
        all_contexts, all_weights, hidden = (torch.stack(parts, 1) for parts in (contexts, weights, outputs))
        return self._forced(readouts, all_contexts, all_weights, hidden, embedded, source)

    def _forced(
        self,
        readouts: Tensor,
        contexts: Tensor | None,
        weights: Tensor | None,
        hidden: Tensor,
        embedded: Tensor,
        source: Mapping[str, Tensor],
    ) -> TeacherForcing:
        """Adds the symbols that can be copied; all tensors are [B, T, ...]."""
        if self.copying is None:
            return TeacherForcing(readouts, weights, None)
        assert contexts is not None and weights is not None
        symbols = source[SYMBOLS]
        shares = self.copying.shares(weights, symbols)
        of_positions = symbols.unsqueeze(1).expand(weights.shape)
        return TeacherForcing(readouts, weights, self.copying.copies(of_positions, shares, contexts, hidden, embedded))

    def step(
        self,
        embedded: Tensor,
        rows: Mapping[str, Tensor],
        source: Mapping[str, Tensor],
        source_rows: Tensor | None,
        row_slots: Tensor | None,
    ) -> tuple[Tensor, dict[str, Tensor], Tensor | None, Copies | None]:
        """Runs one step of R rows over B sources.

        Args:
            embedded: [R, E] the previous symbols.
            rows: by `row_names`.
            source: by `source_names`.
            source_rows, row_slots: [B, M] and [R], see runtime.stepper.attention_layout; unused without attention.

        Returns:
            readouts [R, P]; the new row tensors; the attention weights [R, S], None without attention; and the symbols
            that can be copied, None without copying.
        """
        states, coverage, context = self._states(rows), rows.get(COVERAGE), None
        attended: _Attended | None = None
        inputs = embedded
        if self.attends_first:
            attended = self._attend_rows(states[-1][0], source, coverage, source_rows, row_slots)
            inputs = torch.cat([embedded, attended.context], -1)
        elif self.feeds_input:
            inputs = torch.cat([embedded, rows[ATTENTIONAL]], -1)
        elif self.has_vector:
            context = rows[VECTOR]
            inputs = torch.cat([embedded, context], -1)
        output, states = self._run_cells(self.cells, inputs, states, [self.dropout] * (len(states) - 1))
        if self.attention is not None and not self.attends_first:
            attended = self._attend_rows(output, source, coverage, source_rows, row_slots)
        if attended is not None:
            context = attended.context
        readout = self._read_out(context, output, embedded)
        new_rows = self._stacked(states)
        if self.feeds_input:
            new_rows[ATTENTIONAL] = readout
        if attended is not None and attended.coverage is not None:
            new_rows[COVERAGE] = attended.coverage
        if self.has_vector:
            new_rows[VECTOR] = rows[VECTOR]
        if attended is None:
            return readout, new_rows, None, None
        copies = None
        if self.copying is not None and attended.copyable is not None:
            copies = self.copying.copies(*attended.copyable, attended.context, output, embedded)
        return readout, new_rows, attended.weights, copies

    def _read_out(self, context: Tensor | None, hidden: Tensor, embedded: Tensor) -> Tensor:
        return hidden if self.readout is None else self.readout(context, hidden, embedded)

    def _run_cells(
        self,
        cells: Sequence[DecoderCell | CellLoop],
        inputs: Tensor,
        states: list[CellState],
        drops: Sequence[Callable[[Tensor], Tensor]],
    ) -> tuple[Tensor, list[CellState]]:
        """Runs one step of all layers; returns the output [R, H] of the last and the new states.

        Args:
            drops: the dropout of each layer's output, except the last's.
        """
        hidden, new_states = inputs, []
        for index, (cell, state) in enumerate(zip(cells, states, strict=True)):
            new_states.append(cell.step(drops[index - 1](hidden) if index else hidden, state))
            output = new_states[-1][0]
            hidden = output + hidden if index >= self.first_residual_layer else output
        return hidden, new_states

    def _attend_rows(
        self,
        hidden: Tensor,
        source: Mapping[str, Tensor],
        coverage: Tensor | None,
        source_rows: Tensor | None,
        row_slots: Tensor | None,
    ) -> _Attended:
        """Attends from states [R, H]; a source's rows query it together."""
        assert self.attention is not None and source_rows is not None and row_slots is not None
        width = source_rows.shape[1]

        # Rows are looked up as embeddings are, which is one node of a graph, and needs no sizes of it.
        def grid(values: Tensor) -> Tensor:
            return F.embedding(source_rows, values)

        def ungrid(values: Tensor) -> Tensor:
            return F.embedding(row_slots, values.reshape(-1, values.shape[-1]))

        query = grid(self.attention.score.query(hidden))
        contexts, weights, coverage = self.attention(query, source, None if coverage is None else grid(coverage))
        copyable = None
        if self.copying is not None:
            symbols = source[SYMBOLS]
            # In int8 a source may have a single query, whose product would be rounded differently from several.
            shares = self.copying.shares(torch.cat([weights, weights], 1), symbols)[:, :width]
            copyable = ungrid(symbols.unsqueeze(1).expand(-1, width, -1)), ungrid(shares)
        covered = None if coverage is None else ungrid(coverage)
        return _Attended(ungrid(contexts), ungrid(weights), covered, copyable)

    def _states(self, rows: Mapping[str, Tensor]) -> list[CellState]:
        """Returns each layer's parts [R, H] of parts [R, L, H]."""
        return list(zip(*(rows[name].unbind(1) for name in self.state_names), strict=True))

    def _stacked(self, states: list[CellState]) -> dict[str, Tensor]:
        parts = (torch.stack(part, 1) for part in zip(*states, strict=True))
        return dict(zip(self.state_names, parts, strict=True))
