"""The models of docs/learn.md, ready to be served side by side: trained by the plan `lesson`, then exported."""

import sys
from pathlib import Path
from typing import Final

from attendant.recipes.papers.plan import load_plan, run_command, run_of, train
from attendant.runtime.bundle.manifest import MANIFEST_NAME

PLAN: Final = "lesson"
BUNDLES: Final = Path("bundles/lesson")
EXAMPLE: Final = "text=attention&model=rnnencdec&open=growth&model.2=rnnsearch&open.2=growth"
"""The address of a first look: both models of Bahdanau et al. (2015), side by side."""


def prepare_lesson() -> None:
    """Trains and exports what is missing, and prints how to serve it.

    Raises:
        UserError: a training or an export failed.
        KeyboardInterrupt: Ctrl-C or SIGTERM; the next call continues there.
    """
    train(PLAN)
    plan = load_plan(PLAN)
    for variant in plan.variants:
        bundle = BUNDLES / variant.name
        if not (bundle / MANIFEST_NAME).exists():
            run = run_of(PLAN, variant, plan.seeds[0]).path
            export = [sys.executable, "-m", "attendant.export", str(run), "--output", str(bundle)]
            run_command([*export, "--name", variant.name])
    bundles = " ".join(str(BUNDLES / variant.name) for variant in plan.variants)
    print(f"serve them:   attendant serve {bundles}")
    print(f"then look at: http://127.0.0.1:9090/#{EXAMPLE}")
