"""Tests of errors of users' modules: each names the user's own line and the remedy."""

import math
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest
import torch
from torch import nn

from attendant.export import export_model
from attendant.export.remedies import explained
from attendant.runtime.errors import UserError
from tests.own_models import (
    TINY,
    Plain,
    TutorialTranslator,
    user_model,
)


def encodes(name: str, change: Callable[[torch.Tensor], object]) -> type[TutorialTranslator]:
    """Returns a class whose encode sets this name to a value made from the hidden states."""

    class Mistaken(TutorialTranslator):
        def encode(self, source_ids, source_lengths):
            state = super().encode(source_ids, source_lengths)
            return {**state, name: change(state["hidden"])}

    return Mistaken


def steps(place: int, change: Callable[[torch.Tensor], object]) -> type[TutorialTranslator]:
    """Returns a class whose step changes the result at a place: 0 is logits, 2 is attention."""

    class Mistaken(TutorialTranslator):
        def step(self, previous_ids, row_state, source_state):
            results = list(super().step(previous_ids, row_state, source_state))
            results[place] = change(results[place])
            return tuple(results)

    return Mistaken


def changed(change: Callable[[TutorialTranslator], object], **attributes: object) -> type[TutorialTranslator]:
    """Returns a class whose objects are changed after they were made."""

    def initialize(self: TutorialTranslator) -> None:
        TutorialTranslator.__init__(self)
        change(self)

    return type("Mistaken", (TutorialTranslator,), {"__init__": initialize, **attributes})


class KeepsState(TutorialTranslator):
    def encode(self, source_ids, source_lengths):
        state = super().encode(source_ids, source_lengths)
        self.last = state["hidden"]  # the mistake
        return state

    def step(self, previous_ids, row_state, source_state):
        return super().step(previous_ids, {"hidden": self.last[:1].expand_as(row_state["hidden"])}, source_state)


class Counts(TutorialTranslator):
    num_steps = 0

    def step(self, previous_ids, row_state, source_state):
        self.num_steps += 1  # the mistake
        return super().step(previous_ids, row_state, source_state)


class DependsOnValues(Plain):
    def encode(self, source_ids, source_lengths):
        state = super().encode(source_ids, source_lengths)
        if source_lengths.max() > 3:  # the mistake
            state["hidden"] = state["hidden"] + 1
        return state


class LoopsOverPositions(Plain):
    def encode(self, source_ids, source_lengths):
        state = super().encode(source_ids, source_lengths)
        outputs = [state["outputs"][:, place] * 2 for place in range(source_ids.shape[1])]
        return {**state, "outputs": torch.stack(outputs, 1)}


class Pyramid(Plain):
    """An encoder whose outputs have half of the source's positions, as of "listen, attend and spell"."""

    def encode(self, source_ids, source_lengths):
        state = super().encode(source_ids, source_lengths)
        return {**state, "outputs": state["outputs"][:, ::2], "mask": state["mask"][:, ::2]}

    def step(self, previous_ids, row_state, source_state):
        return *super().step(previous_ids, row_state, source_state)[:2], None


class PacksByNumbers(Plain):
    def encode(self, source_ids, source_lengths):
        state = super().encode(source_ids, source_lengths)
        lengths = source_lengths.numpy()  # the mistake
        packed = nn.utils.rnn.pack_padded_sequence(state["outputs"], torch.as_tensor(lengths), True)
        return {**state, "outputs": nn.utils.rnn.pad_packed_sequence(packed, batch_first=True)[0]}


class LoopsOverRows(Plain):
    def step(self, previous_ids, row_state, source_state):
        hidden = torch.cat(row_state["hidden"].split(1))
        return super().step(previous_ids, {"hidden": hidden}, source_state)


class IndexesByMask(Plain):
    def encode(self, source_ids, source_lengths):
        state = super().encode(source_ids, source_lengths)
        outputs = state["outputs"].clone()
        outputs[~state["mask"]] = 0
        return {**state, "outputs": outputs}


class WritesToArguments(TutorialTranslator):
    def step(self, previous_ids, row_state, source_state):
        row_state["hidden"].mul_(0.9)
        return super().step(previous_ids, row_state, source_state)


class OtherName(TutorialTranslator):
    def step(self, previous_ids, row_state, source_state):
        return super().step(previous_ids, {"hidden": row_state["h"]}, source_state)  # the mistake


