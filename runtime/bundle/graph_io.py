"""Inputs and outputs of the two graphs, by name: the contract between export and the ONNX stepper.

Shapes: B sources, R rows, S source positions, M queries per source, K candidates, N bans, as in runtime/stepper.py.
The state tensors come on top; the manifest has their names, which are the model's own.
"""

import math

from attendant.runtime.bundle.manifest import GraphPair, GraphSpec, TensorSpec

SOURCE_IDS = "source_ids"
SOURCE_LENGTHS = "source_lengths"

PREVIOUS_IDS = "previous_ids"
SOURCE_ROWS = "source_rows"
ROW_SLOTS = "row_slots"
FORCED_IDS = "forced_ids"
BANNED_IDS = "banned_ids"
NUM_CANDIDATES = "num_candidates"

CANDIDATE_LOG_PROBS = "candidate_log_probs"
CANDIDATE_IDS = "candidate_ids"
FORCED_LOG_PROBS = "forced_log_probs"
ATTENTION = "attention"

ITEM_BYTES = {"bool": 1, "int8": 1, "uint8": 1, "float16": 2, "float32": 4, "int32": 4}

ENCODER_INPUTS = (
    TensorSpec(name=SOURCE_IDS, dtype="int64", shape=("B", "S")),
    TensorSpec(name=SOURCE_LENGTHS, dtype="int64", shape=("B",)),
)


def has_attention(decoder_step: GraphSpec) -> bool:
    """Returns whether a step takes the layout of attention's queries."""
    return any(spec.name == SOURCE_ROWS for spec in decoder_step.inputs)


def step_inputs(has_attention: bool) -> tuple[TensorSpec, ...]:
    """Returns the step's inputs except the state tensors; `num_candidates` is the last."""
    layout = (
        TensorSpec(name=SOURCE_ROWS, dtype="int64", shape=("B", "M")),
        TensorSpec(name=ROW_SLOTS, dtype="int64", shape=("R",)),
    )
    return (
        TensorSpec(name=PREVIOUS_IDS, dtype="int64", shape=("R",)),
        *(layout if has_attention else ()),
        TensorSpec(name=FORCED_IDS, dtype="int64", shape=("R",)),
        TensorSpec(name=BANNED_IDS, dtype="int64", shape=("R", "N")),
        TensorSpec(name=NUM_CANDIDATES, dtype="int64", shape=(1,)),
    )


def step_outputs(has_attention: bool) -> tuple[TensorSpec, ...]:
    """Returns the step's outputs except the state tensors."""
    attention = (TensorSpec(name=ATTENTION, dtype="float32", shape=("R", "S")),)
    return (
        TensorSpec(name=CANDIDATE_LOG_PROBS, dtype="float32", shape=("R", "K")),
        TensorSpec(name=CANDIDATE_IDS, dtype="int64", shape=("R", "K")),
        TensorSpec(name=FORCED_LOG_PROBS, dtype="float32", shape=("R",)),
        *(attention if has_attention else ()),
    )


def position_axis(spec: TensorSpec) -> int | None:
    """Returns the axis of a tensor that runs over the source's positions; None if there is none."""
    return spec.shape.index("S") if "S" in spec.shape else None


def position_bytes(pair: GraphPair) -> int:
    """Returns the memory of one position of one source, in the tensors that pass between the graphs."""
    of_sources = {tensor.input for tensor in pair.state if tensor.scope == "source"}
    tensors = [spec for spec in pair.encoder.outputs if spec.name in of_sources and position_axis(spec) is not None]
    sizes = (math.prod(size for size in spec.shape if isinstance(size, int)) for spec in tensors)
    return sum(size * ITEM_BYTES.get(spec.dtype, 8) for size, spec in zip(sizes, tensors, strict=True))


def contract_differences(pair: GraphPair) -> list[str]:
    """Returns one line for each input or output of the graphs that is missing, or unknown to the stepper."""
    encoder, decoder_step, state = pair.encoder, pair.decoder_step, pair.state
    attends = has_attention(decoder_step)

    def names(specs: tuple[TensorSpec, ...]) -> set[str]:
        return {spec.name for spec in specs}

    state_inputs = {tensor.input for tensor in state}
    state_outputs = {tensor.output for tensor in state if tensor.output is not None}
    differences: list[str] = []
    for graph, kind, specs, expected in (
        (encoder, "input", encoder.inputs, names(ENCODER_INPUTS)),
        (encoder, "output", encoder.outputs, state_inputs),
        (decoder_step, "input", decoder_step.inputs, names(step_inputs(attends)) | state_inputs),
        (decoder_step, "output", decoder_step.outputs, names(step_outputs(attends)) | state_outputs),
    ):
        actual = names(specs)
        differences += [f"{graph.file}: {kind} '{name}' is missing" for name in sorted(expected - actual)]
        differences += [f"{graph.file}: {kind} '{name}' is unknown" for name in sorted(actual - expected)]
    return differences
