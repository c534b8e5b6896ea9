"""Where a student's code runs while it is graded: what it sees, what it may use, and how it is ended.

It sees a list of folders and nothing else: Python, its packages without any `fedbook` in them, and its own
folder. Landlock (Linux 5.13 or newer) holds it to that list. `unshare` of util-linux, or else bubblewrap,
gives it namespaces of its own: a root with those folders alone, no network, no other processes; all that it
has started ends with it. `held` says what a machine has of this. Where it has no namespaces, Python's audit
hooks refuse to start processes, to signal any and to connect, which code written in C goes round."""
import ctypes
import os
import platform
import re
import shutil
import signal
import site
import struct
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

_SYSTEM = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache", "/etc/alternatives",
           "/etc/localtime", "/sys/devices/system/cpu", "/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
_MAC = ("/System", "/Library/Frameworks", "/opt/homebrew")
_WRITTEN, _PROC = ("/dev/null", "/dev/zero"), ("/proc/self", "/proc/cpuinfo", "/proc/meminfo")


def open_places() -> list[Path]:
    """Return the folders and files that a student's code may read, beside its own folder: Python and
    its packages, shared libraries, and what both read of the system."""
    python = [Path(prefix, part) for prefix in dict.fromkeys((sys.prefix, sys.base_prefix))
              for part in ("bin", "lib", "lib64", "pyvenv.cfg", "Frameworks", "Resources")]
    told = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")]
    packages = [Path(place) for place in (*sys.path, site.getusersitepackages())
                if Path(place).name in ("site-packages", "dist-packages")]
    system = map(Path, _SYSTEM + _MAC * (sys.platform == "darwin"))
    return [place for place in dict.fromkeys([*python, *told, *packages, *system]) if place.exists()]


def hidden_places(places: Sequence[Path]) -> list[Path]:
    """Return what lies in `places` and stays closed nevertheless: each `fedbook` among the packages of any
    Python there."""
    found = [each for place in places if place.is_dir()
             for pattern in ("*fedbook*", "*-packages/*fedbook*", "python*/*-packages/*fedbook*")
             for each in place.glob(pattern) if place.name != "bin"]
    return list(dict.fromkeys(each.resolve() for each in found))


_EXECUTE, _WRITE, _READ, _LIST, _TRUNCATE = 1, 2, 4, 8, 1 << 14      # rights of Landlock
_RIGHTS = {1: 0x1FFF, 2: 0x3FFF, 3: 0x7FFF, 5: 0xFFFF}               # all rights, from a version on


def landlock() -> int:
    "Return the version of Landlock that this system's kernel has, 0 for none."
    return max(0, ctypes.CDLL(None).syscall(444, None, 0, 1)) if sys.platform == "linux" else 0


def _allow_below(path: Path, hidden: Sequence[Path], allow: Callable) -> None:
    "Call `allow(path, rights)` to read and list all in `path` but what lies in `hidden`."
    if path in hidden: return
    if not any(path in each.parents for each in hidden): return allow(path, _EXECUTE | _READ | _LIST)
    allow(path, _LIST)
    for entry in os.scandir(path):
        if not entry.is_symlink(): _allow_below(Path(entry.path), hidden, allow)


def close_folders(places: Sequence[Path], own: Path, hidden: Sequence[Path] = ()) -> bool:
    """Forbid this process and its children, from now on, to open, list or run anything but what lies in
    `places`, and not what lies in `hidden` there; to write outside the folder `own`; and, as far as the
    kernel's version goes, TCP (6.7), and signals and abstract sockets to processes outside (6.12).
    Linux's Landlock does it, and it cannot be undone. Return whether it worked."""
    kernel = landlock()
    if not kernel: return False
    rights = _RIGHTS[max(since for since in _RIGHTS if since <= kernel)]
    libc = ctypes.CDLL(None, use_errno=True)
    asked = struct.pack("QQQ", rights, 3, 3)[:8 if kernel < 4 else 16 if kernel < 6 else 24]
    rules = libc.syscall(444, asked, len(asked), 0)
    if rules < 0: return False
    def allow(path, wanted):
        if not Path(path).is_dir(): wanted &= _EXECUTE | _WRITE | _READ | _TRUNCATE
        with suppress(OSError):
            place = os.open(path, os.O_PATH | os.O_CLOEXEC)
            libc.syscall(445, rules, 1, struct.pack("=Qi", wanted & rights, place), 0)
            os.close(place)
    for place in places: _allow_below(place.resolve(), hidden, allow)
    for path in _WRITTEN: allow(path, _READ | _WRITE | _TRUNCATE)
    for path in _PROC: allow(path, _READ | _LIST)
    allow(own, rights)
    libc.prctl(38, 1, 0, 0, 0)
    return libc.syscall(446, rules, 0) == 0


