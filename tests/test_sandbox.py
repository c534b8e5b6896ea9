"""Nine notebooks that cheat, played to their end, and others that do harm: a cheat earns nothing, nothing
leaves, the honest function keeps its points, and no process is left. Most walk the way that this machine has,
some the one without namespaces too."""
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

import fedbook
from fedbook.kit import sandbox
from fedbook.kit.classroom import feedback_file, grade, Pupil, write_assignment
from fedbook.kit.command import main

BY_FILE = Path(fedbook.__file__).parent / "answers" / "stacked.py"
HONEST = "def heights(steps): return [sum(own > n for own in steps) for n in range(max(steps))]"
LATER = """def own_means(losses, lengths):
    import torch
    return torch.stack([row[:n].mean() for row, n in zip(losses, lengths)])"""
NONE = not sandbox.landlock()
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="what is played here is held on Linux")


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    folder = tmp_path_factory.mktemp("class") / "hw"
    write_assignment("engine/stacked", folder, seed=3)
    return folder


@pytest.fixture(params=["", "without namespaces"])
def way(request, monkeypatch):
    "The way that this machine has, then the one of a machine without namespaces."
    if request.param: monkeypatch.setattr(sandbox, "way", lambda: "")
    elif not sandbox.way(): pytest.skip("neither unshare nor bwrap makes namespaces here")
    return request.param


def left_over():
    "The ids of processes that a student's code has left behind: they have its environment."
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if b"USER=student\0" in (place / "environ").read_bytes(): found.append(int(place.name))
    return found


@pytest.fixture(autouse=True)
def nothing_is_left():
    yield
    until = time.monotonic() + 20
    while (left := left_over()) and time.monotonic() < until: time.sleep(0.05)
    for pid in left: os.kill(pid, signal.SIGKILL)
    assert not left, "a process of the student's outlives the grading"


def handed_in(work, *cells, name="eve"):
    file = work / f"{name}.ipynb"
    file.write_text(json.dumps(dict(cells=[dict(cell_type="code", source=cell) for cell in cells])))
    return file


def points(rows): return {row["exercise"]: row["points"] for row in rows}


def said(rows): return {row["exercise"]: row["said"] for row in rows}


def by_command(work, notebook, **environment):
    "Grade in a process of its own: exercise to points, and all that was printed and written."
    done = subprocess.run([sys.executable, "-m", "fedbook", "grade", str(work), str(notebook)], text=True,
                          capture_output=True, env=os.environ | environment)
    lines = re.findall(r"(?m)^(\w+) +([\d.]+|0) +\d+  ", done.stdout)
    return {name: float(got) for name, got in lines}, done.stdout + feedback_file(work, notebook).read_text()


# 1 to 3: the answers

def takes(how):
    "A function `groups` that is what `how`, which ends with a text `source`, finds."
    return f"def groups(*case):\n{how}\n    exec(source, names := {{}})\n    return names['groups'](*case)"


def by_git(place):
    (place / "fedbook").mkdir(parents=True)
    shutil.copy(BY_FILE, place / "fedbook")
    commit = ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x"]
    for line in (["init", "-q"], ["add", "."], commit):
        subprocess.run(["git", "-C", str(place), *line], check=True)
    (place / "fedbook" / BY_FILE.name).unlink()
    line = [shutil.which("git"), "-C", str(place), "show", f"HEAD:fedbook/{BY_FILE.name}"]
    return takes(f"    import subprocess\n    source = subprocess.check_output({line})")


@pytest.mark.skipif(not shutil.which("git"), reason="no git here")
def test_1_answers_by_git(work, tmp_path, way):
    assert points(grade(work, handed_in(work, by_git(tmp_path / "repo"), HONEST))) == dict(
        own_means=0, heights=5, groups=0)


def test_2_answers_by_path(work, tmp_path, way):
    second = shutil.copy(BY_FILE, tmp_path)
    cell = takes(f"""    import os, subprocess
    ways = [lambda path: open(path).read(), lambda path: subprocess.check_output(["/bin/cat", path]),
            lambda path: os.read(os.open(path, 0), 99999)]
    source = ""
    for read in ways:
        for path in {[str(BY_FILE), second]}:
            try: source = source or read(path)
            except OSError: pass""")
    rows = grade(work, handed_in(work, cell, HONEST))
    assert points(rows) == dict(own_means=0, heights=5, groups=0), rows


