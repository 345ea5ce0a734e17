"""Questions and recorded answers: the paper's benchmarks (`hub`), generated tasks, answers that ship."""
