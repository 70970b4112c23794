"""The wheel installs and runs where there is no compiler: what a user of `pip install headrace` has."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from scripts.build_wheel import first_problem

ROOT = Path(__file__).resolve().parents[2]
COMPILERS = ("cargo", "rustc", "rustup", "cc", "gcc", "c++", "g++", "clang", "maturin")
TIME_LIMIT_S = 900
pytestmark = pytest.mark.extended


@pytest.fixture(scope="module")
def wheel() -> Path:
    """`make wheel`; its stamp makes it a matter of seconds when nothing changed."""
    environment = {
        name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")
    }
    run("make", "wheel", cwd=ROOT, env=environment)
    wheels = list((ROOT / "dist").glob("headrace-*.whl"))
    assert len(wheels) == 1, wheels
    return wheels[0]


def run(*command: str | Path, cwd: Path, env: dict[str, str]) -> str:
    done = subprocess.run(
        command,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT_S,
    )
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_one_wheel_for_all_pythons(wheel: Path) -> None:
    assert "-cp311-abi3-" in wheel.name


def test_a_wrong_byte_in_a_wheel_is_found_before_it_counts(wheel: Path, tmp_path: Path) -> None:
    assert first_problem(wheel) is None
    data = bytearray(wheel.read_bytes())
    with zipfile.ZipFile(wheel) as archive:
        member = archive.getinfo(next(name for name in archive.namelist() if name.endswith("METADATA")))
    data[member.header_offset + member.compress_size // 2 + len(member.filename) + 30] ^= 0x10
    broken = tmp_path / wheel.name
    broken.write_bytes(data)
    assert first_problem(broken) is not None


@pytest.mark.slow
def test_installs_and_runs_with_no_compiler_in_sight(wheel: Path, tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    environment = {
        **{
            name: value
            for name, value in os.environ.items()
            if name.startswith(("PIP_", "SSL_", "LANG", "LC_"))
        },
        **{name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")},
        "PATH": str(tools),
        "HOME": str(tmp_path),
    }
    if cache := pip_cache():
        environment["PIP_CACHE_DIR"] = cache
    assert not [name for name in COMPILERS if shutil.which(name, path=environment["PATH"])]

    venv = tmp_path / "venv"
    base = getattr(sys, "_base_executable", sys.executable)
    run(base, "-m", "venv", venv, cwd=tmp_path, env=environment)
    python = venv / "bin" / "python"
    install = [python, "-m", "pip", "install", "--quiet", "--only-binary", ":all:", "--retries", "5", wheel]
    run(*install, cwd=tmp_path, env=environment)

    headrace = venv / "bin" / "headrace"
    version = run(headrace, "--version", cwd=tmp_path, env=environment)
    assert wheel.name.split("-")[1] in version
    assert "Usage" in run(headrace, "--help", cwd=tmp_path, env=environment)
    place = run(python, "-c", "import headrace; print(headrace.__file__)", cwd=tmp_path, env=environment)
    assert str(venv) in place, "the tree was imported, not the wheel"


def pip_cache() -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "cache", "dir"], capture_output=True, text=True, timeout=60
    )
    return done.stdout.strip() if done.returncode == 0 else ""