def test_3_answers_by_a_classmate(work, way):
    ann = handed_in(work, BY_FILE.read_text(), name="ann")
    cell = takes(f"    import json\n    source = json.load(open({str(ann)!r}))['cells'][0]['source']")
    assert points(grade(work, handed_in(work, cell, HONEST))) == dict(own_means=0, heights=5, groups=0)
    link = work / f"link{way}.ipynb"
    link.symlink_to(ann)
    assert main(["grade", str(work), str(link)]) == 2


# 4 to 6: the teacher's machine

def test_4_the_teachers_environment(work):
    cell = """def groups(*case):
    import glob, os
    found = [os.environ.get("FAKE_TOKEN")]
    for file in [f"/proc/{os.getppid()}/environ", *glob.glob("/proc/*/environ")]:
        try: found += [line for line in open(file).read().split(chr(0)) if "FAKE" in line]
        except OSError: pass
    return "".join(map(str, found))"""
    got, text = by_command(work, handed_in(work, cell, HONEST), FAKE_TOKEN="hush-123")
    assert got == dict(own_means=0, heights=5, groups=0), text
    assert "hush-123" not in text and "gave 'None" in text, text


def test_5_a_socket(work, tmp_path, way):
    kinds = dict(tcp=(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
                 abstract=(socket.AF_UNIX, socket.SOCK_STREAM, f"\0fedbook{os.getpid()}"),
                 named=(socket.AF_UNIX, socket.SOCK_STREAM, str(tmp_path / "s")),
                 udp=(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)))
    heard, cell = {}, "import socket\ndef groups(*case): return 'sent'\n"
    for name, (family, kind, address) in kinds.items():
        heard[name] = socket.socket(family, kind)
        heard[name].bind(address)
        if kind == socket.SOCK_STREAM: heard[name].listen()
        heard[name].setblocking(False)
        place = heard[name].getsockname()
        place = place.decode() if isinstance(place, bytes) else place
        cell += (f"try:\n    s = socket.socket({int(family)}, {int(kind)})\n    s.connect({place!r})\n"
                 "    s.send(b'answers')\nexcept OSError: pass\n")
    assert points(grade(work, handed_in(work, cell, HONEST))) == dict(own_means=0, heights=5, groups=0)
    for name, one in heard.items():
        with pytest.raises(BlockingIOError): one.accept() if name != "udp" else one.recv(9)
        one.close()


def test_6_killing_the_parent(work):
    cell = f"""import os, signal
def groups(*case):
    parent = lambda pid: int(open(f"/proc/{{pid}}/stat").read().rpartition(")")[2].split()[1])
    pid = os.getppid()
    while pid and pid != {os.getpid()}:
        try: above = parent(pid)
        except OSError: above = 0
        try: os.kill(pid, 9)
        except OSError: pass
        pid = above
    os.kill(0, 9)"""
    got, text = by_command(work, handed_in(work, HONEST, cell, cell + "\ngroups()", LATER))
    assert got == dict(own_means=5, heights=5, groups=0), text


# 7 to 9: processes

DAEMON = """
import ctypes, os, time
fork = FORK
if not fork():
    os.setsid()
    if not fork():
        while True:
            time.sleep(0.2)
            try: open(FILE, "w").write("later")
            except OSError: pass
    os._exit(0)"""


@pytest.mark.parametrize("fork", ["os.fork", "ctypes.CDLL(None).fork"])
def test_7_a_process_that_stays(fork, work, tmp_path, way):
    cell = DAEMON.replace("FORK", fork).replace("FILE", repr(str(tmp_path / "later")))
    assert points(grade(work, handed_in(work, HONEST, cell, LATER))) == dict(own_means=5, heights=5, groups=0)
    assert not (tmp_path / "later").exists()


def test_8_an_endless_cell(work, way):
    began = time.monotonic()
    endless = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: pass"
    rows = grade(work, handed_in(work, HONEST, endless, LATER), whole=45)
    assert points(rows) == dict(own_means=5, heights=5, groups=0)
    assert time.monotonic() - began < 60
    assert "cell 2 took too long and was left out" in feedback_file(work, work / "eve.ipynb").read_text()


