"""The page in a real browser: it renders, asks for nothing, runs no foreign script, and shows Chinese."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-port=0",
)
DESKTOP, PHONE = (1280, 900), (390, 844)

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium")


@dataclass
class Page:
    """A page under test, spoken to in the DevTools protocol."""

    socket: Any
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    _sent: int = 0
    _loaded: set[str] = field(default_factory=set)  # what loads of this or an earlier page have ended

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and wait for its answer, noting every event on the way."""
        self._sent += 1
        await self.socket.send_json({"id": self._sent, "method": method, "params": params})
        while True:
            told = await self._next()
            if told.get("id") == self._sent:
                assert "error" not in told, told
                return dict(told.get("result", {}))

    async def open(self, address: str, size: tuple[int, int]) -> None:
        """Load a page at a size."""
        for domain in ("Page", "Runtime", "Log", "Network", "DOM", "CSS"):
            await self.call(f"{domain}.enable")
        await self.call("Page.setLifecycleEventsEnabled", enabled=True)
        width, height = size
        mobile = width < 500
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile
        )
        loader = (await self.call("Page.navigate", url=address))["loaderId"]
        while loader not in self._loaded:
            await self._next()

    async def reload(self) -> None:
        """Load the page again."""
        before = set(self._loaded)
        await self.call("Page.reload")
        while self._loaded == before:
            await self._next()

    async def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression, of a promise what it comes to."""
        told = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    async def heard(self, event: str, expression: str) -> None:
        """Evaluate an expression and wait until the page has heard of the event that comes of it."""
        listening = f"addEventListener({json.dumps(event)}, () => done(), {{ once: true }})"
        await self.evaluate(f"new Promise((done) => {{ {listening}; {expression}; }})")

    async def copied(self, button: str) -> tuple[str, str]:
        """Press a button that copies: what it says as soon as it has, and what the clipboard holds."""
        await self.call("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
        await self.call("Page.bringToFront")
        changed = "new MutationObserver(() => done(button.innerText)).observe(button, { attributeFilter: ['class'] })"
        said = await self.evaluate(f"new Promise((done) => {{ const button = {button}; {changed}; button.click(); }})")
        return said, await self.evaluate("navigator.clipboard.readText()")

    async def screenshot(self) -> bytes:
        """The whole page as a PNG."""
        told = await self.call("Page.captureScreenshot", captureBeyondViewport=True, format="png")
        return base64.b64decode(told["data"])

    async def fonts_of(self, selector: str) -> set[str]:
        """The fonts an element's text was really drawn with."""
        root = (await self.call("DOM.getDocument"))["root"]["nodeId"]
        node = (await self.call("DOM.querySelector", nodeId=root, selector=selector))["nodeId"]
        told = await self.call("CSS.getPlatformFontsForNode", nodeId=node)
        return {font["familyName"] for font in told["fonts"]}

    async def _next(self) -> dict[str, Any]:
        told = json.loads((await asyncio.wait_for(self.socket.receive(), 60)).data)
        self._note(told.get("method", ""), told.get("params", {}))
        return dict(told)

    def _note(self, event: str, params: dict[str, Any]) -> None:
        if event == "Page.lifecycleEvent" and params["name"] == "load":
            self._loaded.add(params["loaderId"])
        elif event == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif event == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"]))
        elif event == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.complaints.append(params["entry"]["text"])
        elif event == "Runtime.consoleAPICalled":
            self.complaints.append(str(params["args"]))
        elif event == "Page.javascriptDialogOpening":
            self.complaints.append(f"dialog: {params['message']}")


