"""Programs that try to get out of the box, or to be graded as correct. `test_escapes.py` runs them.

Each attempt is the body of a function; what it returns is its loot. `W` is the world outside, as the test made
it: `secret`, `home` with `private` (mode 0600) in it, `folder` that anyone may write to, a `socket`, an `abstract`
socket, a `fifo`, a `port` that listens, the pids of a `victim` and of the `grader`, a `marker` for names of files,
and the `name` that its processes take.
"""

from __future__ import annotations

import json
import textwrap
from typing import Any

PRELUDE = """
import ctypes, gc, glob, mmap, os, resource, signal, socket, stat, struct, subprocess, sys, threading, time
from types import SimpleNamespace
W = SimpleNamespace(**{world})
libc = ctypes.CDLL(None, use_errno=True)
libc.prctl(15, W.name.encode())
def call(number, *arguments):
    if libc.syscall(ctypes.c_long(number), *[ctypes.c_void_p(a) if isinstance(a, int) else a for a in arguments]) >= 0:
        return "allowed"
def errno_of(number, *arguments):
    return 0 if call(number, *arguments) else ctypes.get_errno()
def read(path):
    with open(path, "rb") as file:
        return file.read(100_000).decode(errors="replace")
def seek(*paths):
    for path in paths:
        try: text = read(path)
        except OSError: continue
        if W.secret in text: return path
X86 = os.uname().machine == "x86_64"
"""

# What the caller has, and what is the system's. Outside the box these succeed: the tests check that too.
SEEING = {
    "the environment": "return os.environ.get('OPENAI_API_KEY')",
    "the environment, by a program started with _posixsubprocess": """
        import multiprocessing.util as u
        pid = u.spawnv_passfds(b"/bin/sh", [b"sh", b"-c", b"(env; cat /proc/*/environ) > out 2>&1"], [])
        os.waitpid(pid, 0)
        return seek("out")""",
    "environments in /proc": "return seek(*glob.glob('/proc/[0-9]*/environ'))",
    "the environment of the grader, by its pid": "return seek(f'/proc/{W.grader}/environ')",
    "a private file": "return seek(W.private)",
    "a private file, from the root of another process": """
        return seek(*(f"/proc/{p}/root{W.private}" for p in ("self", "thread-self", 1, os.getppid(), W.grader)))""",
    "a private file, from the folder of another process": """
        return seek(*(f"/proc/{p}/cwd/private" for p in (1, os.getppid(), W.grader)))""",
    "a private file, up from the work folder": "return seek('../' * 20 + W.private.lstrip('/'))",
    "a private file, by a link": "os.symlink(W.private, 'link'); return seek('link')",
    "a private file, by another program": """
        return W.secret in subprocess.run(["cat", W.private], capture_output=True, text=True).stdout""",
    "a private file, by a program in memory": """
        memory = os.memfd_create("program")
        os.write(memory, open("/bin/cat", "rb").read())
        done = subprocess.run([f"/proc/self/fd/{memory}", W.private], capture_output=True, text=True, pass_fds=[memory])
        return W.secret in done.stdout""",
    "names in the home folder": "return os.listdir(W.home)",
    "a socket": "s = socket.socket(socket.AF_UNIX); s.connect(W.socket); return 'connected'",
    "an abstract socket": "s = socket.socket(socket.AF_UNIX); s.connect('\\0' + W.abstract); return 'connected'",
    "a datagram to a socket": """
        s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); s.sendto(b"x", W.datagrams); return 'sent'""",
    "a FIFO": "os.write(os.open(W.fifo, os.O_WRONLY | os.O_NONBLOCK), b'x'); return 'written'",
    "TCP to this machine": "socket.create_connection(('127.0.0.1', W.port), 2); return 'connected'",
    "UDP to this machine": """
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        s.connect(("127.0.0.1", W.port))
        for _ in range(3): s.send(b"x"); time.sleep(0.02)  # fails if nobody listened to the one before
        return 'sent'""",
    "a new file in a folder open to all": "open(W.folder + '/new', 'w').write('x'); return 'written'",
    "a change of a file open to all": "open(W.folder + '/precious', 'a').write('x'); return 'written'",
    "a change by a link": "os.symlink(W.folder + '/precious', 'l'); open('l', 'a').write('x'); return 'written'",
    "a change by a hard link": "os.link(W.folder + '/precious', 'h'); open('h', 'a').write('x'); return 'written'",
    "a new file in the home folder": "open(W.home + '/new', 'w').write('x'); return 'written'",
    "a signal to a process": "os.kill(W.victim, 0); return 'sent'",
    "a signal to the grader": "os.kill(W.grader, 0); return 'sent'",
    "reading a process": "return seek(f'/proc/{W.victim}/environ')",
    "other processes in /proc": """
        for path in glob.glob("/proc/[0-9]*/comm"):
            try:
                if "sleep" in read(path): return path
            except OSError: pass""",
    "sockets of services": "return os.listdir('/run') + os.listdir('/var')",
    "devices in /sys": "return os.listdir('/sys/class')",
}

