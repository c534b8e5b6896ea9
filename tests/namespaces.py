"""Network namespaces for tests: machines of their own on this one."""
import os
import shlex
import subprocess


def command(*words, **options):
    done = subprocess.run(words, capture_output=True, text=True, **options)
    if done.returncode: raise OSError(f"{shlex.join(words)}: {done.stderr.strip()}")


def refused(*tries):
    "Why a namespace cannot be had here, or why one of `tries` (commands) cannot be run; else None."
    name = f"try{os.getpid()}"
    try:
        for words in (*tries, f"ip netns add {name}", f"ip netns del {name}"): command(*words.split())
    except OSError as error: return str(error)
