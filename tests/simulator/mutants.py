from contextlib import nullcontext as unchanged
MUTANTS = {}
