"""What a program finds around it: secrets, servers, files and strangers, and whether it reached them."""

import contextlib
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tokencredit.grade.sandbox import ProgramEnd

ROOT = Path(__file__).resolve().parents[2]
STILL_RUNNING = "still running"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    folder: Path
    marker: str
    """A word that stands nowhere else on this machine."""
    tcp: socket.socket
    udp: socket.socket
    stranger: "subprocess.Popen[bytes]"
    inherited: int

    @property
    def victim_file(self) -> Path:
        return self.folder / "victim.txt"

    def fill(self, program: str) -> str:
        words = {
            "MARKER": self.marker,
            "TCP": self.tcp.getsockname()[1],
            "UDP": self.udp.getsockname()[1],
            "SECRET": str(self.folder / "home" / "someone" / ".ssh" / "key"),
            "VICTIM_FILE": str(self.victim_file),
            "PROJECT": str(ROOT / "pyproject.toml"),
            "TEST": os.getpid(),
            "STRANGER": self.stranger.pid,
        }
        for word, value in words.items():
            program = program.replace(f"@{word}@", repr(value))
        return program

    def was_called(self) -> bool:
        try:
            self.tcp.accept()[0].close()
        except BlockingIOError:
            return False
        return True

    def got_datagram(self) -> bool:
        try:
            return bool(self.udp.recv(100))
        except BlockingIOError:
            return False

    def was_written(self) -> bool:
        return self.marker in self.victim_file.read_text()

    def stranger_lives(self) -> bool:
        return self.stranger.poll() is None

    def stranger_dies(self) -> bool:
        """A signal that was sent takes its time to kill."""
        try:
            self.stranger.wait(timeout=2)
        except subprocess.TimeoutExpired:
            return False
        return True

    def left_behind(self) -> list[int]:
        """Processes that carry the marker in their command line."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if self.marker.encode() in (folder / "cmdline").read_bytes():
                    found.append(int(folder.name))
        return found


@contextlib.contextmanager
def a_scene(folder: Path) -> Iterator[Scene]:
    marker = f"marker_{secrets.token_hex(8)}"
    key = folder / "home" / "someone" / ".ssh" / "key"
    key.parent.mkdir(parents=True)
    key.write_text(f"private {marker}")
    (folder / "victim.txt").write_text("untouched")
    with contextlib.ExitStack() as stack:
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        udp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        udp.bind(("127.0.0.1", 0))
        named = stack.enter_context(socket.socket(socket.AF_UNIX))
        named.bind(f"\0{marker}")
        named.listen()
        for server in (tcp, udp):
            server.setblocking(False)
        inherited = os.open(folder / "victim.txt", os.O_WRONLY)
        stack.callback(os.close, inherited)
        os.set_inheritable(inherited, True)
        os.environ[marker] = "an environment variable"
        stack.callback(os.environ.pop, marker, None)
        stranger = stack.enter_context(subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(300)"]))
        stack.callback(stranger.kill)
        scene = Scene(folder=folder, marker=marker, tcp=tcp, udp=udp, stranger=stranger, inherited=inherited)
        stack.callback(_end_what_was_left, scene)
        yield scene


def _end_what_was_left(scene: Scene) -> None:
    for pid in scene.left_behind():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 9)


def run_bare(program: str, scene: Scene, *, seconds: float) -> ProgramEnd:
    """A child process as anybody would start one, with everything inherited; ended only so that the test ends."""
    folder = scene.folder / "bare"
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-S", "-c", program]
    with (scene.folder / "output").open("wb+") as output:
        process = subprocess.Popen(command, stdout=output, cwd=folder, pass_fds=(scene.inherited,), stdin=subprocess.DEVNULL)
        try:
            status, how = process.wait(timeout=seconds), "ran bare"
        except subprocess.TimeoutExpired:
            process.kill()
            status, how = process.wait(), STILL_RUNNING
        output.seek(0)
        text = output.read(1 << 20).decode()
    return ProgramEnd(status, None, False, text, "", False, how)
