"""tools/release: which tag, which files, and that the index serves those; with an index that is a folder."""

from __future__ import annotations

import io
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from fastops import _load

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools" / "release"))
import files  # noqa: E402
import published  # noqa: E402
import tag  # noqa: E402

WORKFLOWS = ROOT / ".github" / "workflows"

# Stands in for scikit-build-core in the source archive: pip asks it for the metadata before it believes the version.
BACKEND = """
import pathlib
def prepare_metadata_for_build_wheel(folder, settings=None):
    info = pathlib.Path(folder, "fastops-1.2.3.dist-info")
    info.mkdir()
    info.joinpath("METADATA").write_text("Metadata-Version: 2.1\\nName: fastops\\nVersion: 1.2.3\\n")
    return info.name
def build_wheel(folder, settings=None, metadata=None):
    raise NotImplementedError
"""


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of version 1.2.3, all that the release tools read."""
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "fastops"\nversion = "1.2.3"\n')
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## [Unreleased]\n\n## [1.2.3] - 2026-01-01\n\n## [1.2.2]\n")
    monkeypatch.setattr(tag, "ROOT", tmp_path)
    return tmp_path


class TestTag:
    @pytest.mark.parametrize("arguments", [[], ["v1.2.3"]])
    def test_prints_the_version(self, tree: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        assert tag.main(arguments) == 0
        assert capsys.readouterr().out == "1.2.3\n"

    @pytest.mark.parametrize("wrong", ["1.2.3", "v1.2.4", "v1.2.3rc1", "v1.2.30", ""])
    def test_tag_of_another_version(self, tree: Path, wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert tag.main([wrong]) == 1
        assert "must be v1.2.3" in capsys.readouterr().err

    def test_version_without_its_section(self, tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
        file = tree / "CHANGELOG.md"
        file.write_text(file.read_text().replace("[1.2.3]", "[1.2.31]"))
        assert tag.main(["v1.2.3"]) == 1
        assert "must have a section [1.2.3], got Unreleased, 1.2.31, 1.2.2" in capsys.readouterr().err

    def test_this_tree(self) -> None:
        assert tag.main([]) == 0


class TestFiles:
    @pytest.fixture
    def folder(self, tree: Path) -> Path:
        folder = tree / "release"
        folder.mkdir()
        for name in files.expected("1.2.3"):
            (folder / name).write_text(name)
        return folder

    def test_sorts_what_is_complete(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert files.main(folder) == 0
        assert capsys.readouterr().out.endswith("7 files\n")
        assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*.*")) == [
            "fastops-cu12/fastops_cu12-1.2.3-cp310-abi3-manylinux_2_28_aarch64.whl",
            "fastops-cu12/fastops_cu12-1.2.3-cp310-abi3-manylinux_2_28_x86_64.whl",
            "fastops-cu13/fastops_cu13-1.2.3-cp310-abi3-manylinux_2_28_aarch64.whl",
            "fastops-cu13/fastops_cu13-1.2.3-cp310-abi3-manylinux_2_28_x86_64.whl",
            "fastops/fastops-1.2.3-cp310-abi3-manylinux_2_28_aarch64.whl",
            "fastops/fastops-1.2.3-cp310-abi3-manylinux_2_28_x86_64.whl",
            "fastops/fastops-1.2.3.tar.gz",
        ]

    def test_missing_file(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (folder / "fastops-1.2.3.tar.gz").unlink()
        assert files.main(folder) == 1
        assert "missing: ['fastops-1.2.3.tar.gz']" in capsys.readouterr().err

    @pytest.mark.parametrize("name", ["fastops-1.2.4.tar.gz", "fastops-1.2.3-cp310-abi3-linux_x86_64.whl", "notes.txt"])
    def test_file_too_many(self, folder: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
        (folder / name).touch()
        assert files.main(folder) == 1
        assert f"not expected: ['{name}']" in capsys.readouterr().err
        assert not (folder / "fastops").exists()

    def test_distributions(self) -> None:
        assert files.DISTRIBUTIONS == _load.DISTRIBUTIONS

    @pytest.mark.parametrize("workflow", ["wheels.yml", "release.yml"])
    def test_workflows_build_and_publish_each(self, workflow: str) -> None:
        assert f"        dist: [{', '.join(files.DISTRIBUTIONS)}]\n" in (WORKFLOWS / workflow).read_text()


class TestPublished:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        """A wheel and a source archive as pip knows them, and nothing in them."""
        folder = tmp_path / "release"
        (folder / "fastops").mkdir(parents=True)
        info = "fastops-1.2.3.dist-info"
        name = "fastops-1.2.3-cp310-abi3-manylinux_2_28_aarch64.whl"
        with zipfile.ZipFile(folder / "fastops" / name, "w") as archive:
            archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: fastops\nVersion: 1.2.3\n")
            archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: cp310-abi3-manylinux_2_28_aarch64\n")
            archive.writestr(f"{info}/RECORD", "")
        project = '[build-system]\nrequires = ["torch"]\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        with tarfile.open(folder / "fastops" / "fastops-1.2.3.tar.gz", "w:gz") as archive:
            for member, text in {"pyproject.toml": project, "backend.py": BACKEND, "PKG-INFO": ""}.items():
                entry = tarfile.TarInfo(f"fastops-1.2.3/{member}")
                entry.size = len(text)
                archive.addfile(entry, io.BytesIO(text.encode()))
        return folder

    @pytest.fixture
    def index(self, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """Where pip looks, and it looks nowhere else."""
        index = tmp_path / "index"
        index.mkdir()
        for file in folder.rglob("*.*"):
            (index / file.name).write_bytes(file.read_bytes())
        monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", str(index))
        monkeypatch.setattr(published, "ATTEMPTS", 1)
        return index

    def test_same_bytes(self, folder: Path, index: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert published.main(str(folder)) == 0
        said = capsys.readouterr().out.splitlines()
        assert [line.partition(":")[0] for line in said] == sorted(file.name for file in index.iterdir())
        assert all("served, sha256 " in line for line in said)

    @pytest.mark.parametrize("suffix", [".whl", ".gz"])
    def test_other_bytes(self, folder: Path, index: Path, suffix: str, capsys: pytest.CaptureFixture[str]) -> None:
        (file,) = (file for file in folder.rglob("*.*") if file.suffix == suffix)
        file.write_bytes(file.read_bytes() + b"\0")
        assert published.main(str(folder)) == 1
        captured = capsys.readouterr()
        assert captured.err == f"the index does not serve: {file.name}\n"
        assert f"{file.name}: the index gave {file.name} with sha256 " in captured.out

    @pytest.mark.parametrize("suffix", [".whl", ".gz"])
    def test_missing(self, folder: Path, index: Path, suffix: str, capsys: pytest.CaptureFixture[str]) -> None:
        (file,) = (file for file in index.iterdir() if file.suffix == suffix)
        file.unlink()
        assert published.main(str(folder)) == 1
        assert capsys.readouterr().err == f"the index does not serve: {file.name}\n"

    def test_seen_later(self, folder: Path, index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        late = index / "fastops-1.2.3.tar.gz"
        content = late.read_bytes()
        late.unlink()
        pauses: list[float] = []

        def sleep(seconds: float) -> None:
            pauses.append(seconds)
            late.write_bytes(content)

        monkeypatch.setattr(published, "ATTEMPTS", 3)
        monkeypatch.setattr(published.time, "sleep", sleep)
        assert published.main(str(folder)) == 0
        assert pauses == [published.PAUSE]

    def test_nothing_to_look_for(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert published.main(str(tmp_path)) == 1
        assert "has no files to look for" in capsys.readouterr().err
