"""Writes docs/serving.md from the server's own options."""

from pathlib import Path

from attendant.server.config import OPTIONS

PAGE = Path(__file__).parent / "serving.md"
INTRODUCTION = """# Serving options

```sh
attendant serve models/g2p-en
```

This page lists the server's options. Positional arguments are bundles and [repositories](models.md) of bundles;
`ATTENDANT_BUNDLES` names them too, separated by colons. Every option is also an environment variable: `--max-rows` is
`ATTENDANT_MAX_ROWS`. The command line takes precedence. A value out of range is refused with the option's name, the
value and the range.

The server ends with status 0 after SIGTERM or SIGINT, with 1 when an engine has failed for good, and with 2 for a bad
option, a port in use or a refused bundle ([what to do then](operations.md)).

In the table, a row is a live hypothesis: a request has `beam_size` rows. An engine decodes one model, in a process of
its own. The requests of bulk streams are bulk work; all others are interactive.

`python docs/write_serving.py` writes this page from the options themselves.

| option | default | what |
|---|---|---|
"""


def page() -> str:
    rows = []
    for option in OPTIONS:
        flag = f"`{option.flag} {option.kind.unit}`" if option.kind.unit else f"`{option.flag}`"
        about = f"{option.about[0].upper()}{option.about[1:]}."
        rows.append(" | ".join(cell.replace("|", "\\|") for cell in (flag, option.default_text, about)))
    return INTRODUCTION + "".join(f"| {row} |\n" for row in rows)


if __name__ == "__main__":
    PAGE.write_text(page())
