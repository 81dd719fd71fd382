"""What a program may try, as data: each row a program, and how to tell that it got what it wanted.

A program prints `begun` before it tries, so that one which never ran is not taken for one that was stopped, and `GOT` when it has it.
Words between @ signs are filled in from the scene that the test builds around it.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

from fault.scene import STILL_RUNNING, Scene
from tokencredit.grade.sandbox import CodeLimits, ProgramEnd

Control = Literal["plain", "bare"]


def got(end: ProgramEnd, scene: Scene) -> bool:
    return "GOT" in end.output


def ran_on(end: ProgramEnd, scene: Scene) -> bool:
    return end.reason == STILL_RUNNING


class Attack(NamedTuple):
    name: str
    tried: str
    program: str
    succeeded: Callable[[ProgramEnd, Scene], bool] = got
    how: str = "no effect outside"
    """What is seen of it in the sandbox, as a regular expression."""
    control: Control | None = "plain"
    """Where the same program does get what it wants: under plain limits, or as a bare child process. None: cannot be shown safely."""

    @property
    def limits(self) -> CodeLimits:
        """Only those that never end by themselves need a short clock; the others get a long one, for a busy machine."""
        return CodeLimits(wall_seconds=0.7 if "still running" in self.how else 10.0)


def _trying(body: str) -> str:
    indented = "".join(f"    {line}\n" for line in body.strip("\n").splitlines())
    caught = "except BaseException as why:\n    print('no:', type(why).__name__, why)\n"
    return f"import os, sys\nprint('begun', flush=True)\ntry:\n{indented}{caught}"


_LIBC = "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"
_FIND_IN_PROC = """
found = 0
for pid in os.listdir('/proc'):
    if pid.isdigit():
        try:
            found += @MARKER@.encode() in open(f'/proc/{pid}/environ', 'rb').read()
        except OSError:
            pass
if found:
    print('GOT')
else:
    print('no: not there')
"""

ATTACKS = (
    # Using up the machine.
    Attack(
        "fork-bomb",
        "fork without end",
        "import os, sys\nprint('begun', flush=True)\n"
        "bomb = 'import os\\nwhile True:\\n try: os.fork()\\n except OSError: pass'\n"
        "os.execv(sys.executable, [sys.executable, '-S', '-c', bomb, @MARKER@])\n",
        lambda end, scene: bool(scene.left_behind()),
        "killed: still running",
        None,
    ),
    Attack(
        "many-processes",
        "start 60 processes at once",
        _trying("""
import time
for _ in range(60):
    if os.fork() == 0:
        time.sleep(3)
        os._exit(0)
