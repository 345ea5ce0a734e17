"""Questions and answers to work with.

hub       the paper's benchmarks on the Hugging Face hub
tasks     generated tasks with known answers
shipped   recorded answers that come with the package
"""
