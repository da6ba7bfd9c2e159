"""The contract of users' own modules, which `attendant.export.export_model` takes, and the trial of a module.

A module is tried before it is traced. Every mistake becomes a message that names the user's own line.

Shapes: B sources, R rows, S source positions, V symbols of the module's target vocabulary, M queries per source.
"""

import contextlib
import re
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any, Final, Literal, NamedTuple, Protocol, cast, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from attendant.export.remedies import SQUEEZE, call_remedy, files_of, line_in, short_path
from attendant.runtime.bundle.graph_io import ENCODER_INPUTS, step_inputs, step_outputs
from attendant.runtime.bundle.manifest import StateTensor
from attendant.runtime.bundle.tokenizer import PAD_ID
from attendant.runtime.errors import UserError, reason_of
from attendant.runtime.stepper import padded_width
from attendant.training.data.vocabulary import Vocabulary

VALID: Final = "valid_positions"
"""A source tensor that the wrapper adds: True at positions that are not padding, [B, S] bool."""

RESERVED: Final = frozenset(
    {
        VALID,
        *(spec.name for spec in (*ENCODER_INPUTS, *step_inputs(has_attention=True), *step_outputs(has_attention=True))),
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
            The state tensors by name. Each has an entry per source on its first axis: [B, ...]. An axis that runs over
            source positions has length S.
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

    `shares_sources` declares it.
    """

    row_state: Sequence[str]
    shares_sources: Literal[True]

    def encode(self, source_ids: Tensor, source_lengths: Tensor) -> State:
        """Encodes sources; see Seq2SeqModule."""

    def step(
        self, previous_ids: Tensor, row_state: State, source_state: State, source_rows: Tensor, row_slots: Tensor
    ) -> tuple[Tensor, State, Tensor | None]:
        """Feeds each row its last symbol.

        `query[source_rows]` [B, M, ...] lays the queries of a source's rows side by side, and
        `context.flatten(0, 1)[row_slots]` [R, ...] returns the context of each place to its row.

        Args:
            previous_ids, row_state: as Seq2SeqModule's.
            source_state: the other tensors, as `encode` returned them: [B, S, ...].
            source_rows: [B, M] int64, the rows of each source; unused places repeat any row.
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
    """Runs a module's step with its source's tensors gathered for each row [R, S, ...], in either form.

    The step may write to the dictionaries, such as to return the row state that it got. The tensors have no gaps, as
    in a graph, so the step may use `view`.
    """
    row_state = {name: tensor.contiguous() for name, tensor in row_state.items()}
    source_state = {name: tensor.contiguous() for name, tensor in source_state.items()}
    if not shares_sources(module):
        return cast(Seq2SeqModule, module).step(previous_ids, row_state, source_state)
    places = torch.arange(len(previous_ids), device=previous_ids.device)
    return cast(SharingModule, module).step(previous_ids, row_state, source_state, places[:, None], places)


PROBES: Final = ((1, 5), (3, 8), (2, 16), (4, 1))
"""Batches on which a module is tried before it is traced: numbers of sources and their longest, at most the limit."""


class Trial(NamedTuple):
    """Facts about a module.

    Attributes:
        state: its state tensors.
        positional: name of each tensor that has an axis of source positions -> the number of that axis.
        on_padding: name of each source's tensor whose values on padding are all the same, and not zero -> that value.
        has_bans: its logits are -inf at some symbols.
        encode_alone: it has weights for each position, and none for padding.
    """

    state: tuple[StateTensor, ...]
    positional: dict[str, int]
    on_padding: dict[str, float]
    has_bans: bool
    encode_alone: bool


class _Batch(NamedTuple):
    """Sources of S = `width`, which of their positions are padding [B, S], their state, and the logits of a step."""

    width: int
    padding: Tensor
    tensors: State
    logits: Tensor


class _Watch:
    """Watches the calls of a module: errors get the user's own line, and state that stays on the module is found.

    An attribute may be set in a call and read later in that call. If a call reads it first, it is state.
    """

    def __init__(self, module: Any) -> None:
        self.module = module
        self._parts, self._files = set(map(id, module.modules())), files_of(module)
        self._places: dict[tuple[int, str], str] = {}
        """Attributes of parts of the module that calls have set -> the user's own line."""
        self._read: set[tuple[int, str]] = set()
        """Names that calls have read before they set them."""

    @contextlib.contextmanager
    def call(self, call: str, reaching: str = "") -> Iterator[None]:
        """Raises UserError, naming the user's own line, if a call of the module fails, or reads an attribute that
        another call has set. `reaching` names the largest id, for errors of indices.
        """
        with self._recorded():
            try:
                yield
            except UserError:
                raise
            except Exception as error:
                where = line_in(error, self._files)
                remedy = call_remedy(error, call, where, reaching)
                raise UserError(
                    f"{type(self.module).__name__}.{call} failed: {reason_of(error)}{where}{remedy and '; '}{remedy}"
                ) from None
        for (_, name), place in [item for item in self._places.items() if item[0] in self._read]:
            raise UserError(
                f"{type(self.module).__name__} keeps self.{name}, set at {place}, for another call: state must not "
                "stay on the module, since rows of many requests take turns: return it from encode, and from step as "
                "row state"
            )

    @contextlib.contextmanager
    def _recorded(self) -> Iterator[None]:
        """Records within a block, which is one call, what it sets and reads."""
        own: set[tuple[int, str]] = set()
        cls: Any = nn.Module
        plain = cls.__setattr__

        def record_set(part: nn.Module, name: str, value: Any) -> None:
            # torch's own layers keep results, and lazy ones become others in their first call.
            if id(part) in self._parts and not sys._getframe(1).f_globals.get("__name__", "").startswith("torch."):
                lines = [frame for frame in traceback.extract_stack() if frame.filename in self._files]
                place = f"{short_path(lines[-1].filename)}:{lines[-1].lineno}" if lines else "an unknown line"
                self._places[id(part), name] = place
                own.add((id(part), name))
            plain(part, name, value)

        def record_read(part: nn.Module, name: str) -> Any:
            if (key := (id(part), name)) not in own and key[0] in self._parts:
                self._read.add(key)
            return object.__getattribute__(part, name)

        def start() -> None:
            cls.__setattr__, cls.__getattribute__ = record_set, record_read

        def stop() -> None:
            cls.__setattr__ = plain
            del cls.__getattribute__

        start()
        try:
            with _around_compiled(stop, start):
                yield
        finally:
            stop()


@contextlib.contextmanager
def _around_compiled(before: Callable[[], None], after: Callable[[], None]) -> Iterator[None]:
    """Runs all functions that torch.compile returns in a block between two others.

    torch's scan compiles its body, and the compiler fails on modules whose attributes are recorded.
    """
    own: Any = torch
    plain = own.compile

    def compiling(*arguments: Any, **options: Any) -> Any:
        compiled = plain(*arguments, **options)

        def run(*inputs: Any, **keywords: Any) -> Any:
            before()
            try:
                return compiled(*inputs, **keywords)
            finally:
                after()

        return run

    own.compile = compiling
    try:
        yield
    finally:
        own.compile = plain


def tried(
    module: UserModule, source: Vocabulary, target: Vocabulary, *, max_positions: int, max_target_tokens: int
) -> Trial:
    """Runs a module on batches of several sizes, up to sources of `max_positions` and the steps of the longest target.
    Raises UserError if it breaks the contract.
    """
    generator = torch.Generator().manual_seed(0)
    sizes = *((number, min(width, max_positions)) for number, width in PROBES), (1, max_positions)
    watch = _Watch(module)
    batches = [_tried_batch(watch, source, target, *size, generator) for size in sizes]
    last = batches[-1].tensors
    for batch in batches:
        _refuse_other_names(f"{type(module).__name__}.encode", batch.tensors, last)
    positional: dict[str, int] = {}
    for name in last:
        shapes = [(batch.width, batch.tensors[name].shape) for batch in batches]
        if lost := [(width, shape) for width, shape in shapes if len(shape) != len(shapes[-1][1])]:
            raise UserError(
                f"{type(module).__name__}.encode returns {name} of shape {tuple(lost[0][1])} for {lost[0][0]} "
                f"positions, and {tuple(shapes[-1][1])} for {shapes[-1][0]}: {SQUEEZE}"
            )
        axes = [axis for axis in range(1, len(shapes[0][1])) if len({shape[axis] for _, shape in shapes}) > 1]
        if len(axes) > 1 or any(shape[axis] != width for axis in axes for width, shape in shapes):
            raise UserError(
                f"{type(module).__name__}.encode returns {name} of shape {tuple(shapes[-1][1])} for {shapes[-1][0]} "
                "positions: one axis may follow the source's width, and must have as many positions; pad a shorter "
                "axis by F.pad, and give it a mask of its own"
            )
        if axes:
            positional[name] = axes[0]
    state = [StateTensor(input=name, output=f"{name}_out", scope="row") for name in module.row_state]
    sources_only = [name for name in last if name not in module.row_state]
    state += [StateTensor(input=name, output=None, scope="source") for name in sources_only]
    on_padding: dict[str, float] = {}
    for name in positional.keys() & set(sources_only):
        values = torch.cat(
            [batch.tensors[name].movedim(positional[name], 1)[batch.padding].flatten() for batch in batches]
        )
        if len(values) and values[0] and (values == values[0]).all():
            on_padding[name] = values[0].item()
    if sources_only:
        state.append(StateTensor(input=VALID, output=None, scope="source"))
        positional[VALID] = 1
    _try_steps(watch, last, max_target_tokens)
    encode_alone = _tried_padded(watch, source, last, positional, max_positions)
    has_bans = any(bool(batch.logits.isneginf().any()) for batch in batches)
    return Trial(tuple(state), positional, on_padding, has_bans, encode_alone)


def _tried_batch(
    watch: _Watch, source: Vocabulary, target: Vocabulary, num_sources: int, width: int, generator: torch.Generator
) -> _Batch:
    """Encodes sources of decreasing lengths, and steps two rows of each."""
    module: UserModule = watch.module
    lengths = torch.tensor([max(1, width - number * 2) for number in range(num_sources)])
    ids = torch.randint(0, source.num_module_ids, (num_sources, width), generator=generator)
    # The largest ids, too.
    ids[0, 0] = source.num_module_ids - 1
    padding = torch.arange(width) >= lengths.unsqueeze(1)
    if (pad := source.module_ids[PAD_ID]) >= 0:  # a module may find padding by it
        ids = ids.masked_fill(ids == pad, _symbol_id(source)).masked_fill(padding, pad)
    case = f"{num_sources} sources of {width} positions"
    reaching = f"ids reach {source.num_module_ids - 1}, as in source_tokenizer, and positions {width - 1}"
    with watch.call(f"encode, called with {case},", reaching), torch.no_grad():
        tensors = module.encode(ids, lengths)
        _check_state(module, tensors, num_sources, case)
        again, first = module.encode(ids, lengths), module.encode(ids[:1], lengths[:1])
    _refuse_varying(module, "encode", "source", tensors, again, first)
    previous = torch.randint(0, target.num_module_ids, (2 * num_sources,), generator=generator)
    previous[0] = target.num_module_ids - 1
    twice = {name: tensor.repeat_interleave(2, 0) for name, tensor in tensors.items()}
    rows = {name: twice.pop(name) for name in module.row_state}
    reaching = f"ids reach {target.num_module_ids - 1}, as in target_tokenizer"
    with watch.call(f"step, called with {2 * num_sources} rows of {case},", reaching), torch.no_grad():
        versions = {name: tensor._version for name, tensor in (rows | twice).items()}
        stepped = step_gathered(module, previous, rows, twice)
        if changed := [name for name, tensor in (rows | twice).items() if tensor._version != versions[name]]:
            raise UserError(
                f"{type(module).__name__}.step changes its argument {changed[0]} in place: make a new tensor"
            )
        _check_step(stepped, rows, target, 2 * num_sources, width if twice else 0)
        repeated = step_gathered(module, previous, rows, twice)
        parts = ({name: tensor[:1] for name, tensor in part.items()} for part in (rows, twice))
        alone = step_gathered(module, previous[:1], *parts)
    of_step = [{"logits": logits, **state} for logits, state, _ in (stepped, repeated, alone)]
    _refuse_varying(module, "step", "row", *of_step)
    return _Batch(width, padding, tensors, stepped[0])


def _symbol_id(vocabulary: Vocabulary) -> int:
    """Returns an id that is not that of padding."""
    pad = vocabulary.module_ids[PAD_ID]
    return pad - 1 if pad > 0 else 1 + pad


def _refuse_varying(module: UserModule, method: str, unit: str, tensors: State, again: State, first: State) -> None:
    """Raises UserError if a method's results for a batch depend on more than its arguments, or a row's on other rows.

    Args:
        unit: "source" or "row", the first of which has no padding.
        again, first: results for the same batch, and for its first source or row alone.
    """
    name = f"{type(module).__name__}.{method}"
    for state in (again, first):
        _refuse_other_names(name, tensors, state)
    for key, tensor in tensors.items():
        if not torch.equal(again[key].nan_to_num(), tensor.nan_to_num()):
            raise UserError(
                f"{name} gives other {key} for the same arguments: it must be a function of them (no dropout in "
                "evaluation, no random numbers, nothing kept on the module)"
            )
        alone, own = first[key].double(), tensor[:1].double()
        if own.shape != alone.shape:
            raise UserError(
                f"{name} returns {key} of shape {tuple(alone.shape)} for one {unit}, must be {tuple(own.shape)}: "
                f"{SQUEEZE}"
            )
        if not torch.allclose(own, alone, rtol=1e-2, atol=1e-2, equal_nan=True):
            raise UserError(
                f"{name}: {key} of a {unit} must not depend on the other {unit}s of the batch: compute each {unit} by "
                "itself (no means over the first axis, no batch normalization in training mode)"
            )


def _refuse_other_names(name: str, state: State, other: State) -> None:
    """Raises UserError if a method returned tensors of other names for other arguments."""
    if differing := sorted(state.keys() ^ other.keys()):
        raise UserError(f"{name} returns {differing[0]} only for some batches: return the same names for every batch")


def _try_steps(watch: _Watch, tensors: State, max_target_tokens: int) -> None:
    """Steps a row to the end of the longest target if its state may count the steps, as for learned positions. Raises
    UserError if the module fails.
    """
    module: UserModule = watch.module
    sources = dict(tensors)
    rows: State = {name: sources.pop(name) for name in module.row_state}
    if all(tensor.is_floating_point() for tensor in rows.values()):
        return
    call = f"step, called {max_target_tokens + 1} times in turn,"
    try:
        with watch.call(call, f"steps reach {max_target_tokens}"), torch.no_grad():
            for _ in range(max_target_tokens + 1):
                _, rows, _ = step_gathered(module, torch.zeros(1, dtype=torch.int64), rows, sources)
    except UserError as error:
        raise UserError(
            f"{error.summary}; a target has up to {max_target_tokens} symbols and EOS: lower max_target_tokens (of "
            "ONNX graphs, target.max_tokens) if the module takes fewer"
        ) from None


def _tried_padded(
    watch: _Watch, source: Vocabulary, tensors: State, positional: Mapping[str, int], max_positions: int
) -> bool:
    """Runs a module's step on the longest source, whose state is `tensors`, with as much padding as servers add, and
    its encoder on a source of that width; returns Trial.encode_alone.
    """
    module: UserModule = watch.module
    width = padded_width(max_positions)
    wide = {name: widened(tensor, positional.get(name), width) for name, tensor in tensors.items()}
    rows = {name: wide.pop(name) for name in module.row_state}
    with watch.call(f"step, called with a source padded to {width} positions,"), torch.no_grad():
        step_gathered(module, torch.zeros(1, dtype=torch.int64), rows, wide)
    try:
        with torch.no_grad():
            module.encode(torch.full((1, width), _symbol_id(source)), torch.tensor([width]))
    except Exception:  # a module may raise anything
        return True
    return False


def widened(tensor: Tensor, axis: int | None, width: int) -> Tensor:
    """Returns a tensor with zeros after the positions on this axis; itself if it has no such axis."""
    if axis is None or tensor.shape[axis] == width:
        return tensor
    padding = list(tensor.shape)
    padding[axis] = width - tensor.shape[axis]
    return torch.cat([tensor, tensor.new_zeros(padding)], axis)


def check_module(module: UserModule) -> None:
    """Raises UserError if a module's weights, its parts or its `row_state` can't be exported as they are."""
    name, own = type(module).__name__, cast(nn.Module, module)
    for weight, tensor in own.state_dict().items():
        if tensor.device.type != "cpu" or (tensor.is_floating_point() and tensor.dtype != torch.float32):
            raise UserError(
                f"{name}'s weights {weight} are {tensor.dtype} on {tensor.device}: fp32 is traced, on the CPU: call "
                "module.cpu().float() first"
            )
    for weight, tensor in (*own.named_parameters(), *own.named_buffers()):
        if is_lazy(tensor):
            raise UserError(f"{name}'s weights {weight} have no values yet: load trained weights into the module first")
        # A bias may ban symbols by -inf; a buffer may be a table of bounds.
        if tensor.isnan().any() or (isinstance(tensor, nn.Parameter) and tensor.isposinf().any()):
            raise UserError(
                f"{name}'s weights {weight} are NaN or infinite: the training has diverged; export an earlier "
                "checkpoint"
            )
    parameters = set(map(id, own.parameters()))
    for path, part in own.named_modules(prefix=name):
        if isinstance(part, torch.jit.ScriptModule):
            raise UserError(f"{path} is TorchScript, which can't be traced: give the Python module that it was made of")
        if any(type(hook).__module__.startswith("torch.nn.utils") for hook in part._forward_pre_hooks.values()):
            raise UserError(
                f"{path} computes its weights in a hook: make them permanent first, by remove_weight_norm, "
                "remove_spectral_norm or prune.remove"
            )
        for field, value in vars(part).items():
            values = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
            hidden = (each for each in values if isinstance(each, nn.Module) and field != "_modules")
            if any(id(parameter) not in parameters for each in hidden for parameter in each.parameters()):
                raise UserError(
                    f"{path}.{field} is a {type(value).__name__} of modules, whose weights state_dict leaves out: make "
                    "it an nn.ModuleList or nn.ModuleDict, or delete it if encode and step do not use it"
                )
    names: Any = module.row_state
    is_listed = isinstance(names, Collection) and not isinstance(names, str)
    if not is_listed or not all(isinstance(each, str) for each in names) or not 0 < len(names) == len(set(names)):
        raise UserError(f"{name}.row_state is {names!r}: must be a tuple of names, each once, such as ('hidden',)")


NO_NAN: Final = "mask by -1e9 instead of -inf, which all positions may have, and add 1e-9 before a log or a division"


def _refuse_others(method: str, tensors: object) -> None:
    """Raises UserError unless these are a dictionary of tensors."""
    if not isinstance(tensors, Mapping):
        remedy = "; vars(...) makes one of a dataclass" if is_dataclass(tensors) else ""
        raise UserError(f"{method} must return a dictionary of tensors, got {type(tensors).__name__}{remedy}")
    for key, value in tensors.items():
        if not isinstance(value, Tensor):
            raise UserError(
                f"{method} returns {key} as {type(value).__name__}, must be a tensor: unpack sequences by "
                "pad_packed_sequence, and return the parts of a tuple under names of their own"
            )


def _check_state(module: UserModule, tensors: State, num_sources: int, case: str) -> None:
    name = type(module).__name__
    _refuse_others(f"{name}.encode", tensors)
    if missing := [row for row in module.row_state if row not in tensors]:
        raise UserError(f"{name}.row_state names {', '.join(missing)}, which encode does not return")
    for key, tensor in tensors.items():
        if not re.fullmatch(r"[a-z][a-z0-9_]*", str(key)) or key in RESERVED or key.endswith("_out"):
            raise UserError(
                f"{name}.encode returns {key!r}: choose another name, of a-z, 0-9 and _, that does not end with _out "
                "and is none of the graphs' own, such as attention"
            )
        if tensor.dim() < 1 or tensor.shape[0] != num_sources:
            raise UserError(
                f"{name}.encode returns {key} of shape {tuple(tensor.shape)} for {case}: its first axis must have "
                f"{num_sources} entries, one for each source (for layers first, as torch's recurrent layers return "
                "their states, use .transpose(0, 1))"
            )
        if tensor.dtype not in (torch.float32, torch.int64, torch.bool):
            raise UserError(f"{name}.encode returns {key} as {tensor.dtype}: float32, int64 and bool can be exported")
        # The first source has no padding.
        if tensor[0].isnan().any():
            raise UserError(f"{name}.encode returns {key} with NaN for {case}: {NO_NAN}")


def _check_step(stepped: Any, rows: State, target: Vocabulary, num_rows: int, width: int) -> None:
    if not isinstance(stepped, tuple) or len(stepped) != 3:
        actual = f"{len(stepped)} values" if isinstance(stepped, tuple) else type(stepped).__name__
        raise UserError(f"step must return a tuple (logits, row state, attention or None), got {actual}")
    logits, new, attention = stepped
    _refuse_others("step", {"logits": logits} if attention is None else {"logits": logits, "attention": attention})
    _refuse_others("step", new)
    if tuple(logits.shape) != (num_rows, target.num_module_ids):
        raise UserError(
            f"step returns logits of shape {tuple(logits.shape)}, must be [{num_rows} rows, {target.num_module_ids} "
            "symbols of target_tokenizer]; leave out symbols that the module pads its vocabulary with, and add the "
            "probability of a copied position to the symbol of its source id (scatter_add)"
        )
    # -inf bans a symbol.
    if not (logits < torch.inf).all() or logits.isneginf().all(1).any():
        raise UserError(f"step returns logits that are {'NaN' if logits.isnan().any() else 'infinite'}: {NO_NAN}")
    if (logits >= 0).all() and torch.allclose(logits.double().sum(1), torch.ones(num_rows).double(), atol=1e-3):
        raise UserError(
            "step returns probabilities: return the logits, without a softmax, or log-probabilities (log_softmax)"
        )
    if new.keys() != rows.keys():
        raise UserError(f"step returns the row state {', '.join(new)}, must be {', '.join(rows)}")
    for name, tensor in new.items():
        if tensor.shape != rows[name].shape or tensor.dtype != rows[name].dtype:
            raise UserError(
                f"step returns {name} as {tensor.dtype} {tuple(tensor.shape)}, must stay "
                f"{rows[name].dtype} {tuple(rows[name].shape)}; a state that grows with the steps gets its last size "
                "in encode, and a count of the steps, at which a step fills it by torch.where"
            )
    if attention is None:
        return
    if not width:
        raise UserError(
            "step returns attention, and all tensors of encode are row state: leave those that steps do not change, "
            "such as the encoder's outputs and the mask, out of row_state"
        )
    if tuple(attention.shape) != (num_rows, width):
        raise UserError(f"step returns attention of shape {tuple(attention.shape)}, must be [{num_rows}, {width}]")
    if attention.isnan().any():
        raise UserError(f"step returns attention that is NaN: {NO_NAN}")
    if (attention < 0).any():
        raise UserError("step returns attention below 0: return the weights after the softmax, or None")