@asynccontextmanager
async def browser_page(profile: Path) -> AsyncIterator[Page]:
    """A headless Chromium with one page, ended afterwards."""
    import aiohttp

    assert CHROMIUM is not None
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
    process = await asyncio.create_subprocess_exec(*command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    try:
        assert process.stderr is not None
        port = await asyncio.wait_for(_debugging_port(process.stderr), 60)
        async with aiohttp.ClientSession() as session:
            address = await asyncio.wait_for(_page_s_address(session, port), 60)
            async with session.ws_connect(address, max_msg_size=2**28) as socket:
                yield Page(socket)
    finally:
        process.kill()
        await process.wait()


async def _debugging_port(stderr: asyncio.StreamReader) -> int:
    async for line in stderr:
        found = re.search(rb"DevTools listening on ws://[^:]+:(\d+)/", line)
        if found:
            return int(found[1])
    raise AssertionError("Chromium ended before it listened")


async def _page_s_address(session: Any, port: int) -> str:
    """Where the page is spoken to: it is there a moment after the browser listens."""
    while True:
        async with session.get(f"http://127.0.0.1:{port}/json/list") as response:
            targets = await response.json(content_type=None)
        for target in targets:
            if target["type"] == "page":
                return str(target["webSocketDebuggerUrl"])
        await asyncio.sleep(0.05)


Looking = Callable[["Page"], Coroutine[Any, Any, Any]]


@pytest.fixture
def look(tmp_path: Path, report: Path) -> Callable[[tuple[int, int], Looking], Page]:
    """Open the report at a size, look at it with a coroutine, and hand back what the browser noted."""

    def run(size: tuple[int, int], looking: Looking) -> Page:
        async def whole() -> Page:
            async with browser_page(tmp_path / "profile") as page:
                await page.open(report.as_uri(), size)
                await looking(page)
                return page

        return asyncio.run(asyncio.wait_for(whole(), 120))

    return run


def has_chinese_font() -> bool:
    """Whether the machine can show Chinese at all."""
    listing = shutil.which("fc-list")
    return listing is not None and bool(subprocess.run([listing, ":lang=zh"], capture_output=True, check=False).stdout)


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_page_renders_without_complaint_or_request(
    look: Callable[[tuple[int, int], Looking], Page], report: Path, size: tuple[int, int]
) -> None:
    async def looking(page: Page) -> None:
        width = await page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert width[0] <= width[1], "the page scrolls sideways"
        assert await page.evaluate("document.querySelectorAll('section').length") >= 8
        broken = "[...document.images].filter(image => !image.complete || !image.naturalWidth).length"
        assert await page.evaluate("document.images.length") >= 4
        assert await page.evaluate(broken) == 0
        assert len(await page.screenshot()) > 50_000

    page = look(size, looking)
    assert page.complaints == []
    assert {url for url in page.requests if not url.startswith("data:")} == {report.as_uri()}


def test_hostile_text_stays_text(look: Callable[[tuple[int, int], Looking], Page]) -> None:
    async def looking(page: Page) -> None:
        assert await page.evaluate("document.scripts.length") == 1
        assert await page.evaluate("document.querySelectorAll('img[onerror], a[href^=javascript]').length") == 0
        assert "<script>alert('x')</script>" in await page.evaluate("document.querySelector('#notes').textContent")

    assert look(DESKTOP, looking).complaints == []


def test_foreign_script_is_refused_by_the_page_itself(look: Callable[[tuple[int, int], Looking], Page]) -> None:
    async def looking(page: Page) -> None:
        inject = "const s = document.createElement('script'); s.textContent = 'window.ran = 1'; document.body.append(s)"
        await page.evaluate(inject)
        assert await page.evaluate("window.ran") is None

    look(DESKTOP, looking)


def test_chinese_is_drawn_with_a_chinese_font(look: Callable[[tuple[int, int], Looking], Page]) -> None:
    if not has_chinese_font():
        pytest.skip("no Chinese font here: apt-get install fonts-noto-cjk")

    async def looking(page: Page) -> None:
        fonts = await page.fonts_of(".sample.flagged pre")
        assert fonts, "the Chinese sample was not drawn"
        assert any(re.search("CJK|WenQuanYi|Han|Fallback|YaHei|PingFang", name) for name in fonts), fonts

    look(PHONE, looking)


def test_print_unfolds_everything_but_the_lines_to_copy(look: Callable[[tuple[int, int], Looking], Page]) -> None:
    async def looking(page: Page) -> None:
        folded = "document.querySelectorAll('details:not([open]):not(.long)').length"
        assert await page.evaluate(folded) > 0
        await page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert await page.evaluate(folded) == 0
        await page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert await page.evaluate(folded) > 0
        pdf = await page.call("Page.printToPDF", preferCSSPageSize=True, printBackground=True)
        assert len(base64.b64decode(pdf["data"])) > 50_000

    look(DESKTOP, looking)