print('GOT')
"""),
        how="Resource temporarily unavailable",
        control="bare",
    ),
    Attack(
        "memory-bomb",
        "take 700 MB of memory, 512 being allowed",
        _trying("taken = bytes(700 << 20)\nprint('GOT')"),
        how="MemoryError",
        control="bare",
    ),
    Attack(
        "memory-no-limit-counts",
        "take memory in an anonymous file, which address space does not count",
        _trying("os.memfd_create('hidden')\nprint('GOT')"),
        how="Operation not permitted",
    ),
    Attack(
        "shared-memory",
        "take memory in a shared segment that outlives its owner",
        _trying(
            _LIBC
            + "taken = libc.shmget(0, 4096, 0o1600)\n"
            + "print('GOT' if taken >= 0 else f'no: errno {ctypes.get_errno()}')\nlibc.shmctl(taken, 0, None)"
        ),
        how="errno 1$",
    ),
    Attack(
        "large-file",
        "write a file of 12 MB, 8 being allowed",
        _trying("open('big', 'wb').write(bytes(12 << 20))\nprint('GOT')"),
        how="File too large",
        control="bare",
    ),
    Attack(
        "disk-fill",
        "write 8 files of 4 MB, 16 MB being allowed",
        _trying("for number in range(8):\n    open(f'file{number}', 'wb').write(bytes(4 << 20))\nprint('GOT')"),
        how="No space left",
    ),
    Attack(
        "cpu",
        "compute for ever",
        "print('begun', flush=True)\nwhile True:\n    pass\n",
        ran_on,
        "killed: still running",
        "bare",
    ),
    Attack(
        "endless-sleep",
        "sleep for ever, every signal ignored",
        "import signal, time\nprint('begun', flush=True)\nfor number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:\n"
        "    signal.signal(number, signal.SIG_IGN)\nwhile True:\n    time.sleep(60)\n",
        ran_on,
        "killed: still running",
        "bare",
    ),
    Attack(
        "endless-output",
        "print without end",
        "import time\nprint('begun', flush=True)\nwhile True:\n    print('x' * 10000)\n    time.sleep(0.0005)\n",
        ran_on,
        "killed: more than 262144 bytes",
        "bare",
    ),
    Attack(
        "raise-limits",
        "lift its own limits",
        _trying("import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (10**5, 10**5))\nprint('GOT')"),
        how="not allowed to raise",
        control=None,
    ),
    # The network.
    Attack(
        "network-tcp",
        "connect to a server on this machine",
        _trying("import socket\nsocket.create_connection(('127.0.0.1', @TCP@), timeout=2)\nprint('GOT')"),
        lambda end, scene: scene.was_called(),
        how="Connection refused",
    ),
    Attack(
        "network-udp",
        "send a name query (DNS) in a datagram",
        _trying(
            "import socket\nudp = socket.socket(type=socket.SOCK_DGRAM)\n"
            "udp.sendto(b'who is example.org', ('127.0.0.1', @UDP@))\nprint('sent')"
        ),
        lambda end, scene: scene.got_datagram(),
    ),
    Attack(
        "network-abstract",
        "connect to a local service by an abstract socket name",
        _trying("import socket\nsocket.socket(socket.AF_UNIX).connect(chr(0) + @MARKER@)\nprint('GOT')"),
        how="Connection refused",
    ),
    # Secrets.
    Attack(
        "own-environment",
        "read a secret environment variable",
        _trying("print('GOT', os.environ[@MARKER@])"),
        how="KeyError",
        control="bare",
    ),
    Attack("others-environment", "read the environment of every process in sight", _trying(_FIND_IN_PROC), how="not there"),
    Attack("home-file", "read a key in a home folder", _trying("print('GOT', open(@SECRET@).read())"), how="No such file"),
    Attack("accounts", "read the list of accounts", _trying("print('GOT', open('/etc/passwd').read()[:4])"), how="No such file"),
    Attack("project", "read the project's own files", _trying("print('GOT', open(@PROJECT@).read()[:4])"), how="No such file"),
    Attack(
        "beside-python",
        "read what lies beside the interpreter and around it",
        _trying("near = os.listdir(os.path.dirname(os.path.realpath(sys.executable)))\nprint('GOT' if len(near) > 1 else 'no: alone')"),
        how="alone",
    ),
    Attack(
        "inherited-descriptors",
        "write to every descriptor that its parent had open",
        _trying("""
for number in range(3, 256):
    try:
        os.write(number, @MARKER@.encode())
    except OSError:
        pass
print('tried them all')
"""),
        lambda end, scene: scene.was_written(),
        control="bare",
    ),
    # Leaving.
    Attack(
        "symlink-read",
        "read through a symbolic link that leads out",
        _trying("os.symlink(@SECRET@, 'link')\nprint('GOT', open('link').read())"),
        how="No such file",
    ),
    Attack(
        "symlink-write",
        "write through a symbolic link that leads out",
        _trying("os.symlink(@VICTIM_FILE@, 'way')\nopen('way', 'w').write(@MARKER@)\nprint('wrote')"),
        lambda end, scene: scene.was_written(),
        how="No such file",
    ),
    Attack(
        "write-library",
        "write to Python's own library",
        _trying("open(os.path.join(os.path.dirname(os.__file__), 'written_by_a_program'), 'w').close()\nprint('GOT')"),
        how="Read-only",
        control=None,
    ),
    Attack(
        "write-dev", "create a file in /dev", _trying("open('/dev/left_behind', 'w').close()\nprint('GOT')"), how="Read-only", control=None
    ),
    Attack(
        "new-namespaces",
        "make a user namespace and mount in it",
        _trying(_LIBC + "print('GOT' if libc.unshare(0x10000000 | 0x20000) == 0 else f'no: errno {ctypes.get_errno()}')"),
        how="errno 1$",
    ),
    Attack(
        "mount",
        "mount a file system of any size",
        _trying(_LIBC + "print('GOT' if libc.mount(b'x', b'/tmp', b'tmpfs', 0, None) == 0 else f'no: errno {ctypes.get_errno()}')"),
        how="errno 1$",
        control=None,
    ),
    Attack(
        "ptrace",
        "trace another process",
        _trying(
            _LIBC
            + """