_STARTS = ("subprocess.Popen", "os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn",
           "os.kill", "os.killpg", "socket.connect", "socket.bind", "socket.sendto")


def keep_watch(places: Sequence[Path], own: Path, hidden: Sequence[Path] = ()) -> None:
    """Make this Python process refuse, from now on, to open what lies outside of `places` and the folder
    `own`, or in `hidden`, to start or signal processes, and to connect. What it refuses raises
    `PermissionError`. It cannot be undone (an audit hook)."""
    inside = lambda paths: tuple(text for path in paths for text in {f"{path}", f"{path.resolve()}"})
    open_, shut = inside([*places, own, *map(Path, _PROC)]), inside(hidden)
    real, text, under = os.path.realpath, os.fsdecode, lambda path, of: any(
        path == each or path.startswith(each + os.sep) for each in of)
    def hook(event, args):
        if event in _STARTS: raise PermissionError("no process is started and nobody is reached while grading")
        if event not in ("open", "os.listdir", "os.scandir") or not isinstance(args[0], (str, bytes)): return
        path = real(text(args[0]))
        if under(path, shut) or not under(path, open_):
            raise PermissionError("all but Python and the own folder is closed while grading")
    sys.addaudithook(hook)


_GB = 1 << 30


def limit(seconds: float, processes: int = 0) -> None:
    """Limit what this process and each that it starts may use: 4 GB of own memory, 8 GB of addresses, files
    of 64 MB, `seconds` of the processor, and, unless 0, `processes` at once of this user. The limit of
    processes does not bind root. The first to be ended where the machine runs out of memory is this one."""
    if os.name != "posix": return
    import resource

    wanted = {"AS": 8 * _GB, "DATA": 4 * _GB, "FSIZE": _GB // 16, "CPU": int(seconds) + 1, "CORE": 0}
    for name, most in (wanted | ({"NPROC": processes} if processes else {})).items():
        kind = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(kind)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        with suppress(ValueError, OSError): resource.setrlimit(kind, (most, most))
    with suppress(OSError): Path("/proc/self/oom_score_adj").write_text("1000")


def confine(own: Path, home: Path, seconds: float, spaces: bool) -> None:
    """Hold this process, from now on, to `open_places`, to reading the folder `home`, and to writing the
    folder `own`; `spaces`: it runs in namespaces (see `wrapped`). `seconds` of the processor are its own."""
    places = open_places()
    hidden = hidden_places(places)
    limit(seconds, 256 if spaces else 0)
    if not close_folders([*places, home], own, hidden) or not spaces: keep_watch([*places, home], own, hidden)
    if sys.platform == "linux": ctypes.CDLL(None).capset(struct.pack("Ii", 0x20080522, 0), bytes(24))


# The first process of the namespaces is this shell, which no student's code is and which none can signal.
_SHELL = """set -e
root=$1; own=$2; shift 2
mount -t tmpfs -o size=1m,mode=755 none "$root"
while [ "$1" != -- ]; do
    if [ -d "$1" ]; then mkdir -p "$root$1"; else mkdir -p "$root${1%/*}"; : > "$root$1"; fi
    mount --rbind "$1" "$root$1"
    shift
done
shift
while [ "$1" != -- ]; do
    if [ -d "$root$1" ]; then mount -t tmpfs none "$root$1"; fi
    shift
done
shift
mkdir -p "$root/proc"
mount -t proc none "$root/proc"
mount -t tmpfs -o size=256m,nr_inodes=10000 none "$root$own"
"""
_MOST = "echo 400 > /proc/sys/kernel/pid_max\n"      # of these namespaces alone, since Linux 6.14
_ENTER = 'chroot "$root" "$@"\nexit $?\n'
_SPACES = ("--user", "--map-root-user", "--net", "--ipc", "--pid", "--fork", "--kill-child", "--mount")


def _has_own_limit() -> bool:
    found = re.match(r"(\d+)\.(\d+)", platform.release())
    return found is not None and (int(found[1]), int(found[2])) >= (6, 14)


def _unshared(command: Sequence[str], home: Path, own: Path, root: Path) -> list[str]:
    places = [*open_places(), home]
    script = _SHELL + _MOST * _has_own_limit() + _ENTER
    return ["unshare", *_SPACES, "sh", "-c", script, "sh", str(root), str(own), *map(str, places), "--",
            *map(str, hidden_places(places[:-1])), "--", *command]


def _wrapped_by_bwrap(command: Sequence[str], home: Path, own: Path, root: Path) -> list[str]:
    places = open_places()
    binds = [text for place in (*places, home) for text in ("--dev-bind", str(place), str(place))]
    shut = [text for place in hidden_places(places) if place.is_dir() for text in ("--tmpfs", str(place))]
    return ["bwrap", "--unshare-all", "--die-with-parent", "--cap-drop", "ALL", *binds, *shut, "--proc", "/proc",
            "--size", str(_GB // 4), "--tmpfs", str(own), "--", *command]


_WAYS: dict[str, Callable[..., list[str]]] = {"unshare": _unshared, "bwrap": _wrapped_by_bwrap}
PATH = "/usr/bin:/bin:/usr/sbin:/sbin:/usr/local/bin"


@cache
def way() -> str:
    """Return which program gives a student's code namespaces of its own on this machine: `"unshare"`,
    `"bwrap"`, or an empty text where neither is there or may do it. Tries each once."""
    if sys.platform != "linux": return ""
    for name, wrap in _WAYS.items():
        if not shutil.which(name, path=PATH): continue
        with TemporaryDirectory() as folder:
            home, own, root = rooms(Path(folder).resolve())
            line = wrap([sys.executable, "-ISc", ""], home, own, root)
            with suppress(OSError, subprocess.TimeoutExpired):
                if subprocess.run(line, capture_output=True, env={"PATH": PATH}, timeout=20).returncode == 0: return name
    return ""


def rooms(folder: Path) -> tuple[Path, Path, Path]:
    """Make and return, in `folder`, the folders of one student's code: `home`, which it reads, `own` in it,
    which it writes, and an empty one for a root (see `wrapped`)."""
    made = folder / "home", folder / "home" / "own", folder / "root"
    for each in made: each.mkdir(exist_ok=True)
    return made


def wrapped(command: Sequence[str], folder: Path) -> list[str]:
    """Return the command line that runs `command` in namespaces of its own, which show it `open_places` and
    the `rooms` of `folder`; `command` as it is where this machine has no `way`."""
    return _WAYS[way()](command, *rooms(folder)) if way() else list(command)


def held() -> str:
    "Return a sentence that says how a student's code is held on this machine, and what is not held back."
    kernel = landlock()
    by = f"Landlock (version {kernel})" if kernel else "Python's audit hooks"
    if way():
        fork = ("" if _has_own_limit() and way() == "unshare" or os.getuid() else
                " Not held back: for root, the number of processes, until the time is over.")
        return f"Held by {by} and namespaces ({way()}): own root, processes and network.{fork}"
    code = ("use the network, and signal and read the teacher's processes and files" if not kernel else
            "use the network and signal the teacher's processes" if kernel < 6 else "use sockets other than TCP")
    return (f"Held by {by} alone, for want of namespaces (unshare or bwrap). Not held back: code written in C can"
            f" {code}, and start any number of processes until the time is over.")


def children() -> set[int]:
    "Return the ids of the processes whose parent is this one; none where the system has no /proc."
    found, own = set[int](), str(os.getpid())
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if file.read_text().rpartition(")")[2].split()[1] == own: found.add(int(file.parent.name))
    return found


def adopt(yes: bool) -> None:
    "Let what this process's children leave behind become its own children (Linux), or no longer."
    if sys.platform == "linux": ctypes.CDLL(None).prctl(36, int(yes), 0, 0, 0)


def die_with_parent() -> None:
    "End this process when its parent ends (Linux): for a process about to become a student's."
    if sys.platform == "linux": ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)


def end(process: subprocess.Popen, before: set[int]) -> None:
    """End `process`, which leads a session of its own, with its session; and where this machine has no
    `way`, all children of this process that are not in `before` (see `adopt`)."""
    if process.stdout and process.stdout.closed: return
    if os.name != "posix": process.kill()
    else:
        with suppress(ProcessLookupError, PermissionError): os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    while not way() and (left := children() - before):
        for pid in left:
            with suppress(ProcessLookupError): os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError): os.waitpid(pid, 0)
    for pipe in (process.stdin, process.stdout):
        with suppress(OSError):
            if pipe: pipe.close()
