"""Sphinx's settings: Markdown by MyST, no network, warnings are errors (`make docs`)."""

project = "Tidegate"
extensions = ["myst_parser"]
exclude_patterns = ["examples", "generate"]
highlight_language = "text"
html_theme = "furo"
html_title = "Tidegate"
html_show_copyright = False
html_copy_source = False
myst_heading_anchors = 4
