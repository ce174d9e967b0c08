"""Sphinx's settings: Markdown by MyST, no network, warnings are errors (`make docs`)."""

project = "Tidegate"
extensions = ["myst_parser"]
exclude_patterns = ["examples", "generate"]
highlight_language = "text"
html_theme = "furo"
html_title = "Tidegate"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_copyright = False
html_copy_source = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0e7490", "color-brand-content": "#0e7490"},
    "dark_css_variables": {"color-brand-primary": "#67e8f9", "color-brand-content": "#67e8f9"},
}
myst_heading_anchors = 4
