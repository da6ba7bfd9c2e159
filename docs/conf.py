"""The pages of this repository as a site: `make docs` builds it, offline, and fails where a link leads nowhere."""

project = "Attendant"
author = "Attendant's contributors"
html_show_copyright = False

extensions = ["myst_parser"]
root_doc = "docs/index"
include_patterns = [
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "benchmarks/results/**.md",
    "client/README.md",
    "docs/**.md",
    "examples/javascript/README.md",
    "models/README.md",
    "recipes/**.md",
]
myst_heading_anchors = 4
html_theme = "furo"
html_title = "Attendant"
html_copy_source = False
