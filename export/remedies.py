"""Errors of users' modules: the user's own line, and the remedy."""

import contextlib
import inspect
import linecache
import re
import traceback
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final, cast

from attendant.export.tracing import NotPortable
from attendant.runtime.errors import UserError, reason_of

SQUEEZE: Final = "squeeze() also removes an axis of one source, row or position: name the axis, such as squeeze(1)"


def call_remedy(error: Exception, call: str, where: str, reaching: str) -> str:
    """Returns the remedy for an error of a module's call, which was at a line of the user's own, `where`."""
    if isinstance(error, TypeError) and not where:
        return "its arguments are those of attendant.export.Seq2SeqModule; with shares_sources, of SharingModule"
    if re.search(r"\b(cuda|nvidia|xpu|mps)\b|same device", str(error), re.IGNORECASE):
        return "the export runs on the CPU: make tensors on the arguments' device, not on a fixed one"
    if isinstance(error, IndexError) and reaching:
        is_axis = "Dimension out of range" in str(error)
        return SQUEEZE if is_axis else f"{reaching}: the embedding needs that many rows"
    if isinstance(error, KeyError) and call.startswith("step"):
        return "a step gets the tensors of row_state in its second argument, and all others of encode in its third"
    if isinstance(error, RuntimeError | IndexError | AssertionError | ValueError):
        return (
            "every number of sources, positions (up to max_source_tokens, BOS and EOS) and rows must work: take sizes "
            "from the arguments' shapes (source_ids.shape, previous_ids.shape), not from numbers"
        )
    return ""


def short_path(file: str) -> str:
    """Returns a file's path, relative to the working directory if it is in there."""
    path = Path(file)
    with contextlib.suppress(ValueError):
        return str(path.relative_to(Path.cwd()))
    return str(path)


def files_of(module: Any) -> set[str]:
    """Returns the source files of the classes of a module and its parts that are not torch's own."""
    files = set()
    for cls in {cls for part in (module, *module.modules()) for cls in type(part).__mro__}:
        if not cls.__module__.startswith(("torch.", "attendant.")) and cls is not object:
            with contextlib.suppress(TypeError, OSError):
                files.add(str(inspect.getsourcefile(cls)))
    return files


def line_in(error: BaseException, files: set[str]) -> str:
    """Returns " at FILE:LINE: code" of the innermost line of the user's own files in an error; empty if none."""
    places = [(frame.filename, frame.lineno or 0) for frame in traceback.extract_tb(error.__traceback__)]
    places += [(file, int(line)) for file, line in re.findall(r'File "([^"]+)", line (\d+)', str(error))]
    places += [(file, int(line)) for file, line in re.findall(r"\b(/[^\s:]+\.py):(\d+)\b", str(error))]
    own = [place for place in places if place[0] in files]
    if not own:
        return ""
    file, line = own[-1]
    code = linecache.getline(file, line).strip()
    return f" at {short_path(file)}:{line}: {code}"


def _frozen(sizes: Collection[tuple[str, str]]) -> str:
    """Returns the name of a size that torch.export has frozen, from the names of inputs and axes that have it."""
    if ("previous_ids", "0") in sizes:
        return "the number of rows"
    if not sizes:
        return "a size"
    return "the number of sources" if all(axis == "0" for _, axis in sizes) else "the number of positions"


def explained(error: Exception, module: Any) -> UserError:
    """Returns an error of torch's exporter as a UserError that names the user's own line."""
    causes = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None and cause not in causes:
        causes.append(cast(Exception, cause))
    files = files_of(module)
    where = next((line for cause in reversed(causes) if (line := line_in(cause, files))), "")
    text = " ".join(str(cause) for cause in causes)
    functions = {frame.f_code.co_name for cause in causes for frame, _ in traceback.walk_tb(cause.__traceback__)}
    if isinstance(error, NotPortable):
        remedy = (
            "write it with other operations, such as torch.where or masked_fill instead of x[mask], and topk(1) "
            "instead of argmax and of max over an axis"
        )
    elif missing := re.search(r"No ONNX function found for <OpOverload\(op='\w+\.(\w+)'", text):
        remedy = (
            f"torch can't export {missing[1]} to ONNX: write it with other operations; if it computes weights, make "
            "them permanent by torch.nn.utils.parametrize.remove_parametrizations"
        )
    elif "compatible OpOverload for aten.clamp" in text:
        remedy = "torch can't export a clamp by an integer and a float: numbers of one type, such as x.clamp(1e-7, 1.0)"
    elif "_detect_is_causal_mask" in functions:
        remedy = (
            "torch compares the mask with a causal one: state whether it is, by tgt_is_causal=True (or is_causal of "
            "nn.TransformerEncoder)"
        )
    elif "deepcopy" in functions and "data pointer" in text:
        remedy = "copy.deepcopy can't copy a tensor here: use .clone(), and vars(x) instead of dataclasses.asdict(x)"
    elif re.search(r"data-dependent|GuardOnDataDependent|Could not guard|_local_scalar_dense|(item|numpy)\(\)", text):
        remedy = (
            "Python's control flow depends on a tensor's values: use torch.where, masks or torch.arange(width) < "
            "lengths instead of if, while, assert, .item(), .tolist(), .numpy() and max() of lengths; "
            "pack_padded_sequence takes the tensor of lengths"
        )
    elif "_Packed" in text:
        remedy = (
            "a packed sequence may only go through nn.LSTM, nn.GRU, nn.RNN and pad_packed_sequence: change the padded "
            "tensor before it is packed, or after it is unpacked"
        )
    elif "only 4D query" in text:
        remedy = (
            "scaled_dot_product_attention needs an axis of heads: add it by query.unsqueeze(1), also to keys and "
            "values, and take it off the result"
        )
    elif re.search(r"specializ|Constraints violated|inferred ranges", text):
        sizes = re.findall(r"dimension inputs\['(\w+)'\]\S*\.shape\[(\d)\]", text)
        remedy = (
            f"{_frozen(sizes)} is frozen to the example's: take it from an argument's shape (x.shape[0], not len(x), "
            "int(...) or a number), replace a loop over sources or rows by operations on all of them (such as gather), "
            "a loop over positions by nn.LSTM, nn.GRU, operations on all positions or torch's scan "
            "(docs/export-your-own.md#cells-of-your-own), and F.one_hot(x, size) by x[..., None] == torch.arange(size)"
        )
    elif "bfloat16" in text:
        remedy = "fp32 is traced: leave out torch.autocast and .bfloat16()"
    else:
        remedy = "torch.export can't trace this; write it with operations on tensors"
    return UserError(f"{type(module).__name__} can't be traced{where}: {remedy} ({reason_of(causes[-1])})")
