"""Pages and figures about results: Python computes plain data, templates and Matplotlib show it."""