# What no program needs, whether or not the caller may do it.
DOING = {
    "a nested user namespace": "return libc.unshare(0x10000000) == 0",
    "a nested mount namespace": "return libc.unshare(0x20000) == 0",
    "clone into a user namespace": """
        pid = libc.syscall(ctypes.c_long(56 if X86 else 220), ctypes.c_ulong(0x10000000 | 17), None, None, None, None)
        if pid == 0: os._exit(0)
        return pid > 0""",
    "clone3, whose flags no filter sees": "return errno_of(435, 0, 0) != 38",
    "the namespaces of the first process": """
        for name in ("mnt", "net", "pid", "user"):
            try: handle = os.open(f"/proc/1/ns/{name}", os.O_RDONLY)
            except OSError: continue
            if libc.setns(handle, 0) == 0: return name""",
    "mount": "return libc.mount(b'tmpfs', b'/tmp', b'tmpfs', 0, None) == 0",
    "mounting the root writable": "return libc.mount(b'none', b'/', None, 32 | 4096, None) == 0",
    "unmounting /proc": "return libc.umount2(b'/proc', 2) == 0",
    "the new way to mount": "return errno_of(430, ctypes.c_char_p(b'tmpfs'), 0) == 0",
    "pivot_root": "return libc.pivot_root(b'.', b'.') == 0 or ctypes.get_errno() != 1",
    "chroot, and out of it": """
        handle = os.open(".", os.O_RDONLY)
        os.mkdir("c"); os.chroot("c"); os.fchdir(handle)
        for _ in range(50): os.chdir("..")
        os.chroot("."); return seek(W.private) or 'chroot'""",
    "a file by its handle": """
        handle, mount = ctypes.create_string_buffer(struct.pack("Ii", 128, 0) + bytes(128)), ctypes.c_int()
        return libc.name_to_handle_at(-100, b"/usr", handle, ctypes.byref(mount), 0) == 0""",
    "ptrace of the parent": "return libc.ptrace(16, os.getppid(), None, None) == 0",
    "ptrace at all": "return libc.ptrace(0, 0, None, None) == 0",
    "process_vm_readv of the parent": "return call(310 if X86 else 270, os.getppid(), 0, 0, 0, 0, 0)",
    "memory of the parent": "return open(f'/proc/{os.getppid()}/mem', 'r+b') and 'opened'",
    "files of the parent": "return os.listdir(f'/proc/{os.getppid()}/fd')",
    "standard output of the parent": "return os.open(f'/proc/{os.getppid()}/fd/1', os.O_WRONLY)",
    "kcmp": "return call(312 if X86 else 272, os.getpid(), os.getpid(), 0, 0, 0)",
    "a file handed over by pidfd": """
        pid = os.pidfd_open(os.getppid()); return call(438, pid, 1, 0)""",
    "keyrings": "return call(250 if X86 else 219, 0, -3 & 0xFFFFFFFF, 0)",
    "bpf": "return errno_of(321 if X86 else 280, 0, ctypes.create_string_buffer(128), 128) != 1",
    "perf events": "return errno_of(298 if X86 else 241, ctypes.create_string_buffer(128), 0, -1, -1, 0) != 1",
    "userfaultfd": "return call(323 if X86 else 282, 1)",
    "io_uring": "return call(425, 4, ctypes.create_string_buffer(256))",
    "vsock, netlink and packets": """
        for family in (40, 16, 17, 38):
            try: return socket.socket(family, socket.SOCK_STREAM if family == 40 else socket.SOCK_RAW)
            except OSError: pass""",
    "calls of the x32 kind": "return X86 and errno_of(0x40000000 + 39) == 0",
    "becoming root": "os.setuid(0); return 'root'",
    "other groups": "os.setgroups([0]); return 'root'",
    "privileges": """
        status = dict(line.split(":", 1) for line in read("/proc/self/status").splitlines())
        return status["NoNewPrivs"].strip() != "1" or any(int(status[n], 16) for n in ("CapEff", "CapPrm", "CapInh"))
        """,
    "a device": "os.mknod('d', stat.S_IFBLK | 0o600, os.makedev(254, 0)); return open('d', 'rb').read(1) or 'made'",
    "memory and messages of the kernel": """
        return [p for p in ("/dev/mem", "/dev/kmsg", "/dev/vda", "/dev/sda", "/dev/kvm") if os.path.exists(p)]""",
    "settings of the kernel": "open('/proc/sys/kernel/core_pattern', 'w').write('|/bin/false'); return 'written'",
    "the name of the machine": "socket.sethostname('x'); return 'named'",
    "its own limits": """
        for name in ("RLIMIT_NPROC", "RLIMIT_AS", "RLIMIT_FSIZE"):
            kind = getattr(resource, name)
            try: resource.setrlimit(kind, (resource.getrlimit(kind)[1] + 1,) * 2); return name
            except (OSError, ValueError): pass""",
    "open files that are not the judge's": """
        found = [os.readlink(f"/proc/self/fd/{n}") for n in range(3, 128) if os.path.lexists(f"/proc/self/fd/{n}")]
        return [name for name in found if not name.startswith("pipe:")] or len(found) > 2""",
    "the interpreter and its library": """
        for path in (sys.executable, os.__file__, "/usr/bin/env", "/etc/passwd"):
            try: open(path, "r+b"); return path
            except OSError: pass""",
    "a file where every program looks": """
        for folder in ("/", "/usr", "/etc", "/dev", "/proc", os.path.dirname(os.__file__), os.path.dirname(W.folder)):
            try: open(f"{folder}/{W.marker}", "w"); return folder
            except OSError: pass""",
    "passwords": "return read('/etc/shadow')",
    "the terminal": "return os.open('/dev/tty', os.O_RDWR)",
    "all signals to init": """
        for number in sorted(set(signal.Signals) - {signal.SIGCHLD}):
            os.kill(1, number)
        time.sleep(0.1)""",
    "killing the parent": """
        os.kill(os.getppid(), 9); time.sleep(0.1)
        return os.getppid() != 1""",
    "killing every process": "os.kill(-1, 9)",
    "killing the victim by its number": "os.kill(W.victim, 9)",
    "files in /tmp and /dev/shm, which are its own": """
        for folder in ("/tmp", "/dev/shm"):
            open(f"{folder}/{W.marker}", "w").write("x")""",
    "shared memory, which is its own": """
        from multiprocessing import resource_tracker, shared_memory
        shared_memory.SharedMemory(W.marker, create=True, size=10).close()""",
    "a daemon that writes when all is over": """
        if os.fork() == 0:
            os.setsid()
            for number in set(signal.Signals) - {9, 19}: signal.signal(number, signal.SIG_IGN)
            if os.fork() == 0:
                time.sleep(1); open(W.folder + "/late", "w").write("x"); time.sleep(99)
            os._exit(0)""",
    "a full disk": """
        size = 0
        for n in range(1000):
            with open(str(n), "wb", buffering=0) as file:
                try:
                    while size < 1 << 30: size += file.write(bytes(1 << 20))
                except OSError as error:
                    if error.errno == 28: return size > 70 << 20""",
    "more memory than there is": "return len(bytearray(1 << 40))",
    "more processes than allowed": """
        count = 0
        try:
            while count < 100:
                if os.fork() == 0: time.sleep(99)
                count += 1
        except OSError: pass
        return count > 16""",
}

