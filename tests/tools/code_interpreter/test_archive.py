"""Files of a container, packed into a stream and unpacked from it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from app.tools.code_interpreter.bubblewrap.sandbox.archive import Unpacker, pack


def copy(source: Path, target: Path, piece: int = 1 << 20) -> int:
    """Pack a folder and unpack it into another in pieces; returns the stream's size."""
    stream = b"".join(pack(str(source)))
    unpacker = Unpacker(str(target))
    for start in range(0, len(stream), piece):
        unpacker.feed(stream[start : start + piece])
    unpacker.close()
    return len(stream)


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    return source, target


@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
def test_archive_files_and_folders_are_the_same(folders: tuple[Path, Path], piece: int) -> None:
    source, target = folders
    (source / "a.txt").write_text("content")
    (source / "empty").write_bytes(b"")
    (source / "folder" / "deep").mkdir(parents=True)
    (source / "folder" / "deep" / "b.bin").write_bytes(bytes(range(256)) * 20)
    (source / "none").mkdir()
    copy(source, target, piece)
    assert sorted(path.relative_to(target).as_posix() for path in target.rglob("*")) == [
        *("a.txt", "empty", "folder", "folder/deep", "folder/deep/b.bin", "none")
    ]
    assert (target / "folder" / "deep" / "b.bin").read_bytes() == bytes(range(256)) * 20
    assert (target / "a.txt").read_text() == "content"


def test_archive_keeps_modes_and_times(folders: tuple[Path, Path]) -> None:
    source, target = folders
    for name, mode in (("program", 0o755), ("secret", 0o000), ("folder", 0o500)):
        path = source / name
        path.mkdir() if name == "folder" else path.write_text("x")
        path.chmod(mode)
        os.utime(path, ns=(1_700_000_000_123_456_789, 1_700_000_000_987_654_321))
    copy(source, target)
    for name, mode in (("program", 0o755), ("secret", 0o000), ("folder", 0o500)):
        status = (target / name).stat()
        assert (stat.S_IMODE(status.st_mode), status.st_mtime_ns) == (mode, 1_700_000_000_987_654_321)
    (target / "folder").chmod(0o700)  # for the clean-up


def test_archive_of_a_folder_that_may_not_be_entered_is_complete(folders: tuple[Path, Path]) -> None:
    source, target = folders
    (source / "closed").mkdir()
    (source / "closed" / "file").write_text("x")
    (source / "closed").chmod(0)
    copy(source, target)
    (target / "closed").chmod(0o700)
    assert (target / "closed" / "file").read_text() == "x"
    (source / "closed").chmod(0o700)


def test_archive_keeps_links_and_does_not_follow_them(folders: tuple[Path, Path]) -> None:
    source, target = folders
    (source / "file").write_text("x")
    os.link(source / "file", source / "same")
    (source / "outside").symlink_to("/etc/passwd")
    (source / "loop").symlink_to(".")
    (source / "nowhere").symlink_to("nothing")
    copy(source, target)
    assert os.readlink(target / "outside") == "/etc/passwd"
    assert os.readlink(target / "loop") == "."
    assert os.readlink(target / "nowhere") == "nothing"
    assert (target / "same").stat().st_ino == (target / "file").stat().st_ino


def test_archive_of_holes_takes_no_space(folders: tuple[Path, Path]) -> None:
    source, target = folders
    with open(source / "sparse", "wb") as file:
        file.truncate(1 << 40)
        file.seek(1 << 30)
        file.write(b"middle")
    assert copy(source, target) < 100_000
    with open(target / "sparse", "rb") as file:
        file.seek(1 << 30)
        assert file.read(6) == b"middle"
        assert file.seek(0, os.SEEK_END) == 1 << 40
    assert (target / "sparse").stat().st_blocks < 1000


@pytest.mark.parametrize("name", [b"a\nb", b"\xff\xfe", "ü 你好".encode(), b"-rf", b"{}", b"x" * 255])
def test_archive_keeps_files_of_any_name(folders: tuple[Path, Path], name: bytes) -> None:
    source, target = folders
    with open(os.path.join(bytes(source), name), "wb") as file:
        file.write(b"x")
    copy(source, target)
    assert os.listdir(bytes(target)) == [name]


def test_archive_leaves_out_what_is_no_file(folders: tuple[Path, Path]) -> None:
    source, target = folders
    os.mkfifo(source / "pipe")
    copy(source, target)
    assert [*target.iterdir()] == []