class NamesByBatch(TutorialTranslator):
    def encode(self, source_ids, source_lengths):
        state = super().encode(source_ids, source_lengths)
        return state if len(source_ids) > 1 else {**state, "alone": state["hidden"]}


class NamesByWidth(TutorialTranslator):
    def encode(self, source_ids, source_lengths):
        state = super().encode(source_ids, source_lengths)
        return state if source_ids.shape[1] > 5 else {**state, "short": state["hidden"]}


class StepNamesByBatch(TutorialTranslator):
    def step(self, previous_ids, row_state, source_state):
        logits, state, attention = super().step(previous_ids, row_state, source_state)
        return logits, state if len(previous_ids) > 1 else {"other": state["hidden"]}, attention


class TwelveSteps(Plain):
    """A module with learned places for 12 steps; its limit of 12 symbols takes 13 steps."""

    row_state = ("hidden", "place")

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Embedding(12, 16)

    def encode(self, source_ids, source_lengths):
        return {**super().encode(source_ids, source_lengths), "place": torch.zeros_like(source_lengths)}

    def step(self, previous_ids, row_state, source_state):
        place = row_state["place"]
        hidden = row_state["hidden"] + self.places(place)  # the mistake
        logits, state, weights = super().step(previous_ids, {"hidden": hidden}, source_state)
        return logits, {**state, "place": place + 1}, weights


class Grows(Plain):
    row_state = ("hidden", "past")

    def encode(self, source_ids, source_lengths):
        return {**super().encode(source_ids, source_lengths), "past": torch.zeros(len(source_ids), 0, 16)}

    def step(self, previous_ids, row_state, source_state):
        logits, state, weights = super().step(previous_ids, row_state, source_state)
        return logits, {**state, "past": torch.cat([row_state["past"], state["hidden"][:, None]], 1)}, weights


class NamesSourcesAsRows(Plain):
    row_state = ("hidden", "outputs", "mask")

    def step(self, previous_ids, row_state, source_state):
        logits, state, weights = super().step(previous_ids, row_state, row_state)
        return logits, {**row_state, **state}, weights


class Cumulates(Plain):
    def encode(self, source_ids, source_lengths):
        state = super().encode(source_ids, source_lengths)
        return {**state, "outputs": state["outputs"].cumprod(1)}


class MixesNumbers(Plain):
    def step(self, previous_ids, row_state, source_state):
        logits, state, weights = super().step(previous_ids, row_state, source_state)
        return logits, state, weights.clamp(1e-7, 1)


class ChangesPacked(Plain):
    def encode(self, source_ids, source_lengths):
        state = super().encode(source_ids, source_lengths)
        packed = nn.utils.rnn.pack_padded_sequence(state["outputs"], source_lengths, True, enforce_sorted=False)
        packed = packed._replace(data=torch.tanh(packed.data))  # the mistake
        return {**state, "outputs": nn.utils.rnn.pad_packed_sequence(packed, batch_first=True)[0]}