def test_9_a_fork_bomb(work):
    if not sandbox.way(): pytest.skip("held until the time is over alone, where there are no namespaces")
    bomb = ("import os\nmade = 0\nwhile True:\n    try: made += os.fork() > 0\n"
            "    except BlockingIOError: made and open('full', 'w')")
    rows = grade(work, handed_in(work, HONEST, bomb, LATER), whole=45)
    assert points(rows) == dict(own_means=5, heights=5, groups=0), rows


def test_the_number_of_processes_is_held_for_these_namespaces_alone(work):
    if "the number of processes" in sandbox.held() or not sandbox.way(): pytest.skip(sandbox.held())
    before = Path("/proc/sys/kernel/pid_max").read_text()
    count = """def count():
    import os, time
    n = 0
    try:
        while n < 1000:
            if not os.fork():
                time.sleep(60)
                os._exit(0)
            n += 1
    except BlockingIOError: pass
    return n"""
    with Pupil(handed_in(work, count)) as pupil: assert 20 < pupil.ask("count") < 400
    assert Path("/proc/sys/kernel/pid_max").read_text() == before


def test_a_student_ends_with_the_grader(work, way):
    code = ("import sys\nfrom fedbook.kit import sandbox\nfrom fedbook.kit.classroom import grade\n"
            f"if {bool(way)}: sandbox.way = lambda: ''\ngrade(*sys.argv[1:])")
    file = handed_in(work, "while True: pass")
    grader = subprocess.Popen([sys.executable, "-c", code, str(work), str(file)])
    while not left_over() and grader.poll() is None: time.sleep(0.05)
    grader.kill()
    assert grader.wait() == -signal.SIGKILL


# Marks function by function

@pytest.mark.parametrize("ends", [
    "import os; os._exit(1)", "raise SystemExit", "import ctypes; ctypes.string_at(0)",
    "import os; os.closerange(0, 99)", "import os; os.kill(0, 9)", "import os\nfor _ in range(3): os.fork()",
    "import threading, os\nthreading.Timer(0.2, os._exit, [1]).start()", "x = bytearray(6 << 30)",
    "this is no Python", "def heights(*case): 1 / 0\nheights()"])
def test_a_later_cell_takes_nothing(ends, work):
    held = HONEST if "heights" not in ends else ends
    rows = grade(work, handed_in(work, LATER, held, "" if held is ends else ends))
    assert points(rows) == dict(own_means=5, heights=0 if held is ends else 5, groups=0), rows


def test_the_third_cell_that_ends_the_process_is_the_last_that_counts(work):
    ends = "import os; os._exit(1)"
    with Pupil(handed_in(work, HONEST, ends, ends, LATER, ends, "def groups(*c): return 1")) as pupil:
        assert pupil.ask("heights", [2]) == [1, 1] and pupil.function("own_means").__name__ == "own_means"
        with pytest.raises(Exception, match="name 'groups' is not defined"): pupil.ask("groups")
        assert pupil.notes[:2] == [f"cell {k} ended its process and was left out" for k in (2, 3)]
        assert "the third such cell" in pupil.notes[2]


def test_no_file_that_is_left_runs_before_the_sandbox_of_the_next_process(work, way):
    plant = """import os
for folder in {os.getcwd(), os.path.dirname(os.getcwd())}:
    for name in ("sitecustomize.py", "usercustomize.py", "torch.py", "json.py", "fedbook/kit/classroom.py"):
        try: open(os.path.join(folder, name), "w").write("raise ValueError('planted')")
        except OSError: pass
os._exit(0)"""
    rows = grade(work, handed_in(work, HONEST, plant, LATER))
    assert points(rows) == dict(own_means=5, heights=5, groups=0), rows


def test_an_answer_that_does_not_end_and_one_of_nonsense(work):
    flood = """def groups(*case):
    import os
    while True:
        for place in range(3, 9):
            try: os.write(place, b"x" * 65536)
            except OSError: pass"""
    nonsense = """def own_means(*case):
    import os
    for place in range(3, 9):
        try: os.write(place, b'[' * 100000 + b'\\n')
        except OSError: pass"""
    assert points(grade(work, handed_in(work, flood, nonsense, HONEST), whole=45)) == dict(
        own_means=0, heights=5, groups=0)


