"""Tests of users' models: answers as from a naive loop around the module, padding, weights, fields and data."""

import json
import math
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import cast
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers.models import WordLevel
from tokenizers.processors import BertProcessing
from torch import nn
from torch._higher_order_ops import scan

import attendant
from attendant.export import UserModel, export_model
from attendant.export import model as own_export
from attendant.export.__main__ import main
from attendant.export.bundle_writer import REWRITERS
from attendant.export.model import load_user_model
from attendant.export.verification.probes import FULL_PLAN
from attendant.runtime.bundle.manifest import Precision
from attendant.runtime.errors import UserError, VerificationFailed
from attendant.runtime.onnx.device import DeviceStepper
from tests.own_models import (
    SOURCES,
    SYMBOLS,
    TINY,
    PackedDotAttention,
    Plain,
    SharedDotAttention,
    SsruStudent,
    TutorialTranslator,
    assert_answers,
    random_model,
    random_sources,
    user_model,
)


@pytest.fixture(scope="module")
def tutorial(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, UserModel]:
    """Exports the tutorial's model with every field set, for texts that its user segments."""
    fields = {"source_kind": "tokens", "target_kind": "tokens", "prepend_bos": True, "length_penalty": 0.5}
    origin = {"evaluation": "BLEU 30", 1: 2}  # the name of a recipe's table
    model = UserModel(**{**vars(random_model(TutorialTranslator)), **fields, "beam_size": 3, "origin": origin})
    path = tmp_path_factory.mktemp("tutorial") / "mine"
    cast(nn.Module, model.module).train()
    export_model(model, path, sources=["a b c", "d e f g"], precisions=("fp32", "int8", "fp16"), plan=TINY)
    assert all(part.training for part in cast(nn.Module, model.module).modules())
    cast(nn.Module, model.module).eval()
    return path, model


def test_fields_of_a_user_model_reach_the_bundle(tutorial: tuple[Path, UserModel]) -> None:
    path, model = tutorial
    manifest = json.loads((path / "manifest.json").read_text())
    assert manifest["name"] == "mine"
    assert (manifest["decoding"]["beam_size"], manifest["decoding"]["length_penalty"]) == (3, 0.5)
    assert (manifest["limits"]["max_source_tokens"], manifest["limits"]["max_target_tokens"]) == (40, 12)
    assert manifest["source"]["tokens_only"] and manifest["target"]["tokens_only"]
    golden = (path / "golden.jsonl").read_text()
    assert {tuple(json.loads(line)["source_tokens"]) for line in golden.splitlines()} <= {tuple("abc"), tuple("defg")}
    assert_answers(path, model, random_sources(6))


@pytest.mark.parametrize(("longest", "probed"), [(10, 10), (200, 200), (9999, own_export.MAX_PROBED)])
def test_sources_as_long_as_a_module_takes_are_probed(longest: int, probed: int) -> None:
    """In a batch with a long source, a sum over positions may lose the values of a short source."""
    assert max(own_export._within(FULL_PLAN, longest).source_lengths) == probed
    assert max(own_export._within(TINY, longest).source_lengths) == min(longest, max(TINY.source_lengths))


