"""The process of `llamacpp.LlamaCppServer`: llama.cpp's HTTP server, until the process that started it has ended."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import threading


def _serve() -> None:
    """Serve what the first line of stdin describes, until stdin ends, which means that the parent has ended."""
    job = json.loads(sys.stdin.buffer.readline())
    report = os.dup(1)
    os.dup2(2, 1)  # what the library prints must not mix with the report
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_with, args=(job["parent"],), daemon=True).start()

    import xllamacpp

    p = xllamacpp.CommonParams()
    p.model.path = job["model"]
    p.model_alias = {job["name"]}
    p.hostnames, p.port = ["127.0.0.1"], job["port"]
    p.n_parallel, p.n_ctx = job["slots"], job["slots"] * job["context"]
    p.n_threads_http = job["slots"] + 8  # every running answer holds one; the others serve /health and /metrics
    p.cpuparams.n_threads = p.cpuparams_batch.n_threads = job["threads"]
    if job["gpu_layers"] is not None:
        p.n_gpu_layers = job["gpu_layers"]
        if job["gpu_layers"] and not any("GPU" in device["type"].name for device in xllamacpp.get_device_info()):
            sys.exit(f"--gpu-layers {job['gpu_layers']}: llama.cpp finds no GPU here")
    p.endpoint_metrics, p.ui, p.warmup = True, False, False
    p.verbosity = 3 if job["verbose"] else 1
    p.fit_params = False  # it would silently lower the context when memory is short
    # So that greedy answers are the same in every run, see the top of llamacpp.py.
    p.kv_unified, p.n_ubatch = False, 1 if job["exact"] else 32
    p.n_cache_reuse, p.cache_ram_mib = 0, job["cache"]  # cached or not, everything is computed the same way
    p.cache_idle_slots = False
    server = xllamacpp.Server(p)
    os.write(report, server.listening_address.encode() + b"\n")
    os.close(report)
    threading.Event().wait()


def _exit_with(parent: int) -> None:
    # The end of stdin would be enough, but children that the parent forked keep the pipe open.
    while os.getppid() == parent:
        if select.select([0], [], [], 1.0)[0]:
            break
    os._exit(0)


if __name__ == "__main__":
    _serve()
