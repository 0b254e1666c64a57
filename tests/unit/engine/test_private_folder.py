"""The folder of executables is refused if another user could put code there."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from imagefleet.shared.errors import ConfigurationError
from imagefleet.worker.engine.compile import private_folder
from imagefleet.worker.engine.compile.private_folder import make_private
from imagefleet.worker.engine.loading.load_engine import load_engine

OTHER_USER = 12345

GiveAway = Callable[[Path], None]


@pytest.fixture
def give_away(monkeypatch: pytest.MonkeyPatch) -> GiveAway:
    """Return a function that gives a path to another user; without root it only looks so."""
    given: set[Path] = set()
    owner_of = private_folder.owner_of

    def other_owner(path: Path, *, follow_links: bool = False) -> int:
        return OTHER_USER if path in given else owner_of(path, follow_links=follow_links)

    def give(path: Path) -> None:
        if os.geteuid() == 0:
            os.chown(path, OTHER_USER, -1, follow_symlinks=False)
        else:
            given.add(path)
            monkeypatch.setattr(private_folder, "owner_of", other_owner)

    return give


def _mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


def test_a_new_folder_and_its_parents_are_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        make_private(tmp_path / "a" / "b")
    finally:
        os.umask(before)
    assert [_mode(tmp_path / name) for name in ("a", "a/b")] == [0o700, 0o700]


def test_a_folder_of_this_user_becomes_private_and_keeps_its_entries(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    (folder / "executables").mkdir(parents=True)
    (folder / "executables" / "one").write_bytes(b"1")
    folder.chmod(0o777)
    make_private(folder)
    make_private(folder)
    assert _mode(folder) == 0o700
    assert (folder / "executables" / "one").read_bytes() == b"1"


def test_a_folder_of_another_user_is_refused(tmp_path: Path, give_away: GiveAway) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    folder.chmod(0o755)
    give_away(folder)
    with pytest.raises(ConfigurationError) as error:
        make_private(folder)
    message = str(error.value)
    assert str(folder) in message
    assert f"user {OTHER_USER}" in message
    assert "set IMAGEFLEET_CACHE_DIR" in message
    assert "\n" not in message
    assert _mode(folder) == 0o755


@pytest.mark.parametrize("name", ["planted", "executables/planted", "executables"])
def test_an_entry_of_another_user_is_refused(
    tmp_path: Path, give_away: GiveAway, name: str
) -> None:
    folder = tmp_path / "cache"
    (folder / "executables").mkdir(parents=True)
    if name.endswith("planted"):
        (folder / name).write_bytes(b"code")
    give_away(folder / name)
    with pytest.raises(ConfigurationError, match=f"{name} belongs to user {OTHER_USER}"):
        make_private(folder)


def test_a_link_to_a_folder_of_another_user_is_refused(tmp_path: Path, give_away: GiveAway) -> None:
    theirs, link = tmp_path / "theirs", tmp_path / "cache"
    theirs.mkdir()
    link.symlink_to(theirs)
    give_away(theirs)
    give_away(link)
    with pytest.raises(ConfigurationError, match=f"belongs to user {OTHER_USER}"):
        make_private(link)


def test_a_link_of_another_user_is_refused_also_if_it_leads_to_our_folder(
    tmp_path: Path, give_away: GiveAway
) -> None:
    ours, link = tmp_path / "ours", tmp_path / "link"
    ours.mkdir()
    link.symlink_to(ours)
    give_away(link)
    with pytest.raises(ConfigurationError, match=f"its parent .*link belongs to user {OTHER_USER}"):
        make_private(link)


@pytest.mark.parametrize("mode", [0o777, 0o775])
def test_a_parent_that_others_can_write_is_refused_without_sticky_bit(
    tmp_path: Path, mode: int
) -> None:
    parent = tmp_path / "shared"
    parent.mkdir()
    parent.chmod(mode)
    with pytest.raises(ConfigurationError, match=f"its parent {parent} can be written by others"):
        make_private(parent / "a" / "cache")
    parent.chmod(mode | 0o1000)
    make_private(parent / "a" / "cache")


def test_a_parent_behind_a_link_is_checked_too(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    (shared / "ours").mkdir(parents=True)
    (shared / "ours").chmod(0o755)
    (tmp_path / "link").symlink_to("shared/ours")
    shared.chmod(0o777)
    with pytest.raises(ConfigurationError, match=f"its parent {shared} can be written by others"):
        make_private(tmp_path / "link" / "cache")


class _Planted:
    """Creates a file when it is unpickled."""

    def __init__(self, proof: Path) -> None:
        self._proof = proof

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return os.mkdir, (str(self._proof),)


def test_a_worker_does_not_start_with_a_planted_cache(tmp_path: Path, give_away: GiveAway) -> None:
    folder, proof = tmp_path / "cache", tmp_path / "proof"
    (folder / "executables").mkdir(parents=True)
    (folder / "executables" / "x").write_bytes(pickle.dumps(_Planted(proof)))
    give_away(folder)
    with pytest.raises(ConfigurationError, match="could run code in this worker"):
        load_engine("shapes", cache_dir=folder)
    assert not proof.exists()