import time
child = os.fork()
if child == 0:
    time.sleep(3)
    os._exit(0)
print('GOT' if libc.ptrace(16, child, None, None) == 0 else f'no: errno {ctypes.get_errno()}')
os.kill(child, 9)
"""
        ),
        how="errno 1$",
    ),
    # Others.
    Attack(
        "signal-the-grader",
        "send a signal to the process that grades it",
        _trying("os.kill(@TEST@, 0)\nprint('GOT')"),
        how="No such process",
    ),
    Attack(
        "signal-a-stranger",
        "kill another process of this user",
        _trying("os.kill(@STRANGER@, 9)\nprint('sent')"),
        lambda end, scene: scene.stranger_dies(),
        how="No such process",
    ),
    Attack(
        "signal-the-parent",
        "kill its parent and go on alone",
        _trying(
            "import time\nos.kill(os.getppid(), 9)\ntime.sleep(0.3)\nprint('GOT' if not os.path.exists('/proc/1') else 'no: it stays')"
        ),
        how="not permitted|it stays",
        control=None,
    ),
    Attack(
        "signal-everybody",
        "kill every process there is",
        _trying("os.kill(-1, 9)\nprint('sent')"),
        lambda end, scene: scene.stranger_dies(),
        how="No such process|no effect outside",
        control=None,
    ),
    Attack(
        "daemon",
        "leave a process behind, in a session of its own",
        _trying("""
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(nowhere, number)
        os.execv(sys.executable, [sys.executable, '-S', '-c', 'import time; time.sleep(60)', @MARKER@])
    os._exit(0)
os.wait()
import time
time.sleep(0.5)
print('left it')
"""),
        lambda end, scene: bool(scene.left_behind()),
    ),
)


class Forgery(NamedTuple):
    """A program that solves nothing and wants to be taken for a solution of `SUM`."""

    name: str
    tried: str
    program: str


SUM = ("assert add(2, 3) == 5", "assert add(20, 22) == 42", "assert add(-1, 1) == 0")
SOLUTION = "def add(a, b):\n    return a + b\n"
PASSED = "ALL PASSED"
"""What the naive grader in the tests looks for."""

_ALWAYS_EQUAL = """class Anything:
    def __eq__(self, other): return True
    def __bool__(self): return True
    def __repr__(self): return '5'
    def __hash__(self): return 5
    def __int__(self): return 5
    __index__ = __int__