def test_the_origin_of_a_user_model_is_no_recipe(tutorial: tuple[Path, UserModel], tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("a b\tc d\n" * 9)
    with pytest.raises(UserError, match="fewer than 100 sources"):
        main(["reference", str(tutorial[0]), "--data", str(tmp_path / "pairs.tsv"), "--output", str(tmp_path / "new")])


def test_a_form_that_can_not_be_rewritten_is_refused(
    tutorial: tuple[Path, UserModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(REWRITERS, "int8", Mock(side_effect=AssertionError))
    with pytest.raises(UserError, match="can't be rewritten to int8: leave it out of --precision"):
        attendant.export_run(tutorial[0], tmp_path / "bundle", precisions=("fp32", "int8"), plan=TINY)


def test_answers_are_those_of_a_naive_loop(tmp_path: Path) -> None:
    model = random_model(SsruStudent)
    bundle = export_model(model, tmp_path / "ssru", sources=SOURCES, precisions=("fp32", "int8", "fp16"), plan=TINY)
    certificates = {certificate.precision: certificate for certificate in bundle.manifest.certificates}
    assert certificates.keys() == {"fp32", "int8", "fp16"}
    half = certificates["fp16"]
    assert (half.reference, half.provider) == ("fp32", "cpu")
    assert any(how == "fp16" for how in half.arithmetic.values())
    assert_answers(tmp_path / "ssru", model, random_sources(12))


def test_a_step_may_share_its_sources_tensors_among_the_rows_of_a_beam(tmp_path: Path) -> None:
    model = random_model(PackedDotAttention)
    shared = SharedDotAttention()
    shared.load_state_dict(model.module.state_dict())
    # Without sources, the examples are random ones.
    bundle = export_model(user_model(shared), tmp_path / "shared", precisions=("fp32", "int8"), plan=TINY)
    assert bundle.golden and not bundle.manifest.graphs["fp32"].encode_alone
    memory = next(i for i in bundle.manifest.graphs["fp32"].decoder_step.inputs if i.name == "outputs")
    assert memory.shape == ("B", "S", 64)
    assert_answers(tmp_path / "shared", model, random_sources(12), beam_sizes=(4,))


class Encoder(nn.LSTM):
    """A recurrent layer with a `forward` of its own."""

    def forward(self, embedded, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(embedded, lengths, batch_first=True, enforce_sorted=False)
        outputs, (hidden, _) = super().forward(packed)
        return nn.utils.rnn.pad_packed_sequence(outputs, batch_first=True)[0], hidden


class Unusual(nn.Module):
    """A module with positions on other axes than the second, masks of ids that are not zero on padding, a counter per
    row, a TopK, float64, a symbol that is banned by -inf, a loop over positions by torch's scan with layers in it, and
    recurrent layers whose attributes and hooks it uses, one with normalized weights. Its step returns the dictionary
    that it got, and sets an attribute before it reads it, as attention does with `set_mask`.
    """

    row_state = ("hidden", "earlier", "count")

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.embedding = nn.Embedding(len(SYMBOLS), 32)
        self.encoder = Encoder(32, 16, bidirectional=True, batch_first=True)
        self.cell, self.norm = nn.Linear(32, 32), nn.LayerNorm(32)
        self.decoder = nn.GRU(32, 32)
        nn.utils.parametrizations.weight_norm(self.decoder, "weight_hh_l0")
        self.decoder.register_forward_hook(lambda layer, inputs, results: (results[0] * 3, results[1]))
        self.out = nn.Linear(64, len(SYMBOLS))
        self.out.bias.data[SYMBOLS.index("b")] = -math.inf
        self.architecture = "unusual"

    def encode(self, source_ids, source_lengths):
        self.encoder.flatten_parameters()
        outputs, _ = self.encoder(3 * self.embedding(source_ids), source_lengths)

        def one_position(last, inputs):
            last = self.norm(self.cell(last) / 2 + inputs)
            return last, last.clone()

        _, outputs = scan(one_position, outputs.new_zeros(outputs.shape[0], outputs.shape[2]), outputs, dim=1)
        num_sources, num_layers = source_ids.shape[0], self.decoder.num_layers * (1 + self.decoder.bidirectional)
        hidden = torch.zeros(num_sources, num_layers, self.decoder.hidden_size, dtype=self.decoder.weight_hh_l0.dtype)
        padding = source_ids == SYMBOLS.index("<pad>")
        earlier = torch.zeros(num_sources, 2, source_ids.shape[1])
        state = {"hidden": hidden, "earlier": earlier, "count": torch.zeros(num_sources, dtype=torch.int64)}
        return {
            **state,
            "columns": 3 * outputs.transpose(1, 2),
            "padding": padding,
            "scores": -1e9 * padding.float()[:, None],
        }

    def step(self, previous_ids, row_state, source_state):
        embedded = 3 * self.embedding(previous_ids)
        output, hidden = self.decoder(embedded[None], row_state["hidden"].transpose(0, 1).contiguous())
        scores = output[0][:, None] @ source_state["columns"] + source_state["scores"]
        scores = scores.squeeze(1) - row_state["earlier"].sum(1)
        self.padding = source_state["padding"]
        scores.data.masked_fill_(self.padding, -1e4)
        weights = torch.softmax(scores, -1)
        context = (source_state["columns"] @ weights[..., None]).squeeze(2)
        logits = 3 * self.out(torch.cat([output[0], context], -1)) + row_state["count"][:, None]
        row_state["earlier"] = torch.stack([weights, row_state["earlier"][:, 0]], 1)
        row_state["hidden"], row_state["count"] = hidden.transpose(0, 1), row_state["count"] + 1
        return logits - logits.topk(3)[0][:, :1], row_state, weights.double()


def test_an_unusual_module_answers_as_a_naive_loop(tmp_path: Path) -> None:
    model = user_model(Unusual())
    # 70 sources with beams of 4 are decoded in two groups, whose tensors are joined.
    plan = replace(TINY, num_decoded=70, beam_sizes=(4,))
    precisions: tuple[Precision, ...] = ("fp32", "int8", "fp16")
    with torch.inference_mode():
        bundle = export_model(model, tmp_path / "unusual", sources=SOURCES, precisions=precisions, plan=plan)
    assert not bundle.manifest.graphs["fp32"].encode_alone
    assert_answers(tmp_path / "unusual", model, random_sources(30))


class WrongSlots(SharedDotAttention):
    def step(self, prev, row, source, source_rows, row_slots):
        return super().step(prev, row, source, source_rows.flip(1), row_slots)


class UnmaskedStep(Plain):
    def encode(self, source_ids, source_lengths):
        state = super().encode(source_ids, source_lengths)
        return {**state, "mask": torch.ones_like(state["mask"])}


class UnmaskedEncoder(Plain):
    """A convolution that sees padding, and a step that flattens by `view`, which fails for tensors with gaps."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convolution = nn.Conv1d(16, 16, 3, padding=1)

    def encode(self, source_ids, source_lengths):
        state = super().encode(source_ids, source_lengths)
        return {**state, "outputs": self.convolution(state["outputs"].transpose(1, 2)).transpose(1, 2)}

    def step(self, previous_ids, row_state, source_state):
        outputs = source_state["outputs"]
        outputs = outputs.view(-1, outputs.shape[2]).view(outputs.shape)
        return super().step(previous_ids, row_state, {**source_state, "outputs": outputs})


@pytest.mark.parametrize("mistaken", [UnmaskedStep, pytest.param(WrongSlots, marks=pytest.mark.slow)])
def test_a_step_that_sees_padding_or_other_rows_is_refused(mistaken: type[nn.Module], tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = mistaken()
    # With large weights, attention is not a mean of all positions.
    module.load_state_dict({name: 2 * tensor for name, tensor in module.state_dict().items()})
    # The second probe has several rows and positions.
    plan = replace(TINY, source_lengths=(9, 4, 1))
    with pytest.raises(VerificationFailed, match=r"mask all positions beyond source_lengths.*row_slots"):
        export_model(user_model(module), tmp_path / "bundle", sources=SOURCES, plan=plan)
    assert not (tmp_path / "bundle").exists()


def test_an_encoder_that_sees_padding_encodes_sources_one_by_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model = user_model(UnmaskedEncoder())
    trace = Mock(wraps=own_export.trace_graphs)
    monkeypatch.setattr(own_export, "trace_graphs", trace)
    bundle = export_model(model, tmp_path / "bundle", sources=SOURCES, plan=TINY)
    assert bundle.manifest.graphs["fp32"].encode_alone
    assert "padding changes encoder/outputs" in caplog.text
    trace.assert_called_once()  # tracing takes most of an export's time
    assert_answers(tmp_path / "bundle", model, random_sources(6), beam_sizes=(1,))


class TenPositions(Plain):
    """A module with 10 learned positions: enough for its longest source, too few for padded ones."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.randn(10, 16))

    def encode(self, source_ids, source_lengths):
        state = super().encode(source_ids, source_lengths)
        return {**state, "outputs": state["outputs"] + self.places[: source_ids.shape[1]]}


def test_an_encoder_without_weights_for_padding_encodes_sources_one_by_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(0)
    model = user_model(TenPositions(), max_source_tokens=9)
    bundle = export_model(model, tmp_path / "bundle", sources=SOURCES, precisions=("fp32", "int8"), plan=TINY)
    assert bundle.manifest.graphs["int8"].encode_alone
    assert "the encoder takes only 10 positions" in caplog.text
    with pytest.raises(UserError, match="sources are encoded one by one"):
        DeviceStepper(bundle, provider="cpu")
    assert_answers(tmp_path / "bundle", model, [tuple("abcdefghi"), *random_sources(6, longest=10)])
    one = user_model(Plain(), max_source_tokens=1, append_eos=False)
    assert export_model(one, tmp_path / "one", plan=TINY).manifest.limits.max_source_tokens == 1
    with pytest.raises(UserError, match=r"TenPositions\.encode, called with 2 sources of 11 positions, failed: "):
        export_model(user_model(TenPositions(), max_source_tokens=10), tmp_path / "longer", plan=TINY)


class MasksUnpacked(Plain):
    """Its unpacked outputs are as wide as the longest source of the batch, its mask as wide as the batch."""

    def encode(self, source_ids, source_lengths):
        state = super().encode(source_ids, source_lengths)
        packed = nn.utils.rnn.pack_padded_sequence(state["outputs"], source_lengths, True, enforce_sorted=False)
        outputs, _ = nn.utils.rnn.pad_packed_sequence(packed, batch_first=True)
        return {**state, "outputs": outputs * state["mask"][..., None]}


class CountsSymbols(MasksUnpacked):
    """It finds the lengths by the id of padding."""

    def encode(self, source_ids, source_lengths):
        return super().encode(source_ids, (source_ids != SYMBOLS.index("<pad>")).sum(1))


@pytest.mark.parametrize("module", [MasksUnpacked, CountsSymbols])
def test_an_encoder_that_unpacks_encodes_batches(
    module: type[Plain], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_export, "write_bundle", write := Mock())
    export_model(user_model(module(), max_source_tokens=9), tmp_path / "mine")
    assert not write.call_args.args[0].encode_alone


def test_functions_of_the_caller_segment_texts(tutorial: tuple[Path, UserModel]) -> None:
    path, _ = tutorial
    plain = attendant.load(path)
    by_tokens = plain.generate(("a", "b"), max_length=5)
    assert by_tokens.best.text == " ".join(by_tokens.best.tokens)
    with pytest.raises(attendant.InvalidArgument, match="text is a text, must be given as tokens: this model's texts"):
        plain.generate("ab")
    with pytest.raises(attendant.InvalidArgument, match=r"decoding.target_prefix_text is a text, must be given as tok"):
        plain.generate(("a", "b"), target_prefix_text="c")

    with attendant.load(path, encode_source=list, encode_target=list, decode_target="-".join) as mine:
        answer = mine.generate("ab", max_length=5)
        assert answer.best.tokens == by_tokens.best.tokens and answer.best.text == "-".join(answer.best.tokens)
        assert answer.source_tokens == by_tokens.source_tokens
        (unknown,) = mine.generate(["aZb"], max_length=5, replace_unknowns=True)
        assert unknown.source_tokens == ("<s>", "a", "<unk>", "b", "</s>") and "'Z'" in unknown.warnings[0]
        assert mine.score("ab", "cd").target_tokens[:2] == ("c", "d")
        assert mine.generate("ab", target_prefix_text="cd", max_length=5).best.tokens[:2] == ("c", "d")
        stream = mine.stream("ab", max_length=5)
        assert "".join(delta.text for delta in stream) == stream.generation.best.text == answer.best.text
    with attendant.load(path, encode_source=str.upper) as wrong, pytest.raises(TypeError, match="'AB'"):
        wrong.generate("ab")
    for bundle, options, message in (
        (path, {"encode_source": 3}, "encode_source=3: must be a function"),
        (Path("models/g2p-en"), {"decode_target": "".join}, "decode_target: this bundle segments texts itself"),
    ):
        with pytest.raises(UserError, match=message):
            attendant.load(bundle, **options)


PROGRAM = """
from tests.own_models import *

def build():
    return user_model(TutorialTranslator())

def other():
    return 3

def needing(size, *, width=3):
    return user_model(TutorialTranslator())

def failing():
    return user_model(TutorialTranslator(num_words=3))

def quitting():
    raise SystemExit("no GPU")
"""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.py:build"], "there is no file missing.py"),
        (["mine.py:nothing"], "mine.py has no function nothing"),
        (["mine.py:other"], r"other\(\) must return attendant.export.UserModel, got int"),
        (["mine.py:needing"], r"mine.py:needing: TypeError: needing\(\) missing 1 required positional argument"),
        (["mine.py:failing"], r"mine.py:failing: TypeError: .*num_words.* at mine.py:14: return user_model\("),
        (["mine.py:quitting"], r"mine.py:quitting: SystemExit: no GPU at mine.py:17: raise SystemExit"),
        (["broken.py:build"], r"broken.py:build: SyntaxError: "),
        (["mine.py:build", "--weights", "other.safetensors"], "other.safetensors: can't be read: "),
        (
            ["mine.py:build", "--weights", "other.pt"],
            r"the weights don't fit TutorialTranslator: encoder_embedding.weight, \S+, \S+ and \d+ more missing in the "
            r"file; 1, x not of the module; query.bias is \[3\], must be \[32\]",
        ),
        (["mine.py:build", "--sources", "missing.txt"], "--sources missing.txt: can't be read"),
        (["mine.py:build", "--checkpoint", "last"], "--checkpoint is for runs"),
        (["mine.py"], "mine.py: name a model of your own as FILE.py:FUNCTION"),
        (["runs", "--weights", "other.pt"], "--weights is for a model of your own"),
    ],
)
def test_the_command_refuses_mistakes(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(PROGRAM)
    Path("runs").mkdir()
    Path("broken.py").write_text("def build(:\n")
    torch.save({1: torch.zeros(1), "x": torch.zeros(1), "query.bias": torch.zeros(3)}, "other.pt")
    Path("other.safetensors").write_text("other")
    with pytest.raises(UserError, match=message) as caught:
        main([*arguments, "--output", "bundle"])
    assert len(str(caught.value).splitlines()) == 1
    assert not Path("bundle").exists()


@pytest.mark.parametrize("prefix", ["", "_orig_mod.module.", "model.net."])
def test_weights_of_wrapped_modules_are_loaded(prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(PROGRAM)
    weights = {name: tensor + 1 for name, tensor in TutorialTranslator().half().state_dict().items()}
    saved = {prefix + name: tensor for name, tensor in weights.items()}
    # An object that contains the module may have further weights, such as a loss's.
    others = {"loss.weight": torch.ones(3)} if prefix else {}
    content = {"epoch": 3, "args": Namespace(size=32), "state_dict" if prefix else "net": saved | others}
    torch.save(content, "w.pt")
    save_file(saved, "w.safetensors")
    for file in ("w.pt", "w.safetensors"):
        loaded = load_user_model("mine.py:build", Path(file)).module.state_dict()
        for name, tensor in weights.items():
            assert torch.equal(loaded[name], tensor.float())
    for copies in (
        {"ema": weights, "net": weights},
        {part + name: w for name, w in weights.items() for part in ("a.", "b.")},
    ):
        torch.save(copies, "w.pt")
        with pytest.raises(UserError, match="more missing in the file"):
            load_user_model("mine.py:build", Path("w.pt"))
    torch.save({name: tensor.int() for name, tensor in weights.items()}, "w.pt")
    with pytest.raises(UserError, match=r"encoder_embedding.weight is of type torch.IntTensor, must hold dense"):
        load_user_model("mine.py:build", Path("w.pt"))


TIED = """
from tests.own_models import *

def build():
    module = TutorialTranslator()
    module.decoder_embedding.weight = module.encoder_embedding.weight
    return user_model(module)
"""


def test_tied_weights_may_be_saved_once_but_must_be_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(TIED)
    weights = TutorialTranslator().state_dict()
    save_file(weights, "untied.safetensors")
    with pytest.raises(UserError, match=r"the weights encoder_embedding\.weight differ from those to which Tutorial"):
        load_user_model("mine.py:build", Path("untied.safetensors"))
    # As safetensors.torch.save_model does.
    del weights["decoder_embedding.weight"]
    save_file(weights, "tied.safetensors")
    module = load_user_model("mine.py:build", Path("tied.safetensors")).module
    assert torch.equal(module.state_dict()["decoder_embedding.weight"], weights["encoder_embedding.weight"])


class Lazy(Plain):
    """A module whose layers get their sizes from their weights, or in their first call."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.LazyLinear(16), nn.LazyLinear(len(SYMBOLS))


def test_lazy_layers_take_the_sizes_of_their_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_export, "write_bundle", write := Mock())
    with pytest.raises(UserError, match=r"Lazy's weights cell\.weight have no values yet: load trained weights"):
        export_model(user_model(Lazy()), tmp_path / "mine")
    torch.save(Plain().state_dict(), tmp_path / "w.pt")
    (tmp_path / "mine.py").write_text(f"from {__name__} import *\n\ndef build():\n    return user_model(Lazy())\n")
    export_model(load_user_model(f"{tmp_path}/mine.py:build", tmp_path / "w.pt"), tmp_path / "mine")
    write.assert_called_once()


def test_symbols_that_a_module_may_not_know_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_export, "write_bundle", Mock())
    export_model(random_model(TutorialTranslator), tmp_path / "mine", data=[("ab", "cd"), ("xyz", "cd")])
    assert "60 % of the tokens of the held-out sources are unknown, e.g. 'x', 'y', 'z': " in caplog.text
    library = LibraryTokenizer(WordLevel({"[CLS]": 0, "[SEP]": 1, "a": 2}, unk_token="[UNK]"))
    library.post_processor = BertProcessing(("[SEP]", 1), ("[CLS]", 0))
    library.enable_padding(length=8)
    library.save(str(tmp_path / "tokenizer.json"))
    model = replace(random_model(TutorialTranslator), source_tokenizer=tmp_path / "tokenizer.json")
    export_model(model, tmp_path / "mine")
    assert "its post-processor adds <s> </s> to a source, and the bundle </s>: set prepend_bos and" in caplog.text
    assert caplog.text.count("no symbol is known to be unk") == 1
    caplog.clear()
    export_model(replace(model, prepend_bos=True), tmp_path / "mine")
    assert "post-processor" not in caplog.text


def test_data_may_be_a_path_or_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_export, "write_bundle", write := Mock())
    path = tmp_path / "pairs.tsv"
    path.write_text("ab\tcd\n")
    for data, name in ((path, str(path)), ([("ab", "cd")], "1 pairs in memory (")):
        export_model(random_model(TutorialTranslator), tmp_path / "mine", data=data)
        exportable = write.call_args.args[0]
        assert len(exportable.sources) == 1 and exportable.validation_name.startswith(name)
    for field, message in (("sources", "must be a list of texts"), ("plan", "must be a VerificationPlan")):
        with pytest.raises(UserError, match=f"{field}.*: {message}"):
            export_model(random_model(TutorialTranslator), tmp_path / "mine", **{field: path})  # type: ignore[arg-type]
    with pytest.raises(UserError, match="sources: a text has half a surrogate pair"):
        export_model(random_model(TutorialTranslator), tmp_path / "mine", sources=["ab", "\ud800"])
    with pytest.raises(UserError, match="plan=None: must be a VerificationPlan"):
        attendant.export_run(tmp_path / "run", tmp_path / "mine", plan=None)  # type: ignore[arg-type]


def test_a_module_without_its_description_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="model is of type TutorialTranslator: must be a UserModel"):
        export_model(TutorialTranslator(), tmp_path / "mine")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("length_penalty", 99.0, r"--length-penalty 99.0: must be less than or equal to 10$"),
        ("max_source_tokens", "20", "max_source_tokens is '20': must be a whole number from 1 to 65536"),
        ("source_kind", "char", "source_tokenizer: its kind is 'char', must be one of word, character, tokens"),
        ("source_tokenizer", ["<unk>", "</s>", 3], r"source_tokenizer\[2\] = 3: must be a text"),
        ("source_tokenizer", set(SYMBOLS), "source_tokenizer is of type set, must be a file, or a list"),
        ("target_tokenizer", None, "target_tokenizer is of type NoneType, must be a file, or a list"),
        ("module", TutorialTranslator, r"module is the class TutorialTranslator: give an object of it"),
        ("origin", {"loss": math.nan}, "origin is {'loss': nan}: must be a dictionary of texts, numbers"),
    ],
)
def test_a_wrong_value_of_a_field_is_named(field: str, value: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        export_model(UserModel(**{**vars(random_model(TutorialTranslator)), field: value}), tmp_path / "mine")
