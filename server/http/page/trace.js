// The course of a search, from the server's trace: the way to an answer, and reasons in words.

import { fixed } from "./numbers.js";

// The search that found an answer, where it ended, and the way to it: {search, end, way}.
export function searchOf(trace, index) {
  for (const search of trace.searches) {
    const end = search.ended.find(({ hypothesis }) => hypothesis === index);
    if (end) return { search, end, way: wayTo(search, end.step, end.live) };
  }
  return { search: trace.searches[0], way: [] };
}

// The live hypotheses that led to one, from the first step to `step`: the place of each in its step's `live`.
function wayTo(search, step, live) {
  const places = [];
  for (let at = step, place = live; at >= 0; at--) {
    places.unshift(place);
    place = search.steps[at].live[place].parent;
  }
  return places;
}

export const FATES = {
  FATE_LIVES: "it goes on",
  FATE_ENDED: "it ended here",
  FATE_RANK: "cut: the beam is full of better ones",
  FATE_PREFIX: "cut: the answer's beginning is given",
  FATE_NOT_DRAWN: "cut: another symbol was drawn",
  FATE_ALTERNATIVE: "cut: another symbol begins this alternative",
  FATE_LENGTH: "cut: the answer is at its longest",
  FATE_SEARCH_ENDED: "cut: the search ended with this step",
};

// A sentence on why a search ended.
export function ending({ reason, steps }) {
  const { bound, bestPossible } = steps.at(-1);
  const numbers = bound === undefined || bestPossible === undefined
    ? ""
    : `: at most ${fixed(bestPossible)}, and the last of those that are wanted has ${fixed(bound)}`;
  return `The search ended with step ${steps.length}: ` + {
    SEARCH_END_EOS: "every hypothesis had ended.",
    SEARCH_END_BOUND: `nothing that went on could still score higher than what had ended${numbers}.`,
    SEARCH_END_PATIENCE: "as many hypotheses had ended as its patience allows.",
    SEARCH_END_LENGTH: "the hypotheses were at their longest.",
    SEARCH_END_BANS: "the options left no symbol to go on with.",
  }[reason];
}
