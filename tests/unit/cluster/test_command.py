"""What `python -m attendant.server.cluster` says before there is any Ray."""

import sys

import pytest

from attendant.runtime.errors import UserError
from attendant.server.cluster.__main__ import OF_REPLICAS, main
from attendant.server.config import OPTIONS


@pytest.mark.parametrize("arguments", [[], ["train"]])
def test_it_names_its_commands(arguments: list[str]) -> None:
    with pytest.raises(UserError, match="serve or decode"):
        main(arguments)


def test_without_ray_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match="pip install"):
        main(["serve", "bundle"])


def test_help_has_the_servers_options_that_a_replica_heeds(capsys: pytest.CaptureFixture[str]) -> None:
    assert {option.name for option in OPTIONS} >= OF_REPLICAS
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    said = capsys.readouterr().out
    assert "--max-rows" in said and "--tls-key" not in said
    assert "--traces" not in said and "--connection-seconds" not in said
