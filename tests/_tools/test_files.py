"""Files that are whole or not there, and locks that the kernel frees."""

import os
import signal
import subprocess
import sys

import pytest

from fedsw._tools import files

_HOLDER = """
import sys, time
from pathlib import Path
from fedsw._tools import files
files.lock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock at tmp_path / "lock"."""
    process = subprocess.Popen([sys.executable, "-c", _HOLDER, str(tmp_path / "lock")], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_parts_follow_each_other_and_nothing_else_is_left(tmp_path):
    files.replace(tmp_path / "a", b"one ", memoryview(b"two"))
    files.replace(tmp_path / "b", b"")
    files.replace(tmp_path / "a", b"three ", b"four", durable=False)
    assert (tmp_path / "a").read_bytes() == b"three four" and (tmp_path / "b").read_bytes() == b""
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_write_that_fails_at_any_step_leaves_the_old_file_or_the_new_one_whole(tmp_path, monkeypatch, call, durable):
    path, old, new = tmp_path / "a", b"old" * 1000, b"new" * 2000
    genuine, calls = getattr(os, call), []
    for failing in range(3):
        files.replace(path, old)
        calls.clear()

        def fail(*given, failing=failing):
            calls.append(given)
            if len(calls) > failing:
                raise OSError(28, "no space left")
            return genuine(*given)

        monkeypatch.setattr(os, call, fail)
        try:
            files.replace(path, new, durable=durable)
            expected = (new,)
        except OSError:
            expected = (old, new) if call == "fsync" and failing else (old,)
        monkeypatch.setattr(os, call, genuine)
        assert path.read_bytes() in expected


def test_content_is_on_the_disk_before_the_name_and_the_name_before_the_return(tmp_path, monkeypatch):
    order, fsync, replace = [], os.fsync, os.replace

    def spied_fsync(handle):
        order.append(("sync", os.path.basename(os.readlink(f"/proc/self/fd/{handle}")), os.fstat(handle).st_size))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", spied_fsync)
    monkeypatch.setattr(os, "replace", lambda *names: (order.append("rename"), replace(*names)))
    files.replace(tmp_path / "a", b"12345")
    assert order[:2] == [("sync", "a.part", 5), "rename"]
    assert len(order) == 3 and order[2][:2] == ("sync", tmp_path.name)
    order.clear()
    files.replace(tmp_path / "a", b"12345", durable=False)
    assert order == ["rename"]


def test_a_lock_has_one_holder_in_a_process_as_between_processes(tmp_path, holder):
    with pytest.raises(BlockingIOError):
        files.lock(tmp_path / "lock")
    own = files.lock(tmp_path / "other")
    with pytest.raises(BlockingIOError):
        files.lock(tmp_path / "other")
    os.close(own)
    os.close(files.lock(tmp_path / "other"))


def test_the_kernel_frees_the_lock_of_a_process_that_is_killed(tmp_path, holder):
    assert files.is_locked(tmp_path / "lock")
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert not files.is_locked(tmp_path / "lock")
    os.close(files.lock(tmp_path / "lock"))


def test_looking_at_a_lock_neither_makes_nor_changes_the_file_nor_takes_it(tmp_path):
    path = tmp_path / "lock"
    assert not files.is_locked(path) and not path.exists()
    path.write_bytes(b"1234\n")
    os.chmod(path, 0o444)
    before = path.stat()
    assert not files.is_locked(path)
    handle = os.open(path, os.O_RDONLY)
    assert not files.is_locked(path)
    os.close(handle)
    after = path.stat()
    assert (after.st_mtime_ns, after.st_size, after.st_mode) == (before.st_mtime_ns, before.st_size, before.st_mode)


def test_taking_a_lock_leaves_what_the_file_says(tmp_path):
    (tmp_path / "lock").write_bytes(b"1234\n")
    os.close(files.lock(tmp_path / "lock"))
    assert (tmp_path / "lock").read_bytes() == b"1234\n"


def test_a_folder_that_a_dangling_link_stands_for_is_refused_by_name(tmp_path):
    (tmp_path / "runs").symlink_to(tmp_path / "away")
    for folder in (tmp_path / "runs", tmp_path / "runs" / "own"):
        with pytest.raises(FileNotFoundError, match=r"runs is a link to .*away, which is not there: make that folder"):
            files.new_folder(folder)
    (tmp_path / "away").mkdir()
    assert files.new_folder(tmp_path / "runs" / "own").is_dir()
