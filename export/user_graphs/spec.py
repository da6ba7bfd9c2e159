"""The description of two ONNX graphs: a TOML file, which must name the tokenizers.

All other fields may be missing: they are found by trying the graphs (layout.py), and `draft` writes them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import Field, ValidationError

from attendant.runtime.bundle.manifest import GNMT_OFFSET, MAX_TOKENS
from attendant.runtime.errors import UserError, shown
from attendant.runtime.files import read_text
from attendant.training.data.vocabulary import SymbolKind
from attendant.training.table import Count, Table, parsed_toml, problems_of, requirement

ScoresAre = Literal["logits", "log_probs", "probabilities"]


class EncoderTable(Table):
    """`[encoder]`: names of its inputs.

    Attributes:
        source_ids: ids of the sources' symbols, or their one-hot vectors.
        source_lengths: numbers of symbols.
        source_mask: positions that hold symbols, or those that hold padding.
        mask_is_true_on: the positions at which `source_mask` is true.
        zeros: inputs that are fed zeros, such as a first hidden state.
        time_major: the first axis of `source_ids` runs over positions, the second over sources.
    """

    source_ids: str | None = None
    source_lengths: str | None = None
    source_mask: str | None = None
    mask_is_true_on: Literal["symbols", "padding"] = "symbols"
    zeros: tuple[str, ...] = ()
    time_major: bool | None = None


class StepTable(Table):
    """`[step]`: names of its inputs and outputs, except the state.

    Attributes:
        previous_ids: each row's last symbol.
        scores: the output by which symbols are chosen.
        scores_are: logits, log-probabilities or probabilities of all target symbols.
        attention: weights of the source's positions; an empty text if the step has none.
        source_lengths, source_mask, mask_is_true_on: as those of `[encoder]`, if the step takes them.
    """

    previous_ids: str | None = None
    scores: str | None = None
    scores_are: ScoresAre | None = None
    attention: str | None = None
    source_lengths: str | None = None
    source_mask: str | None = None
    mask_is_true_on: Literal["symbols", "padding"] = "symbols"


class StateTable(Table):
    """`[[state]]`: a tensor that passes from the encoder, or from one step, to the next step.

    Attributes:
        input: of the step.
        encoder: output of the encoder that is its first value; None for zeros.
        output: output of the step that is its next value; if None, steps don't change it, and all rows of a source
            share it.
    """

    input: str
    encoder: str | None = None
    output: str | None = None


class SideTable(Table):
    """`[source]` and `[target]`: see UserModel.

    Attributes:
        tokenizer: a file, whose path is relative to the description's.
        special: "pad", "unk", "bos" and "eos" -> their names; if None, the usual names.
        kind: for a file with a symbol per line: texts are split at white space, or into characters, or not at all.
        max_tokens: limit of a request.
    """

    tokenizer: str
    special: dict[str, str] | None = None
    kind: SymbolKind = "word"
    max_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = None


class SourceTable(SideTable):
    """`[source]`, with the symbols that are added to every source."""

    append_eos: bool = True
    prepend_bos: bool = False


class DecodingTable(Table):
    """`[decoding]`: defaults of a request."""

    beam_size: Count = 1
    length_penalty: Annotated[float, Field(ge=0, le=10)] = 0.0
    length_penalty_offset: Annotated[float, Field(ge=0, le=10)] = GNMT_OFFSET
    patience: Annotated[float, Field(ge=0, le=10)] | None = None
    protect_spans: bool = False
    split_sentences: bool = False


class Spec(Table):
    """The whole file.

    Attributes:
        data: held-out pairs (FILE.tsv or SOURCE,TARGET), relative to the file, for golden examples and measurements.
        state: if empty, the state is found by trying the graphs.
    """

    source: SourceTable
    target: SideTable
    data: str | None = None
    encoder: EncoderTable = EncoderTable()
    step: StepTable = StepTable()
    state: tuple[StateTable, ...] = ()
    decoding: DecodingTable = DecodingTable()


def read_spec(path: Path) -> Spec:
    """Reads the file; its paths become relative to the current folder. Raises UserError: one is wrong, or missing."""
    try:
        content = parsed_toml(read_text(path, f"--spec {path}"), f"--spec {path}")
        spec = Spec.model_validate(content, strict=True)
    except ValidationError as error:
        problem = problems_of(error)[0]
        field = ".".join(map(str, problem["loc"]))
        raise UserError(f"--spec {path}: {field}: {_explained(problem)}") from None

    def placed(file: str) -> str:
        return ",".join(str(path.parent / part) for part in file.split(","))

    sides = {
        name: side.model_copy(update={"tokenizer": str(path.parent / side.tokenizer)})
        for name, side in (("source", spec.source), ("target", spec.target))
    }
    return spec.model_copy(update={**sides, "data": None if spec.data is None else placed(spec.data)})


def _explained(problem: Any) -> str:
    if problem["type"] == "missing":
        return "is missing"
    if problem["type"] == "extra_forbidden":
        return "there is no such field (docs/import-onnx.md)"
    return f"{requirement(problem)}, got {shown(problem['input'])}"


def draft(encoder: EncoderTable, step: StepTable, state: tuple[StateTable, ...]) -> str:
    """Returns a description to complete: the tables of the graphs, and places for the tokenizers."""
    tables = [("[encoder]", encoder), ("[step]", step), *(("[[state]]", tensor) for tensor in state)]
    return "\n".join(
        [
            "# Two ONNX graphs for `attendant import onnx`. Write the tokenizers' files into [source] and [target]:",
            "# a tokenizer.json, SentencePiece's .model, or a text with a symbol per line, in the order of the ids.",
            "",
            '[source]\ntokenizer = "source.txt"',
            "# max_tokens = 100",
            '# kind = "character"  # of a text with a symbol per line: how texts are split (default: "word")',
            "# append_eos = false  # of sources (default: true); prepend_bos = true (default: false)",
            '# special = {bos = "<s>", eos = "</s>"}  # where the names are unusual',
            "",
            '[target]\ntokenizer = "target.txt"',
            "",
            "# Found by trying the graphs. Fields that are deleted are found again.",
            *(f"{name}\n{tomli_w.dumps(_written(table))}" for name, table in tables),
        ]
    )


def _written(table: Table) -> Mapping[str, Any]:
    """Returns the fields that are not at their defaults, as TOML can hold them."""
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in table.model_dump(exclude_defaults=True, exclude_none=True).items()
    }
