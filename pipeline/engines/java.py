"""Java, and the class path of Beam's Flink job server: from the environment, else by Beam's own download."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Sequence
from pathlib import Path

from pipeline.core.errors import UsageError

CLASSPATH = "CLOZE_FLINK_CLASSPATH"  # a jar, or a directory of jars; several with `:` between them
FLINK_VERSION = "1.19"  # of the job server that Beam downloads; --beam-option=--flink_version=… asks for another
DOWNLOAD_SECONDS = 30.0  # without a byte


def find_java() -> str:
    """The Java program: of `JAVA_HOME`, else the first in PATH.

    Raises:
        UsageError: there is none.
    """
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    if found is None:
        where = f"JAVA_HOME ({home}) holds no bin/java" if home else "no `java` is in PATH"
        raise UsageError(f"runner flink needs Java 11 or later, and {where}; install a Java runtime, or set JAVA_HOME to one")
    return found


def flink_classpath(beam_options: Sequence[str] = ()) -> str:
    """The class path that holds Beam's Flink job server.

    Raises:
        UsageError: what the environment names is not there, or nothing is named and the download fails.
    """
    named = os.environ.get(CLASSPATH)
    if named:
        return ":".join(_jars(entry) for entry in named.split(":") if entry)
    from apache_beam.options.pipeline_options import FlinkRunnerOptions, PipelineOptions
    from apache_beam.utils.subprocess_server import JavaJarServer

    options = PipelineOptions(list(beam_options)).view_as(FlinkRunnerOptions)
    asked = any(option.startswith("--flink_version") for option in beam_options)
    version = options.flink_version if asked else FLINK_VERSION
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(DOWNLOAD_SECONDS)  # Beam's download sets none
    try:
        url = options.flink_job_server_jar or JavaJarServer.path_to_beam_jar(f":runners:flink:{version}:job-server:shadowJar")
        return str(JavaJarServer.local_jar(url))
    except (RuntimeError, OSError, ValueError) as error:
        cause = str(error).split(". ")[0]
        raise UsageError(
            f"Beam's Flink job server could not be fetched ({cause}); set {CLASSPATH} to its jar, or to a directory of jars"
        ) from error
    finally:
        socket.setdefaulttimeout(before)


def _jars(entry: str) -> str:
    path = Path(entry.removesuffix("/*")).expanduser().resolve()
    if path.is_dir():
        if not any(path.glob("*.jar")):
            raise UsageError(f"{CLASSPATH} ({entry}) is a directory without jars; name the one that holds Beam's Flink runner")
        return f"{path}/*"
    if not path.is_file():
        raise UsageError(f"{CLASSPATH} ({entry}) does not exist; set it to Beam's Flink job server jar, or a directory of jars")
    return str(path)