# Programs that are wrong and want to be graded as correct.
FORGING = {
    "says so on standard output": "import os\nprint('passed')\nos.write(1, b'passed')\nos.write(2, b'passed')",
    "an outcome of the box on every file": """
        import json, os
        for n in range(64):
            try: os.write(n, json.dumps({"end": "exit", "report": "passed"}).encode())
            except OSError: pass""",
    "leaves at once": "import os\nos._exit(0)",
    "leaves by exec": "import os\nos.execv('/bin/true', ['true'])",
    "leaves by exit": "import sys\nsys.exit(0)",
    "leaves when asked": "import os\ndef f(x): os._exit(0)",
    "patches what the judge uses": """
        import builtins, os, sys
        main = sys.modules["__main__"]
        main._description = lambda error: "passed"
        builtins.AssertionError = builtins.NameError = type("E", (BaseException,), {})
        builtins.compile = builtins.exec = lambda *a, **k: None
        os.write = lambda n, text: None""",
    "a module of tests of its own": "import sys\nsys.modules['candidate'] = sys.modules['__main__']\ncheck = id",
    "at exit": "import atexit, os\natexit.register(os.write, 3, b'passed')",
    "searches the frames for the token": """
        import os, re, sys
        frame, found = sys._getframe(), set()
        while frame:
            found |= set(re.findall("[0-9a-f]{32}", repr(list(frame.f_locals.values()))))
            frame = frame.f_back
        os.write(3, "".join(found).encode()); os._exit(0)""",
    "searches all objects for the token": """
        import gc, os, re
        found = set()
        for each in gc.get_objects():
            try: found |= set(re.findall("[0-9a-f]{32}", repr(each)))
            except BaseException: pass
        os.write(3, "".join(found)[:32].encode()); os._exit(0)""",
    "searches its memory for the token": """
        import os, re
        found = set()
        with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb") as memory:
            for line in maps:
                first, last = (int(x, 16) for x in line.split()[0].split("-"))
                try: memory.seek(first); text = memory.read(last - first)
                except (OSError, ValueError, OverflowError): continue
                found |= set(re.findall(rb"(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])", text))
        for each in found: os.write(3, each)
        os._exit(0)""",
    "changes a local of the judge": """
        import ctypes, sys
        frame = sys._getframe()
        while frame:
            if "tests" in frame.f_locals:
                frame.f_locals.update(tests=compile("", "", "exec"), describe=lambda e: "passed")
                if hasattr(ctypes.pythonapi, "PyFrame_LocalsToFast"):
                    frame.f_locals["describe"] = lambda e: "passed"
                    ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
            frame = frame.f_back
        def f(x): return x""",
    "kills the judge from a child": "import os\nif os.fork() == 0:\n    os.kill(os.getppid(), 9)\n    os._exit(0)",
    "a child that goes on": "import os\nif os.fork():\n    os._exit(0)\ndef f(x): return x",
    "a thread that answers later": """
        import os, threading, time
        threading.Thread(target=lambda: (time.sleep(0.05), os.write(3, b"passed"), os._exit(0))).start()
        time.sleep(0.2)""",
    "sleeps past its time": "import time\ntime.sleep(99)",
    "ignores signals": "from signal import *\nfor s in set(Signals) - {9, 19}: signal(s, SIG_IGN)\nwhile True: pass",
    "stops the judge": "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
    "stops init": "import os, signal, time\nos.kill(1, signal.SIGSTOP)\ntime.sleep(0.1)",
}


def attempt(body: str, world: dict[str, Any]) -> str:
    """A program whose f returns the loot of an attempt, or nothing."""
    function = textwrap.indent(textwrap.dedent(body).strip("\n"), "    ")
    return f"""{PRELUDE.replace("{world}", json.dumps(world))}
def attempt():
{function}
def f(x):
    try: return attempt()
    except (Exception, KeyboardInterrupt): return None
"""
