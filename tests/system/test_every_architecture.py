"""Tests of all architectures from end to end: trained from a recipe, exported, loaded, called over gRPC.

Each stage takes the files of the stage before. tests/parity checks the numbers of each stage.
"""

import itertools
from pathlib import Path

import pytest

import attendant
from attendant.export.bundle_writer import write_bundle
from attendant.export.origins import exportable_run
from attendant.runtime.bundle.bundle import open_bundle
from attendant.runtime.bundle_stepper import check_decoding
from attendant.runtime.decoding.batch import decode_all
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.onnx.stepper import OnnxStepper
from attendant.training.model import ModelConfig
from attendant.training.model.stepper import TorchStepper
from attendant.training.run.loading import load_run
from attendant_client import AttendantClient
from tests.architectures import covering_architectures
from tests.bundles import TINY_PLAN
from tests.serving import served

RECIPE = """
[data]
train = "{folder}/pairs.tsv"
validation = "{folder}/pairs.tsv"
max_source_tokens = 12
max_target_tokens = 12
[source]
tokenizer = "{source}"
[target]
tokenizer = "word"
[batches]
max_tokens = 64
[optimizer]
learning_rate = 0.02
[training]
max_steps = 12
num_threads = 1
device = "cpu"
"""
WORDS = ["".join(letters) for letters in itertools.product("abc", repeat=3)]


COVERING = covering_architectures()
QUICK = min(
    (name for name, config in COVERING.items() if config.decoder.copying),
    key=lambda name: COVERING[name].encoder.num_layers + COVERING[name].decoder.num_layers,
)
"""The smallest architecture with one vocabulary for both sides, which no other quick test trains and exports."""


pytestmark = pytest.mark.usefixtures("torch_threads")


async def goes_the_whole_way(config: ModelConfig, folder: Path) -> None:
    # One vocabulary for both sides needs one tokenizer.
    words = [" ".join(word) if config.shared_embeddings else word for word in WORDS]
    (folder / "pairs.tsv").write_text("".join(f"{word}\t{' '.join(word.replace(' ', ''))}\n" for word in words))
    source = "word" if config.shared_embeddings else "character"
    (folder / "recipe.toml").write_text(RECIPE.format(folder=folder, source=source))
    model = config.model_dump(mode="json", exclude_none=True)
    attendant.train(folder / "recipe.toml", output=folder / "run", overrides={"model": model})
    run = load_run(folder / "run", "last")
    write_bundle(exportable_run(run, "walked"), folder / "bundle", plan=TINY_PLAN)
    bundle = open_bundle(folder / "bundle")
    stepper = OnnxStepper(bundle)
    assert check_decoding(bundle, stepper, "fp32", "cpu") == []
    options = DecodingOptions(beam_size=3, max_length=12)
    sources = [bundle.source_ids(bundle.source_tokenizer.encode(word)) for word in words[:4]]
    wanted = decode_all(TorchStepper(run.model), sources, options, bundle.manifest.special_ids)
    async with served(stepper, bundle) as server, AttendantClient(server.target) as client:
        for word, (best, *_) in zip(words, wanted, strict=False):
            answer = (await client.generate(word, beam_size=3, max_length=12)).best
            assert answer.log_prob == pytest.approx(best.log_prob, abs=1e-4)
            if answer.finish_reason == "EOS":
                scored = await client.score(word, answer.text)
                assert scored.log_prob == pytest.approx(answer.log_prob, abs=1e-5 * (len(answer.tokens) + 1))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == QUICK else pytest.mark.slow) for name in COVERING]
)
async def test_every_pair_of_choices_is_trained_exported_and_served(name: str, tmp_path: Path) -> None:
    await goes_the_whole_way(COVERING[name], tmp_path)