def test_one_that_cannot_be_read_stops_nobody(work, capsys):
    good, bad, deep = handed_in(work, HONEST, name="good"), work / "bad.ipynb", work / "deep.ipynb"
    bad.write_text("{")
    deep.write_text("[" * 100_000)
    assert main(["grade", str(work), str(bad), str(deep), str(good)]) == 2
    out = capsys.readouterr()
    assert "5 of 25 points" in out.out and "Held by" in out.out
    assert out.err.count("is not a notebook that can be read") == 2 == out.err.count("\n")
    text = feedback_file(work, good).read_text()
    assert "- heights: 5 of 5. `correct on" in text and "- groups: 0 of 15. `" in text


def test_each_student_has_a_feedback_file():
    places = ("c/ann/hw.ipynb", "c/hw/ann.ipynb", "c/hw/x/hw.ipynb")
    files = [str(feedback_file("c/hw", place)) for place in places]
    assert files == ["c/hw/feedback/up/ann/hw.md", "c/hw/feedback/ann.md", "c/hw/feedback/x/hw.md"]


# What is told, and the parts

def test_what_python_does_not_hear_of_the_kernel_refuses(tmp_path, way):
    "A library written in C opens files without Python's knowledge."
    if NONE: pytest.skip("no Landlock here")
    source = ("def read(path):\n    import ctypes\n    libc = ctypes.CDLL(None)\n"
              "    place, text = libc.open(path.encode(), 0), ctypes.create_string_buffer(20)\n"
              "    return libc.read(place, text, 10), text.value.decode()")
    with Pupil(handed_in(tmp_path, source)) as pupil:
        for path in (BY_FILE, "/etc/passwd", Path(sys.prefix) / "no", f"/proc/{os.getpid()}/environ"):
            assert pupil.function("read")(str(path)) == (-1, "")
        assert pupil.function("read")(json.__file__)[0] == 10, "what is not closed can be read"


WATCHED = """import os, socket, subprocess, sys
from pathlib import Path
from fedbook.kit.sandbox import keep_watch
keep_watch([Path(sys.base_prefix)], Path(OWN), [Path(sys.base_prefix, "lib/none")])
for f in (lambda: open(FILE), lambda: os.listdir("/"), lambda: subprocess.run(["cat"]),
          lambda: os.kill(os.getppid(), 0), lambda: socket.socket().connect(("127.0.0.1", 9)),
          lambda: open("own", "w").write("x"), lambda: open(os.__file__).read(1) and 1):
    try: print(f())
    except PermissionError as error: print(error)"""


def test_where_the_kernel_cannot_close_folders_python_watches(tmp_path):
    code = WATCHED.replace("OWN", repr(str(tmp_path))).replace("FILE", repr(str(BY_FILE)))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path,
                          env=os.environ | {"PYTHONPATH": str(BY_FILE.parents[2])})
    shut = "all but Python and the own folder is closed while grading"
    none = "no process is started and nobody is reached while grading"
    assert done.stdout.splitlines() == [shut, shut, none, none, none, "1", "1"], done.stderr


def test_how_a_student_is_held_is_said_plainly(monkeypatch):
    assert sandbox.held().startswith("Held by ")
    monkeypatch.setattr(sandbox, "way", lambda: "")
    plain = {0: "teacher's processes and files", 4: "signal the teacher", 7: "other than TCP"}
    for version, told in plain.items():
        monkeypatch.setattr(sandbox, "landlock", lambda: version)
        assert told in sandbox.held() and "Not held back" in sandbox.held()


def test_the_packages_that_are_open_are_those_of_this_python_without_fedbook():
    places = sandbox.open_places()
    hidden = sandbox.hidden_places(places)
    assert not [each for each in hidden if "fedbook" not in each.name]
    for name in ("json", "numpy", "torch"):
        file = Path(__import__(name).__file__).resolve()
        assert any(place.resolve() in file.parents for place in places), name
    assert not any(place.resolve() in BY_FILE.resolve().parents for place in places) or any(
        each in BY_FILE.resolve().parents for each in hidden)
