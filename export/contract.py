"""The contract of users' own modules, which `attendant.export.export_model` takes.

Shapes: B sources, R rows, S source positions, V symbols of the module's target vocabulary, M queries per source.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Literal, Protocol, cast, runtime_checkable

import torch
from torch import Tensor

VALID: Final = "valid_positions"
"""A source tensor of the wrapper's own, [B, S] bool: which positions are not padding."""

RESERVED: Final = frozenset(
    {
        *("source_ids", "source_lengths", "previous_ids", "source_rows", "row_slots", "forced_ids", "banned_ids"),
        *("num_candidates", "candidate_ids", "candidate_log_probs", "forced_log_probs", "attention", VALID),
    }
)
State = Mapping[str, Tensor]


@runtime_checkable
class Seq2SeqModule(Protocol):
    """An encoder and a decoder step, as `attendant.export.export_model` takes them; usually a `torch.nn.Module`.

    Both methods are functions of their arguments: nothing is kept on the module between calls.

    Attributes:
        row_state: names of the state tensors that belong to a row (a live hypothesis): recurrent states, an input
            feeding vector, attention of the steps before. All others belong to the source, and all its rows share them.
    """

    row_state: Sequence[str]

    def encode(self, source_ids: Tensor, source_lengths: Tensor) -> State:
        """Encodes source_ids [B, S] int64 of lengths [B] int64.

        Positions beyond a source's length are padding; they may hold any valid id.

        Returns:
            State tensors [B, ...] by name, with one entry per source on the first axis. An axis of source positions has
            S entries.
        """

    def step(self, previous_ids: Tensor, row_state: State, source_state: State) -> tuple[Tensor, State, Tensor | None]:
        """Feeds each row its last symbol.

        Args:
            previous_ids: [R] int64.
            row_state: the tensors that `row_state` names, [R, ...].
            source_state: the others, gathered for the rows: [R, S, ...].

        Returns:
            logits or log-probabilities [R, V]; the new row state, the same names and shapes; attention weights [R, S],
            zero on padding (for several heads, their mean), or None.
        """


class SharingModule(Protocol):
    """The fast form of Seq2SeqModule: the rows of a beam share their source's tensors, which are not gathered.

    Attributes:
        shares_sources: true, by which a module says that its step has this form.
    """

    row_state: Sequence[str]
    shares_sources: Literal[True]

    def encode(self, source_ids: Tensor, source_lengths: Tensor) -> State:
        """As Seq2SeqModule's."""

    def step(
        self,
        previous_ids: Tensor,
        row_state: State,
        source_state: State,
        source_rows: Tensor,
        row_slots: Tensor,
    ) -> tuple[Tensor, State, Tensor | None]:
        """Feeds each row its last symbol.

        Queries of rows are laid side by side by their sources, `query[source_rows]` [B, M, ...], and what attention
        gives each place is returned to its row by `context.flatten(0, 1)[row_slots]` [R, ...].

        Args:
            previous_ids, row_state: as Seq2SeqModule's.
            source_state: the other tensors, as `encode` returned them: [B, S, ...].
            source_rows: [B, M] int64, the rows of each source; places that are left repeat any row.
            row_slots: [R] int64, the place of each row in the flattened [B * M].

        Returns:
            as Seq2SeqModule's: logits [R, V], row state, attention [R, S].
        """


UserModule = Seq2SeqModule | SharingModule


def shares_sources(module: object) -> bool:
    """Returns True if a module's step has the fast form (SharingModule)."""
    return bool(getattr(module, "shares_sources", False))


def step_gathered(
    module: UserModule, previous_ids: Tensor, row_state: State, source_state: State
) -> tuple[Tensor, State, Tensor | None]:
    """Runs a module's step with its source's tensors gathered for each row [R, S, ...], in either form."""
    if not shares_sources(module):
        return cast(Seq2SeqModule, module).step(previous_ids, row_state, source_state)
    places = torch.arange(len(previous_ids), device=previous_ids.device)
    return cast(SharingModule, module).step(previous_ids, row_state, source_state, places[:, None], places)