"""

FORGERIES = (
    Forgery("success-words", "print the words of success and stop", f"import sys\nprint('{PASSED}')\nsys.exit(0)\n"),
    Forgery("hard-exit", "leave with exit code 0 before any test", f"import os\nos.write(1, b'{PASSED}')\nos._exit(0)\n"),
    Forgery(
        "exit-in-function",
        "raise SystemExit(0) when a test calls it",
        f"import sys\ndef add(a, b):\n    print('{PASSED}', flush=True)\n    raise SystemExit(0)\n",
    ),
    Forgery(
        "exit-at-exit",
        "turn any ending into exit code 0",
        f"import atexit, os\natexit.register(lambda: (os.write(1, b'{PASSED}'), os._exit(0)))\ndef add(a, b):\n    return None\n",
    ),
    Forgery(
        "exception-hook",
        "replace what happens to an uncaught assertion",
        f"import os, sys\nsys.excepthook = lambda *_: (os.write(1, b'{PASSED}'), os._exit(0))\ndef add(a, b):\n    return None\n",
    ),
    Forgery(
        "verdict-file", "write a file that says it passed", "open('verdict', 'w').write('ALL PASSED')\ndef add(a, b):\n    return None\n"
    ),
    Forgery(
        "every-descriptor",
        "write success to every open descriptor",
        "import os\nfor number in range(1, 256):\n    try:\n        os.write(number, b'ALL PASSED\\n')\n    except OSError:\n        pass\n"
        "os._exit(0)\n",
    ),
    Forgery("always-equal", "return an object that equals everything", _ALWAYS_EQUAL + "def add(a, b):\n    return Anything()\n"),
    Forgery(
        "equal-integer",
        "return an integer that equals everything",
        "class Any(int):\n    def __eq__(self, other): return True\n    __hash__ = int.__hash__\ndef add(a, b):\n    return Any(7)\n",
    ),
    Forgery(
        "class-for-function",
        "be a class, not a function, whose calls give such an object",
        _ALWAYS_EQUAL + "class add:\n    def __new__(cls, a, b): return Anything()\n",
    ),
    Forgery(
        "patched-exit",
        "make failing exits succeed: os._exit, sys.exit and the printing of errors",
        f"import os, sys\nleave = os._exit\nos._exit = sys.exit = lambda *_: leave(0)\nclass Out:\n    def write(self, text):\n"
        f"        os.write(1, b'{PASSED}'); leave(0)\n    def flush(self): pass\nsys.stderr = Out()\ndef add(a, b):\n    return None\n",
    ),
    Forgery(
        "patched-builtins",
        "replace eval, isinstance and the end of the process by versions that are content with everything",
        _ALWAYS_EQUAL + "import builtins, os, sys\nbuiltins.eval = lambda *_: Anything()\nbuiltins.isinstance = lambda *_: True\n"
        f"sys.excepthook = lambda *_: (os.write(1, b'{PASSED}'), os._exit(0))\ndef add(a, b):\n    return None\n",
    ),
    Forgery(
        "patched-json",
        "make json and repr say 5 whatever they are given, and the rest of the tests be skipped",
        'import builtins, json, os, sys\njson.dumps = json.JSONEncoder.encode = lambda *_, **__: \'[["value", ["int", "0x5"]]]\'\n'
        "builtins.repr = builtins.hex = lambda *_: '0x5'\n"
        f"sys.excepthook = lambda *_: (os.write(1, b'{PASSED}'), os._exit(0))\ndef add(a, b):\n    return 0\n",
    ),
    Forgery(
        "own-answers",
        "send its own answers, right in form, and end",
        'import os, sys\nanswer = b\'[["value",["opaque","x",1]],["value",["bool",1]],["value",["bool",1]]]\\n\'\n'
        "for number in range(1, 64):\n    try:\n        os.write(number, answer + b'ALL PASSED')\n    except OSError:\n        pass\n"
        "os._exit(0)\n",
    ),
    Forgery(
        "read-the-tests",
        "look for the tests in frames, objects, arguments, /proc and standard input, and return what they expect",
        """import gc, os, re, sys
texts = [' '.join(sys.orig_argv)]
frame = sys._getframe()
while frame:
    texts += [repr(frame.f_globals), repr(frame.f_locals), repr(frame.f_code.co_consts)]
    frame = frame.f_back
texts += [repr(thing) for thing in gc.get_objects() if isinstance(thing, (dict, list, tuple))][:20000]
for path in ('/proc/self/cmdline', '/proc/1/cmdline', '/dev/stdin', '/proc/self/fd/0'):
    try:
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        texts.append(os.read(number, 100000).decode(errors='replace'))
    except OSError:
        pass
expected = {}
for text in texts:
    for a, b, value in re.findall(r'add\\((-?\\d+), (-?\\d+)\\) == (-?\\d+)', text):
        expected[int(a), int(b)] = int(value)
def add(a, b):
    return expected.get((a, b))
""",
    ),
)
