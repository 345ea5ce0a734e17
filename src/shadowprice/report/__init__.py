"""Pages and figures about results: Python computes plain data, templates and Matplotlib show it.

reproduction   the page about a reproduction; `comparison` and `waterfall` are parts of it
run            the page about a run; `run_data` is what it shows
render         Jinja templates (templates/) to one file that needs no network
figures        which figures there are; `line_plots` and `point_plots` draw them, `plot` and `style` are shared
labels         what policies and outcomes are called, decided once
"""
