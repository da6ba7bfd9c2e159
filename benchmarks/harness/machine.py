"""Where and when a measurement was made."""

import datetime
import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine as it is now.

    Attributes:
        cpu: the model, and those of its instructions that training can use.
        num_cores: that this process may use.
        load: processes that wanted a core in the minute before; a quiet machine's is near 0.
        date: of the measurement, in UTC.
    """

    cpu: str
    num_cores: int
    load: float
    date: str
    python: str


def this_machine() -> Machine:
    return Machine(
        cpu=_cpu(),
        num_cores=len(os.sched_getaffinity(0)),
        load=os.getloadavg()[0],
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        python=platform.python_version(),
    )


def _cpu() -> str:
    try:
        facts = dict(re.findall(r"^(model name|flags)\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE))
    except OSError:
        return platform.processor()
    flags = set(facts.get("flags", "").split())
    instructions = [name for name in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if name in flags]
    return f"{facts.get('model name', platform.machine())} ({', '.join(instructions)})"
