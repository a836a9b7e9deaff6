"""Key tables in the settings: valid values, and errors."""

from __future__ import annotations

import re
import tomllib
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.access import digest_of, hash_of, owner_id
from app.settings import SettingsError, load_settings
from app.settings.keys import check_key_name, key_table

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANTIPHON_CONFIG", "antiphon.toml")
    return tmp_path


def problems(text: str) -> str:
    Path("antiphon.toml").write_text(text)
    with pytest.raises(SettingsError) as caught:
        load_settings()
    return str(caught.value)


def test_key_table_gives_the_rights_of_a_key(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOB", "sk-one, sk-two")
    Path("antiphon.toml").write_text(
        f"""
        host = "0.0.0.0"

        [keys.alice]
        hash = "{hash_of("sk-alice")}"
        owner = "team"
        models = ["qwen*"]
        tools = ["web_search", "mcp:lab"]
        requests_per_minute = 60
        expires = 2030-01-01
        admin = true

        [keys."bob@example.org"]
        env = "BOB"
        """
    )
    settings = load_settings()  # no ANTIPHON_ALLOW_OPEN: there are keys
    alice, bob = settings.keys["alice"], settings.keys["bob@example.org"]
    access = alice.as_stored("alice").access()
    assert (access.owner, access.models, access.tools) == (owner_id("team"), ("qwen*",), ("web_search", "mcp:lab"))
    assert (access.limits, access.admin) == ((60, None, None), True)
    assert access.expires == datetime(2030, 1, 1, tzinfo=UTC).timestamp()
    assert bob.digests == [digest_of("sk-one"), digest_of("sk-two")]
    assert bob.as_stored("bob").access().owner == owner_id("bob") != access.owner


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[keys.a]\n", "keys.a: must have `hash` or `env`"),
        ('[keys.a]\nhash = "sk-plain-key"\n', "keys.a.hash.0: must be `sha256:` and 64 hexadecimal digits"),
        ('[keys.a]\nenv = "NOT_SET_ANYWHERE"\n', "keys.a.env: the environment variable NOT_SET_ANYWHERE is not set"),
        (f'[keys.a]\nhash = "{hash_of("x")}"\nmodel = ["m"]\n', "keys.a.model: unknown key; did you mean models?"),
        (f'[keys."a b"]\nhash = "{hash_of("x")}"\n', "must be up to 64 letters"),
        (f'[keys.key_01234567]\nhash = "{hash_of("x")}"\n', "must be up to 64 letters"),
        (key_table("a", hash_of("x")) + key_table("b", hash_of("x")), "keys.b: must not contain a key from keys.a"),
        ('api_keys = ["x"]\n' + key_table("a", hash_of("x")), "keys.a: must not contain a key from ANTIPHON_API_KEYS"),
        (f'[keys.a]\nhash = "{hash_of("x")}"\nexpires = "soon"\n', "keys.a.expires: "),
        (f'[keys.a]\nhash = "{hash_of("x")}"\nstreams = -1\n', "keys.a.streams: "),
    ],
)
def test_key_table_that_is_invalid_is_named_without_the_key(text: str, words: str) -> None:
    problem_text = problems(text)
    assert words in problem_text
    assert "sk-plain-key" not in problem_text


@pytest.mark.parametrize("document", ["keys.md", "team.md"])
def test_key_tables_of_the_docs_are_valid(document: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-cloud")
    text = (DOCS / document).read_text(encoding="utf-8")
    tables = re.findall(r"^```toml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert tables
    for table in tables:
        if "[keys.alice.budget]" in table:
            table += key_table("alice", hash_of("x")) + '[prices."*"]\ninput = 1\noutput = 1\n'
        Path("antiphon.toml").write_text(table)
        settings = load_settings()
        assert settings.keys or settings.prices


def test_key_values_of_variables_are_kept_out_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    from app.observability.logging import secrets_of

    monkeypatch.setenv("BOB", "one-of-bob")
    Path("antiphon.toml").write_text('[keys.bob]\nenv = "BOB"\n')
    assert "one-of-bob" in secrets_of(load_settings())


@given(name=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}", fullmatch=True), owner=st.text(min_size=1))
def test_key_table_that_is_printed_can_be_read(name: str, owner: str) -> None:
    owner = owner.encode("utf-8", "replace").decode()
    assert tomllib.loads(key_table(name, hash_of("x"), owner=owner))["keys"][name] == {
        "hash": hash_of("x"),
        "owner": owner,
    }


@given(name=st.text())
def test_key_name_can_be_a_word_of_the_log_and_a_label(name: str) -> None:
    try:
        check_key_name(name)
    except ValueError:
        return
    assert name.isascii()
    assert name.isprintable()
    assert not any(character in ' ="{}:/' for character in name)


def test_key_owner_of_32_hexadecimal_digits_owns_what_a_key_without_a_table_stored() -> None:
    assert owner_id(digest_of("sk")[:32]) == digest_of("sk")[:32]
    assert owner_id("team") != "team"
    assert len(owner_id("team")) == 32
