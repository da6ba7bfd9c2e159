"""A server's options, as its command reads them."""

from collections.abc import Mapping, Sequence

from attendant.server.config import ServerConfig, config_of, config_parser


def parse_config(arguments: Sequence[str], environment: Mapping[str, str]) -> ServerConfig:
    """Returns the options of a command line and an environment.

    Raises:
        UserError: the first option that is unknown or has an invalid value.
        SystemExit: after --help.
    """
    return config_of(config_parser().parse_args(arguments), environment)
