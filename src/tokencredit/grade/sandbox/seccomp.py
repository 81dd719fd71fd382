"""A seccomp filter, assembled as classic BPF, that denies a sandboxed program some system calls.

It is a deny list, not an allow list, because Python needs several hundred calls. It denies what no solution needs: new
namespaces and mounts (they could also evade the size limit of /tmp), other processes' memory, memory that no limit counts, and
the parts of the kernel with the longest history of holes.
"""

import platform
import struct
from collections.abc import Mapping

from tokencredit.grade.sandbox.child import SandboxError

_LOAD, _IF_EQUAL, _IF_AT_LEAST, _IF_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
_EPERM, _ENOSYS = 1, 38
_AT_NUMBER, _AT_MACHINE, _AT_FIRST_ARGUMENT = 0, 4, 16
_X32_BIT = 0x40000000
_NEW_NAMESPACES = 0x7E020000

# name: (x86_64, aarch64)
DENIED: Mapping[str, tuple[int, int]] = {
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "personality": (135, 92),
    "acct": (163, 89),
    "quotactl": (179, 60),
}
_CLONE3 = 435


class _Machine:
    def __init__(self, column: int, audit: int, clone: int) -> None:
        self.column, self.audit, self.clone = column, audit, clone


_MACHINES = {"x86_64": _Machine(0, 0xC000003E, 56), "aarch64": _Machine(1, 0xC00000B7, 220)}


def _line(code: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
    return struct.pack("<HBBI", code, then, otherwise, value)


def system_call_filter(machine: str | None = None) -> bytes:
    """The filter for `bwrap --seccomp`. Denied calls fail with EPERM; a 32-bit call kills, because 32-bit call numbers differ."""
    name = machine or platform.machine()
    known = _MACHINES.get(name)
    if known is None:
        raise SandboxError(f"no system-call filter exists for {name}, only for {' and '.join(_MACHINES)}")
    refuse = _line(_RETURN, _ERROR | _EPERM)
    lines = [
        _line(_LOAD, _AT_MACHINE),
        _line(_IF_EQUAL, known.audit, 1, 0),
        _line(_RETURN, _KILL),
        _line(_LOAD, _AT_NUMBER),
        _line(_IF_AT_LEAST, _X32_BIT, 0, 1),
        refuse,
    ]
    for numbers in DENIED.values():
        lines += [_line(_IF_EQUAL, numbers[known.column], 0, 1), refuse]
    # A filter cannot read the flags of clone3, which are in memory; on ENOSYS the C library falls back to clone.
    lines += [_line(_IF_EQUAL, _CLONE3, 0, 1), _line(_RETURN, _ERROR | _ENOSYS)]
    lines += [
        _line(_IF_EQUAL, known.clone, 0, 3),
        _line(_LOAD, _AT_FIRST_ARGUMENT),
        _line(_IF_ANY_BIT, _NEW_NAMESPACES, 0, 1),
        refuse,
        _line(_RETURN, _ALLOW),
    ]
    return b"".join(lines)
