"""A browser, a server of pages, and JupyterLab, for the tests that look at what a reader sees."""
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from urllib.request import urlopen

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
MINUTE = 60_000  # milliseconds, as the browser counts
SETTINGS = {"notebook-extension/tracker": {"windowingMode": "none"},
            "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False}}
CELLS = "() => jupyterapp.shell.currentWidget.content.model.sharedModel.toJSON().cells"
LISTEN = """state => {
  window.said = []
  const listen = () => said.push(state.innerText.trim())
  new MutationObserver(listen).observe(state, {childList: true, subtree: true, characterData: true})
}"""


@contextmanager
def browser(driver):
    "Debian's chromium, without a window. It may run as root, as in a container."
    chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
    yield chromium
    chromium.close()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_): pass


@contextmanager
def served(folder):
    "The address at which the files of `folder` are."
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def settings(folder):
    "The settings of a JupyterLab that knows nothing of this machine's user, in `folder`."
    for name, values in SETTINGS.items():
        file = folder / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(values))
    places = {"JUPYTERLAB_SETTINGS_DIR": "settings", "JUPYTERLAB_WORKSPACES_DIR": "spaces",
              "IPYTHONDIR": "ipython", "JUPYTER_CONFIG_DIR": "config", "JUPYTER_RUNTIME_DIR": "runtime",
              "JUPYTER_DATA_DIR": "data"}
    return {name: str(folder / place) for name, place in places.items()}


def answers(address):
    try: return urlopen(address, timeout=5).status == 200
    except OSError: return False


@contextmanager
def jupyterlab(folder, aside):
    "The address of a JupyterLab over `folder`, with its token; its own files lie in `aside`."
    port, token, log = free_port(), secrets.token_hex(16), aside / "lab.log"
    options = ["--no-browser", "--allow-root", "--expose-app-in-browser", "--ServerApp.port_retries=0",
               f"--ServerApp.port={port}", f"--ServerApp.root_dir={folder}",
               f"--IdentityProvider.token={token}"]
    place = f"http://127.0.0.1:{port}"
    with log.open("w") as out:
        server = subprocess.Popen([sys.executable, "-m", "jupyterlab", *options], cwd=folder, stdout=out,
                                  stderr=out, env=os.environ | settings(aside), start_new_session=True)
    try:
        end = time.monotonic() + 120
        while not answers(f"{place}/api/status?token={token}"):
            assert server.poll() is None and time.monotonic() < end, log.read_text()[-3000:]
            time.sleep(0.3)
        yield f"{place}/lab?token={token}"
    finally:
        with suppress(ProcessLookupError): os.killpg(server.pid, signal.SIGTERM)
        server.wait(60)


class Lab:
    "JupyterLab in a page of the browser. What it is asked for is of the notebook that is seen."

    def __init__(self, page, address):
        self.page, self.seen = page, page.locator(".jp-NotebookPanel:not(.lm-mod-hidden)")
        page.set_default_timeout(MINUTE)
        page.goto(address)
        page.wait_for_function("window.jupyterapp", timeout=5 * MINUTE)
        self.done("jupyterapp.restored")

    def done(self, promise, minutes=5):
        "Wait until a promise of JupyterLab holds."
        self.page.evaluate("window.kept = false")
        self.page.evaluate(f"() => {{ Promise.resolve({promise}).then(() => window.kept = true) }}")
        self.page.wait_for_function("kept", timeout=minutes * MINUTE)

    def command(self, name, minutes=5, **args):
        self.done(f"jupyterapp.commands.execute({json.dumps(name)}, {json.dumps(args)})", minutes)

    def open(self, path):
        self.command("docmanager:open", path=path, factory="Notebook", kernel=dict(name="python3"))
        self.done("jupyterapp.shell.currentWidget.sessionContext.ready")
        return self

    def cells(self):
        "The cells of the open notebook, with their outputs."
        return self.page.evaluate(CELLS)

    def run_all(self, minutes=15):
        "What the menu's `Run All Cells` does. Returns the errors that cells ended with."
        self.command("notebook:run-all-cells", minutes)
        code = [cell for cell in self.cells() if cell["cell_type"] == "code" and cell["source"]]
        errors = [f"{output['ename']}: {output['evalue']}" for cell in code for output in cell["outputs"]
                  if output["output_type"] == "error"]
        assert errors or all(cell["execution_count"] for cell in code)
        return errors

    def close(self):
        for command in ("docmanager:save", "kernelmenu:shutdown", "application:close"): self.command(command)

    def cell(self, text):
        "The cell whose source has `text`, and that source."
        sources = [cell["source"] for cell in self.cells()]
        place, source = next((i, source) for i, source in enumerate(sources) if text in source)
        return self.seen.locator(".jp-Cell").nth(place), source

    def sliders(self):
        return [Slider(box) for box in self.seen.locator(".widget-vbox:has(> .widget-image)").all()]


class Slider:
    "What a cell `play(...)` shows: knobs, a line that says what is going on, a picture."

    def __init__(self, box):
        self.box, self.knobs = box, box.locator(".noUi-handle")
        self.picture, self.state = box.locator("> .widget-image"), box.locator("> .widget-html")

    def moved(self, knob=0):
        "Move a knob to its other end, and wait for another picture. Returns what the knob said, and says."
        handle, before = self.knobs.nth(knob), self.address()
        was = handle.get_attribute("aria-valuetext")
        handle.press("End")
        if handle.get_attribute("aria-valuetext") == was: handle.press("Home")
        self.changed(before)
        return was, handle.get_attribute("aria-valuetext")

    def changed(self, before, minutes=5):
        other = "([image, before]) => image.src != before && image.naturalWidth > 0"
        self.box.page.wait_for_function(other, arg=[self.picture.element_handle(), before],
                                        timeout=minutes * MINUTE)

    def listen(self):
        "Keep all that the slider says."
        self.state.evaluate(LISTEN)

    def drawn(self, setting):
        "The picture at `setting`: once the slider has said that it is busy with it, and is busy no more."
        self.box.page.wait_for_function(
            "([state, setting]) => said.some(t => t.includes(setting)) && !state.innerText.includes('busy')",
            arg=[self.state.element_handle(), setting], timeout=5 * MINUTE)
        return self.bytes()

    def said(self):
        "What it has said since it was last asked, without its silences."
        told = self.box.page.evaluate("said.splice(0)")
        return [text for text in dict.fromkeys(told) if text]

    def address(self): return self.picture.get_attribute("src")

    def bytes(self):
        "The picture itself."
        return bytes(self.picture.evaluate("image => fetch(image.src).then(r => r.arrayBuffer())"
                                           ".then(b => [...new Uint8Array(b)])"))
