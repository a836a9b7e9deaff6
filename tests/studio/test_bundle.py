"""The studio's files as served: one script and one style sheet, compressed, with immutable addresses."""

from __future__ import annotations

import gzip
import re

import httpx
import pytest
from playwright.async_api import Browser, expect

from app.studio import Assets, concatenated, joined_styles
from tests.studio.browser import Studio
from tests.support.serving import antiphon

pytestmark = pytest.mark.asyncio(loop_scope="package")


def bundle(**modules: str) -> str:
    sources = {f"js/{name.replace('__', '/')}.js": text for name, text in modules.items()}
    return concatenated("js/main.js", sources.__getitem__)[0]["js/studio.js"]


async def test_modules_are_concatenated_in_the_order_of_their_imports() -> None:
    text = bundle(
        main='import { a as b } from "./lib/one.js";\nimport { w } from "../vendor/x/x.js";\nb();\n',
        lib__one='import "./two.js";\nexport function a() {\n  return import("../../vendor/y/y.js");\n}\n',
        lib__two="const a = 1; // its own\nexport const c = a;\nexport class D {}\n",
    )
    assert text.index("js_lib_two") < text.index("js_lib_one") < text.index("js_main")
    assert text.startswith('import * as v0 from "../vendor/x/x.js";\n')
    assert 'import("../vendor/y/y.js")' in text
    assert "const { a: b } = js_lib_one;" in text and "const { w } = v0;" in text
    assert "return { c, D };" in text


async def test_module_imported_when_needed_becomes_a_script_that_shares_modules_with_the_first() -> None:
    sources = {
        "js/main.js": 'import { a } from "./lib/one.js";\nconst load = () => import("./more.js");\na(load);\n',
        "js/lib/one.js": "export const a = 1;\n",
        "js/more.js": 'import { a } from "./lib/one.js";\nimport { c } from "./lib/two.js";\nexport const b = a + c;\n',
        "js/lib/two.js": "export const c = 2;\n",
    }
    scripts, _ = concatenated("js/main.js", sources.__getitem__)
    assert [*scripts] == ["js/studio.js", "js/more.js"]
    assert 'import("./more.js")' in scripts["js/studio.js"] and "js_lib_two" not in scripts["js/studio.js"]
    assert 'import { js_lib_one } from "./studio.js";' in scripts["js/more.js"]
    assert "const js_lib_one" not in scripts["js/more.js"] and "export const { b } = js_more;" in scripts["js/more.js"]


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        ({"main": 'import { a } from "./main.js";\n'}, "imports itself"),
        ({"main": "export default 1;\n"}, "export default"),
        ({"main": "export let a = 1;\n"}, "export let"),
        ({"main": "const a = import.meta.url;\n"}, "import.meta"),
    ],
)
async def test_module_that_cannot_be_concatenated_is_named(modules: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bundle(**modules)


async def test_urls_of_joined_style_sheets_lead_to_the_same_files() -> None:
    sheets = {"css/a.css": 'a { src: url("../vendor/f.woff2"); }', "vendor/b/b.css": 'b { src: url("c.png"); }'}
    text = joined_styles([*sheets], sheets.__getitem__)
    assert text == 'a { src: url("../vendor/f.woff2"); }\nb { src: url("../vendor/b/c.png"); }'


async def test_page_loads_one_script_and_one_style_sheet_from_immutable_addresses() -> None:
    async with antiphon() as url, httpx.AsyncClient(base_url=url, timeout=60) as http:
        page = await http.get("/studio")
        assert page.headers["cache-control"] == "no-cache" and "accept-encoding" in page.headers["vary"].lower()
        paths = re.findall(r'(?:href|src)="(studio/[^"]+)"', page.text)
        assert len(paths) <= 8 and sum(path.endswith(".css") for path in paths) == 1
        for path in paths:
            file = await http.get(f"/{path}", headers={"Accept-Encoding": "gzip"})
            assert file.status_code == 200 and "immutable" in file.headers["cache-control"], path
            assert ("content-encoding" in file.headers) == (not path.endswith(".woff2")), path
            known = await http.get(f"/{path}", headers={"If-None-Match": file.headers["etag"]})
            assert known.status_code == 304 and known.content == b""
            head = await http.head(f"/{path}")
            assert head.status_code == 200 and head.content == b""


async def test_files_of_another_version_are_served_without_being_cached() -> None:
    async with antiphon() as url, httpx.AsyncClient(base_url=url, timeout=60) as http:
        file = await http.get("/studio/v/000000000000/js/studio.js")
        assert file.status_code == 200 and file.headers["cache-control"] == "no-cache"
        for path in (
            *("v/0/__init__.py", "v/0/bundle.py", "v/0/js/../bundle.py", "v/0", "js/nothing.js", "css/", "css"),
            *("__init__.py", "index.html", "docs/index.html", "js/%2e%2e/__init__.py", "js/..%2f__init__.py", "v/0/"),
        ):
            assert (await http.get(f"/studio/{path}")).status_code == 404, path
        assert (await http.post("/studio/js/main.js")).status_code == 405


@pytest.mark.parametrize("name", ["../__init__.py", "/etc/passwd", "js/../../errors.py", "js", "", "x" * 5000])
async def test_name_of_no_file_below_the_folder_raises_an_error(name: str) -> None:
    with pytest.raises(OSError):
        Assets().file(name)


async def test_bundle_is_made_once() -> None:
    assets = Assets()
    first = assets.studio()
    assert assets.studio() is first
    assert [*first.files] == ["js/studio.js", "js/views.js", "css/studio.css"]
    assert gzip.decompress(first.files["js/studio.js"].compressed or b"") == first.files["js/studio.js"].body
    assert assets.file("icon.svg") is assets.file("icon.svg")


async def test_page_of_single_modules_works_too(browser: Browser) -> None:
    async with antiphon() as url, Studio.open(browser, url, path="/studio?modules") as studio:
        await expect(studio.page.locator("#model option")).to_have_count(1)
