"""The course of a search as lines for a terminal.

The branch that lives longest goes straight down, and the others are indented: so long answers fit narrow terminals.
"""

from attendant_client.answers import EOS
from attendant_client.attention_map import cut, display_width
from attendant_client.trace import (
    Fate,
    FinishReason,
    Place,
    SearchEnd,
    Trace,
    TracedSearch,
    percent,
    score_and_rank,
)

MAX_TOKEN = 24
UNICODE_GLYPHS = {"branch": "├ ", "beside": "│ ", "last": "└ ", "ended": "■ "}
ASCII_GLYPHS = {"branch": "+ ", "beside": "| ", "last": "` ", "ended": "* "}

CUTS = {
    Fate.RANK: "too low",
    Fate.PREFIX: "not the prefix",
    Fate.NOT_DRAWN: "not drawn",
    Fate.ALTERNATIVE: "of another alternative",
    Fate.LENGTH: "too long",
    Fate.SEARCH_ENDED: "the search ended",
    Fate.UNSPECIFIED: "cut",
}
REASONS = {
    SearchEnd.EOS: "every hypothesis ended",
    SearchEnd.BOUND: "no live hypothesis can enter the best",
    SearchEnd.PATIENCE: "enough hypotheses ended (patience)",
    SearchEnd.LENGTH: "the hypotheses had max_length tokens",
    SearchEnd.BANS: "the bans left no token",
    SearchEnd.UNSPECIFIED: "for a reason that this version of the command does not know",
}


def draw(trace: Trace, *, width: int | None = None, ascii_only: bool = False) -> str:
    """Returns the trees of a trace, several lines.

    Args:
        width: columns of the terminal, at which lines are cut. If None, no limit.
        ascii_only: draw with ASCII characters; the tokens stay as they are.
    """
    glyphs = ASCII_GLYPHS if ascii_only else UNICODE_GLYPHS
    lines: list[str] = []
    for number, search in enumerate(trace.searches, 1):
        of = f"search {number} of {len(trace.searches)}: " if len(trace.searches) > 1 else ""
        lines += ["", f"{of}{len(search.steps)} steps, then {_why(search)}", *_Tree(search, glyphs).branch((0, 0))]
    return "\n".join(line if width is None else _narrow(line, width) for line in lines[1:])


def _why(search: TracedSearch) -> str:
    last = search.steps[-1]
    numbers = ""
    if search.reason is SearchEnd.BOUND and last.best_possible is not None and last.bound is not None:
        numbers = f": it can reach {last.best_possible:.3f}, the last of the best has {last.bound:.3f}"
    return REASONS[search.reason] + numbers


def _narrow(line: str, width: int) -> str:
    if display_width(line) <= width:
        return line
    while display_width(line) > max(1, width - 1):
        line = line[:-1]
    return f"{line}~"


class _Tree:
    """The tree of a search."""

    def __init__(self, search: TracedSearch, glyphs: dict[str, str]) -> None:
        self._search = search
        self._glyphs = glyphs
        self._children = search.children()
        self._ends = search.ends()
        # The number of steps of each live hypothesis's longest branch.
        self._heights: dict[Place, int] = {}
        for step, place in reversed(self._children):
            below = (self._heights[step + 1, child] for child in self._children[step, place])
            self._heights[step, place] = 1 + max(below, default=0)

    def branch(self, at: Place) -> list[str]:
        """Returns the lines of the tree from a live hypothesis on."""
        lines: list[str] = []
        while True:
            step, place = at
            if step:
                hypothesis = self._search.steps[step].live[place]
                lines.append(f"{cut(hypothesis.token, MAX_TOKEN)} {percent(hypothesis.log_prob)}")
            # The first of equally long ones has the highest total.
            children = [(step + 1, child) for child in self._children[at]]
            longest = max(children, key=self._heights.__getitem__, default=None)
            beside = [self.branch(child) for child in children if child != longest] + self._leaves(at)
            for number, (first, *more) in enumerate(beside, 1):
                is_last = longest is None and number == len(beside)
                lines.append(self._glyphs["last" if is_last else "branch"] + first)
                lines += [("  " if is_last else self._glyphs["beside"]) + line for line in more]
            if longest is None:
                return lines
            at = longest

    def _leaves(self, at: Place) -> list[list[str]]:
        """Returns a line for each way in which a live hypothesis ended, and for each reason why candidates were cut."""
        live = self._search.steps[at[0]].live[at[1]]
        leaves = []
        for end in self._ends.get(at, ()):
            ended = [each for each in live.candidates if each.fate is Fate.ENDED]
            by_eos = end.finish_reason is FinishReason.EOS and ended
            symbol = f"{EOS} {percent(ended[0].log_prob)}" if by_eos else "cut"
            leaves.append([f"{self._glyphs['ended']}{symbol}, {score_and_rank(end)}"])
        for fate, why in CUTS.items():
            if tokens := [each for each in live.candidates if each.fate is fate]:
                shown = ", ".join(f"{cut(each.token, MAX_TOKEN)} {percent(each.log_prob)}" for each in tokens)
                leaves.append([f"{why}: {shown}"])
        if live.banned:
            leaves.append([f"banned: {', '.join(cut(token, MAX_TOKEN) for token in live.banned)}"])
        return leaves
