"""Finding and downloading data files: where they are looked for, what is verified, what an error says."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fedsw.data import downloads as files
from fedsw.data.downloads import Source, find_data

CONTENT = {"adult.data": b"train\n", "adult.test": b"test\n"}


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FEDSW_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def put(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name, content in CONTENT.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = put(tmp_path / "site")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sha256 = {name: hashlib.sha256(content).hexdigest() for name, content in CONTENT.items()}
    source = Source(f"http://127.0.0.1:{server.server_port}/", sha256)
    monkeypatch.setattr(files, "DOWNLOADS", {"adult": source})
    yield folder
    server.shutdown()
    server.server_close()


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source("http://127.0.0.1:9/", files.DOWNLOADS["adult"].sha256)
    monkeypatch.setattr(files, "DOWNLOADS", {"adult": source})


def test_a_folder_may_hold_the_files_or_a_subfolder_with_them(tmp_path: Path) -> None:
    inner = put(tmp_path / "data" / "adult")
    assert find_data("adult", tmp_path / "data") == inner
    assert find_data("adult", inner) == inner
    assert find_data("adult", str(inner)) == inner


def test_the_environment_variable_names_a_folder_and_an_argument_goes_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = put(tmp_path / "one"), put(tmp_path / "two")
    monkeypatch.setenv("FEDSW_DATA", str(one))
    assert find_data("adult") == one
    assert find_data("adult", two) == two


def test_a_given_folder_without_all_files_is_an_error_and_no_download(tmp_path: Path, site: Path) -> None:
    part = put(tmp_path / "part")
    (part / "adult.test").unlink()
    with pytest.raises(FileNotFoundError) as raised:
        find_data("adult", part)
    for word in (
        "adult.data and adult.test",
        str(part),
        str(part / "adult"),
        "--data-dir",
        "FEDSW_DATA",
        "not set",
    ):
        assert word in str(raised.value)
    assert not (tmp_path / "cache").exists()


def test_without_a_folder_the_files_are_downloaded_once_and_kept(tmp_path: Path, site: Path) -> None:
    folder = find_data("adult")
    assert folder.is_relative_to(tmp_path / "cache")
    assert {name: (folder / name).read_bytes() for name in CONTENT} == CONTENT
    for name in CONTENT:
        (site / name).unlink()
    assert find_data("adult") == folder


def test_a_download_with_another_sha256_is_refused_and_not_kept(tmp_path: Path, site: Path) -> None:
    (site / "adult.test").write_bytes(b"tampered\n")
    with pytest.raises(FileNotFoundError, match="SHA256 hash .* does not match"):
        find_data("adult")
    assert not (tmp_path / "cache" / "fedsw" / "adult" / "adult.test").exists()


def test_a_spoilt_file_in_the_cache_is_downloaded_again(site: Path) -> None:
    folder = find_data("adult")
    (folder / "adult.data").write_bytes(b"spoilt\n")
    assert (find_data("adult") / "adult.data").read_bytes() == CONTENT["adult.data"]


def test_offline_the_error_names_folders_searched_the_address_and_the_remedies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offline: None
) -> None:
    monkeypatch.setenv("FEDSW_DATA", str(tmp_path / "empty"))
    with pytest.raises(FileNotFoundError) as raised:
        find_data("adult")
    reason = str(raised.value)
    for word in (
        str(tmp_path / "empty" / "adult"),
        "http://127.0.0.1:9/adult.data",
        "--data-dir",
        "FEDSW_DATA",
    ):
        assert word in reason
    assert len(reason) < 1000 and "\n" not in reason


def test_an_unknown_data_set_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="no data set 'cifar' has files; known: adult"):
        find_data("cifar")