class ComparesMasks(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.TransformerDecoder(nn.TransformerDecoderLayer(16, 2, 16, batch_first=True), 1)

    def step(self, previous_ids, row_state, source_state):
        logits, state, weights = super().step(previous_ids, row_state, source_state)
        causal = nn.Transformer.generate_square_subsequent_mask(1)
        hidden = self.layers(state["hidden"][:, None], source_state["outputs"], causal)  # the mistake
        return logits, {"hidden": hidden[:, 0]}, weights


class ChecksValues(Plain):
    def step(self, previous_ids, row_state, source_state):
        assert (previous_ids >= 0).all()  # the mistake
        return super().step(previous_ids, row_state, source_state)


@dataclass
class Encoded:
    hidden: torch.Tensor
    outputs: torch.Tensor
    mask: torch.Tensor


class LosesPositions(Plain):
    def encode(self, source_ids, source_lengths):
        state = super().encode(source_ids, source_lengths)
        return {**state, "extra": state["outputs"].squeeze(1)}


class CopiesTensors(Plain):
    def encode(self, source_ids, source_lengths):
        return asdict(Encoded(**super().encode(source_ids, source_lengths)))  # the mistake


class HalvesPrecision(Plain):
    def step(self, previous_ids, row_state, source_state):
        with torch.autocast("cpu", torch.bfloat16):
            logits, state, weights = super().step(previous_ids, row_state, source_state)
        return logits.float(), {"hidden": state["hidden"].float()}, weights.float()


class FewSymbols(TutorialTranslator):
    def encode(self, source_ids, source_lengths):
        self.encoder_embedding.weight.data = self.encoder_embedding.weight.data[:4]
        return super().encode(source_ids, source_lengths)


class OnAnotherDevice(TutorialTranslator):
    def encode(self, source_ids, source_lengths):
        return super().encode(source_ids.to("cuda"), source_lengths)  # the mistake


class Wrapped(nn.DataParallel):
    def __init__(self) -> None:
        super().__init__(TutorialTranslator())


class OnADeviceWithoutDriver(TutorialTranslator):
    def encode(self, source_ids, source_lengths):
        raise RuntimeError("Found no NVIDIA driver on your system.")  # the mistake


def line_of_the_mistake(module: type[nn.Module]) -> str:
    lines = Path(__file__).read_text().splitlines()
    begin = next(number for number, line in enumerate(lines, 1) if line.startswith(f"class {module.__name__}("))
    return str(next(n for n, line in enumerate(lines, 1) if n > begin and line.endswith("# the mistake")))


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (
            KeepsState,
            r"KeepsState keeps self\.last, set at \S*test_remedies\.py:{line}, for another call: .* return it",
        ),
        (Counts, r"Counts keeps self\.num_steps, set at \S*test_remedies\.py:{line}, for another call: .* return it"),
        (
            DependsOnValues,
            r"DependsOnValues can't be traced at \S*test_remedies\.py:{line}: if .*: Python's control flow",
        ),
        (LoopsOverPositions, r"traced.*: the number of positions is frozen .*, a loop over positions by nn\.LSTM"),
        (Pyramid, r"encode returns outputs of shape \(1, 21, 16\) for 41 positions: .*; pad a shorter axis by F\.pad"),
        (PacksByNumbers, r"traced at \S*:{line}: .*\.numpy\(\).*; pack_padded_sequence takes the tensor of lengths"),
        (LoopsOverRows, r"can't be traced.*: the number of rows is frozen .* replace a loop over sources or rows by"),
        (IndexesByMask, r"IndexesByMask can't be traced: .*masked_fill instead of x\[mask\].* \(bundles may not"),
        (WritesToArguments, r"WritesToArguments\.step changes its argument hidden in place: make a new tensor"),
        (OtherName, r"OtherName\.step, .* failed: 'h' at \S*:{line}: .*row_state in its second argument"),
        (NamesByBatch, r"encode returns alone only for some batches: return the same names"),
        (NamesByWidth, r"encode returns short only for some batches: return the same names"),
        (StepNamesByBatch, r"step returns hidden only for some batches: return the same names"),
        (ComparesMasks, r"can't be traced at .*:{line}: .*state whether it is, by tgt_is_causal=True"),
        (ChecksValues, r"can't be traced at .*:{line}: .*: use .* instead of if, while, assert, "),
        (CopiesTensors, r"can't be traced at .*:{line}: .*vars\(x\) instead of dataclasses\.asdict\(x\)"),
        (HalvesPrecision, r"can't be traced: fp32 is traced: leave out torch\.autocast"),
        (FewSymbols, r"index out of range .* at .*; ids reach 13, .*, and positions \d: the embedding needs"),
        (TwelveSteps, r"index out of range .* at .*:{line}: .*; steps reach 12: .* lower max_target_tokens"),
        (Grows, r"step returns past as .*, must stay .* \(2, 0, 16\); a state that grows .* its last size in encode"),
        (NamesSourcesAsRows, r"step returns attention, .* out of row_state"),
        (Cumulates, r"Cumulates can't be traced: torch can't export prod to ONNX: write it with other operations"),
        (MixesNumbers, r"numbers of one type, such as x\.clamp\(1e-7, 1\.0\)"),
        (ChangesPacked, r"can't be traced at .*:{line}: .*a packed sequence may only go through nn\.LSTM"),
        (OnAnotherDevice, r"OnAnotherDevice\.encode.*:{line}: .*; the export runs on the CPU: make tensors on the arg"),
        (OnADeviceWithoutDriver, r":{line}: .*; the export runs on the CPU: make tensors on the arg"),
        (Wrapped, r"Wrapped is no model to export: it lacks row_state, encode, step: give its own module, \.module"),
        (changed(nn.Module.half), r"weights \S+ are torch.float16 on cpu: .*: call module\.cpu\(\)\.float\(\) first"),
        (changed(lambda module: module.out.weight.data.fill_(math.nan)), "weights out.weight are NaN or infinite: "),
        (changed(lambda module: setattr(module, "layers", [nn.Linear(3, 3)])), r"\.layers is a list of modules, "),
        (
            changed(lambda module: nn.utils.spectral_norm(module.keys)),
            r"\.keys computes its weights in a hook: .*remove",
        ),
        pytest.param(
            changed(lambda module: setattr(module, "out", torch.jit.script(module.out))),
            r"\.out is TorchScript, .*: give",
            marks=pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated"),
        ),
        (changed(lambda module: setattr(module, "words", (w for w in "ab"))), "can't be copied, .* cannot pickle"),
        (changed(id, row_state=("h", "h")), "must be a tuple of names, each once"),
        (changed(id, row_state=("cell",)), "row_state names cell, which encode does not return"),
        (changed(id, shares_sources=True), "step.* its arguments are .* with shares_sources, of SharingModule"),
        (changed(id, encode=lambda *_: torch.zeros(1)), "encode must return a dictionary of tensors, got Tensor"),
        (changed(id, encode=lambda *_: Encoded(*torch.zeros(3, 1))), "a dictionary of tensors, got Encoded; vars"),
        (encodes("hidden", lambda x: (x, x)), "encode returns hidden as tuple, must be a tensor"),
        (encodes("hidden", lambda x: x[None].repeat(2, 1, 1)), r"hidden of shape \(2, .*transpose\(0, 1\)"),
        (changed(id, step=lambda *_: [1, 2, 3]), "step must return a tuple .*, got list"),
        (encodes("enc_out", lambda x: x), "encode returns 'enc_out': .* that does not end with _out"),
        (encodes("hidden", lambda x: torch.dropout(x, 0.5, True)), "encode gives other hidden for the same arguments"),
        (encodes("hidden", lambda x: x / 0 * 0), "encode returns hidden with NaN for 1 sources of 5 positions"),
        (steps(0, lambda x: x - x.mean(0)), "step: logits of a row must not depend on the other rows"),
        (
            steps(0, lambda x: x.squeeze()),
            r"logits of shape \(14,\) for one row, must be \(1, 14\): squeeze\(\) also rem",
        ),
        (steps(0, lambda x: x.squeeze().log_softmax(1)), r"got 1\) at .*; squeeze\(\) also removes .* squeeze\(1\)"),
        (LosesPositions, r"returns extra of shape \(4, 16\) for 1 positions, .*: squeeze\(\) also removes"),
        (steps(0, lambda x: x.softmax(-1)), "step returns probabilities: return the logits"),
        (steps(0, lambda x: x.masked_fill(x > 0, math.inf)), "step returns logits that are infinite: mask by -1e9"),
        (steps(0, lambda x: x[:, :9]), r"step returns logits of shape .*, must be \[2 rows, 14 symbols"),
        (steps(0, lambda x: torch.cat([x, x[:, :5]], 1)), "a copied position to the symbol of its source id"),
        (steps(2, lambda x: x[:, None]), r"step returns attention of shape \(2, 1, 5\), must be \[2, 5\]"),
        (steps(2, lambda x: x * math.nan), "step returns attention that is NaN"),
        (steps(2, torch.log), "step returns attention below 0: return the weights after the softmax"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_mistake_is_named_with_its_line(
    module: type[nn.Module], message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    expected = message.replace("{line}", line_of_the_mistake(module) if "{line}" in message else "")
    with pytest.raises(UserError) as caught:
        export_model(user_model(module()), tmp_path / "bundle", plan=TINY)
    assert re.search(expected, str(caught.value)), caught.value
    assert len(str(caught.value).splitlines()) == 1
    assert not (tmp_path / "bundle").exists()
    # torch prints the part of a graph that it has traced.
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("only 4D query, key, and value are supported", r"query\.unsqueeze\(1\)"),
        (
            "return _Packed(padded, lengths)\nCould not extract specialized integer from data-dependent u0",
            r"\.tolist\(\)",
        ),
        ("'_Packed' object has no attribute 'data'", "change the padded tensor"),
        ("conflicts between user-specified ranges and inferred ranges", r"torch's scan .*F\.one_hot"),
    ],
)
def test_errors_of_the_exporter_have_their_remedy(text: str, remedy: str) -> None:
    assert re.search(remedy, str(explained(RuntimeError(text), Plain())))
