"""Checks translations of 300 inputs as people type them: placeholders, tags, addresses, numbers, names, capitals and
line breaks must come back.

    python -m attendant.recipes.translate-debdocs-en-fr.checks models/translate-en-fr

No input is a phrase of the training data.
"""

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attendant.runtime.bundle.manifest import TEXT_OPTIONS
from attendant.server.library import load


@dataclass(frozen=True, slots=True)
class Check:
    """An input, and the parts that its translation must have.

    Attributes:
        kept: parts that must occur as often as in the source, in any order.
        words: for each line of the source, words separated by slashes, one of which its translation must have.
            Further lines may have any translation.
    """

    kind: str
    source: str
    kept: Sequence[str] = ()
    words: Sequence[str] = ()

    def faults(self, answer: str) -> list[str]:
        """Returns the faults of a translation, as text."""
        faults = [
            f"{part} {answer.count(part)} times, must be {self.source.count(part)} times"
            for part in self.kept
            if answer.count(part) != self.source.count(part)
        ]
        lines, sources = answer.split("\n"), self.source.split("\n")
        if len(lines) != len(sources):
            faults.append(f"{len(lines)} lines, must be {len(sources)}")
        if self.kind == "capitals" and answer != answer.upper():
            faults.append("small letters, must be capitals")
        faults += [
            f"{line!r}, must hold {words}"
            for line, words in zip(lines, self.words, strict=False)
            if not any(word.casefold() in line.casefold() for word in words.split("/"))
        ]
        return faults


def checks() -> list[Check]:
    """Returns the inputs of checks.jsonl, kind after kind."""
    lines = (Path(__file__).parent / "checks.jsonl").read_text(encoding="utf-8").splitlines()
    return [Check(**json.loads(line)) for line in lines]


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints how many inputs of each kind have no fault; returns 1 if they are below 95 % of all inputs."""
    parser = argparse.ArgumentParser(description="Checks the parts of sources that a bundle's translations must keep.")
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--show", action="store_true", help="print each input that fails, with its translation")
    for name in TEXT_OPTIONS:
        meaning = "an option of the requests (default: the bundle's)"
        parser.add_argument("--" + name.replace("_", "-"), action=argparse.BooleanOptionalAction, help=meaning)
    chosen = parser.parse_args(arguments)
    options: Any = {name: value for name in TEXT_OPTIONS if (value := getattr(chosen, name)) is not None}
    inputs = checks()
    with load(chosen.bundle) as model:
        answers = [generation.best.text for generation in model.generate([check.source for check in inputs], **options)]
    right, all_of_kind = Counter[str](), Counter(check.kind for check in inputs)
    for check, answer in zip(inputs, answers, strict=True):
        faults = check.faults(answer)
        right[check.kind] += not faults
        if faults and chosen.show:
            print(f"{check.source!r}\n    {answer!r}\n    {'; '.join(faults)}")
    for kind, number in all_of_kind.items():
        print(f"{kind:12} {right[kind]:3} of {number}")
    share = right.total() / len(inputs)
    print(f"{'all':12} {right.total():3} of {len(inputs)}, {100 * share:.1f} %")
    return int(share < 0.95)


if __name__ == "__main__":
    raise SystemExit(main())
