"""The typed client of Attendant: ask attention sequence-to-sequence models over gRPC.

    async with AttendantClient("localhost:50051") as client:
        generation = await client.generate("hello", beam_size=4)
        print(generation.best.text)

`attendant_client.errors` draws what a call may raise; `attention_map` draws attention in a terminal. All of it is
imported when it is first asked for: the command has something to say to gRPC before.
"""

import typing as _typing

if _typing.TYPE_CHECKING:
    from attendant_client.public import *  # noqa: F403
else:
    import importlib as _importlib

    def __getattr__(name):
        """What the client offers by that name, or a module of it."""
        if not name.startswith("__") or name == "__all__":
            public = _importlib.import_module("attendant_client.public")
            if name in ("__all__", *public.__all__):
                return getattr(public, name)
            if name in globals():
                return globals()[name]
        raise AttributeError(f"module 'attendant_client' has no attribute {name!r}")

    def __dir__():
        """Returns the names that a prompt completes."""
        return sorted({*globals(), *__getattr__("__all__")})
