"""A page in headless Chromium, driven over a pipe: what it asks for, what it complains of, what it shows."""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

COMMAND = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--remote-debugging-pipe",
)


def chromium() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((found for name in names if (found := shutil.which(name))), None)


class Page:
    """One page.

    Attributes:
        problems: Exceptions, errors of the console, violations of the page's own policy.
        requests: Addresses it asked for; data of its own is no request.
    """

    def __init__(self, profile: Path, *, scripts: bool = True) -> None:
        self.problems: list[str] = []
        self.requests: list[str] = []
        self._ids = itertools.count(1)
        self._waiting = b""
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        binary = chromium()
        assert binary is not None

        def connect() -> None:
            # The browser reads from 3 and writes to 4.
            spare_in, spare_out = os.dup(theirs_in), os.dup(theirs_out)
            os.dup2(spare_in, 3)
            os.dup2(spare_out, 4)

        self._process = subprocess.Popen(
            [binary, *COMMAND, f"--user-data-dir={profile}", "about:blank"],
            preexec_fn=connect,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        targets = self.send("Target.getTargets")["targetInfos"]
        target = next(each["targetId"] for each in targets if each["type"] == "page")
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._target = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        if not scripts:
            self.send("Emulation.setScriptExecutionDisabled", value=True)

    _target: str | None = None

    def __enter__(self) -> Page:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._in)
        os.close(self._out)

    def send(self, method: str, **parameters: Any) -> Any:
        number = next(self._ids)
        message = {"id": number, "method": method, "params": parameters}
        if self._target:
            message["sessionId"] = self._target
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]

    def _next(self) -> Any:
        while b"\0" not in self._waiting:
            read = os.read(self._in, 1 << 20)
            assert read, "Chromium has gone"
            self._waiting += read
        line, _, self._waiting = self._waiting.partition(b"\0")
        message = json.loads(line)
        self._heard(message.get("method"), message.get("params", {}))
        return message

    def _heard(self, method: str | None, told: Any) -> None:
        if method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(told["exceptionDetails"])[:500])
        elif method == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
            self.problems.append(json.dumps(told["args"])[:500])
        elif method == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.problems.append(told["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            url = told["request"]["url"]
            if not url.startswith("data:"):
                self.requests.append(url)

    def open(self, path: Path, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.send("Emulation.setEmulatedMedia", features=scheme)
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        self.send("Page.navigate", url=path.resolve().as_uri())
        self.until("document.readyState === 'complete'")

    def ask(self, expression: str) -> Any:
        """What a piece of JavaScript gives."""
        found = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, expression: str, seconds: float = 30) -> None:
        end = time.monotonic() + seconds
        while not self.ask(expression):
            assert time.monotonic() < end, expression
            time.sleep(0.05)

    def drawn(self) -> None:
        """Waits until every figure is drawn."""
        self.until(
            "document.querySelectorAll('[data-chart] svg.main-svg').length > 0 && "
            "[...document.querySelectorAll('[data-chart]')].every((box) => box.querySelector('svg.main-svg'))"
        )

    def press(self, key: str, code: int = 0, text: str = "") -> None:
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, text=text)

    def shot(self, path: Path) -> None:
        """A picture of the whole page."""
        size = self.send("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 16000), "scale": 1}
        found = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(found["data"]))
