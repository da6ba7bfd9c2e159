import json

import pytest

from attendant.training.run import directory as run
from attendant.training.run.directory import versions


@pytest.mark.parametrize(("is_exact", "library"), [(True, "onednn"), (False, "torch")])
def test_versions_tell_what_the_bits_depend_on(is_exact: bool, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "onednn_is_exact", lambda: is_exact)
    found = versions()
    assert found["float32_products"] == library
    assert {"attendant", "commit", "platform", "python", "torch"} < set(found)
    assert all(isinstance(value, str) for value in json.loads(json.dumps(found)).values())
