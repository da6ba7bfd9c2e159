"""Which requests share the operations of a step."""

from attendant.runtime.decoding.beam import BeamSearch
from attendant.runtime.decoding.forced import ForcedSearch
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.decoding.row_group import can_share
from attendant.runtime.decoding.search import Candidates
from tests.fakes import SPECIAL_IDS


def test_searches_that_have_not_begun_and_keep_no_attention_share() -> None:
    for beam_size in (1, 2):
        fresh = BeamSearch.start(DecodingOptions(max_length=3, beam_size=beam_size), SPECIAL_IDS)
        assert can_share(fresh)
        assert not can_share(fresh.advance(Candidates([[5, 4, 6]], [[-1.0, -2.0, -3.0]], [0.0], None)))
        options = DecodingOptions(max_length=3, beam_size=beam_size, attention=True)
        assert not can_share(BeamSearch.start(options, SPECIAL_IDS))
    assert not can_share(ForcedSearch.start((5,), SPECIAL_IDS))
