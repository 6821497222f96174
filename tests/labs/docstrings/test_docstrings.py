"""Docstrings: prose stays, interface goes; packages are found and never imported."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cloze.core import storage
from cloze.core.errors import DataError
from cloze.labs.docstrings import reader as module
from cloze.labs.docstrings.prose import prose
from cloze.labs.docstrings.reader import reader
from cloze.pipeline.corpus.readers.base import ReadCounters, count_endings
from tests.pipeline.corpus.reading import options_of

NUMPYDOC = """
Return the sum of the elements, see :func:`~numpy.add` and ``np.sum`` [1]_.

.. versionadded:: 1.7

    Text of the version note.

Parameters
----------
a : array_like
    Elements to sum.
axis : None or int, optional
    The axis along which the sum is taken; by default all of them are.

    .. deprecated:: 2

Returns
-------
out : ndarray
    An array.

See Also
--------
mean : The mean of the elements.

Notes
-----
Arithmetic is modular when integer types are used, and no error is raised.

.. math:: x = y

The value is computed as::

    for x in a:
        y += x

* This item of a list is a sentence.
* not this

.. note:: Mind that the order matters *very* much
   to those who add floats.

References
----------
.. [1] Somebody, "A book about the sum of elements", 1999.

Examples
--------
It is easy to add numbers up.

>>> np.sum([1, 2])
3

>>> for x in a:
...     print(x)
It is output and not a sentence.
"""

GOOGLE = """Pads the sequence on the right with a `value`.

Args:
    input (Tensor): the input of any shape.
    value: The value that fills the places at the end of each sequence.
        It goes on here.

Returns:
    Tensor: nothing of note.

Note:
    This does not copy the data if it need not.

Example::

    >>> pad(x)

.. code-block:: python

    x = 1

See `the guide <https://x.y/z>`_ for more of this.
:param x: a field
:returns: another
"""


def test_numpydoc():
    assert list(prose(NUMPYDOC)) == [
        "Return the sum of the elements, see add and np.sum.",
        "Arithmetic is modular when integer types are used, and no error is raised.",
        "This item of a list is a sentence.",
        "Mind that the order matters very much to those who add floats.",
        "It is easy to add numbers up.",
        "The axis along which the sum is taken; by default all of them are.",
    ]


def test_google_style():
    assert list(prose(GOOGLE)) == [
        "Pads the sequence on the right with a value.",
        "This does not copy the data if it need not.",
        "See the guide for more of this.",
        "The value that fills the places at the end of each sequence. It goes on here.",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "x = f(y) + 1 and so on and on",
        "foo(a, b, c=None) -> bar or so",
        "%(params)s are the parameters here.",
        "===\n---",
        "| a | b | c | d |",
        "$ pip install the thing now",
    ],
)
def test_no_prose(text):
    assert list(prose(text)) == []


@pytest.fixture
def package(tmp_path):
    root = tmp_path / "pack"
    (root / "sub" / "tests").mkdir(parents=True)
    (root / "__init__.py").write_text(
        '"""The package does one thing and does it well."""\nraise RuntimeError("imported")\n'
    )
    (root / "sub" / "__init__.py").write_text("x = 1\n")
    (root / "sub" / "mod.py").write_text(
        'class A:\n    """A class of things that are alike in some way."""\n    def f(self):\n     '
        '   """The package does one thing and does it well."""\n'
        "        def inner():\n            '''An inner function has a docstring as well.'''\n"
        'add_newdoc("a", "b", """\n    An array that C code made for us.\n    """)\n_x_docs["y"] = '
        '"""\nText that is shared among many.\n"""\n'
        'z = """\nA string that documents nothing at all.\n"""\n'
    )
    (root / "sub" / "tests" / "test_x.py").write_text('"""Tests are not read by anybody here."""')
    (root / "bad.py").write_text('print "two"\n"""Not a docstring that we can read."""')
    return root


def read(path):
    file_slice = reader.slices(str(path))[0]
    tally = ReadCounters(slice=file_slice)
    return list(reader.read(file_slice, options_of(reader), tally)), tally


def test_a_package(package):
    documents, tally = read(package)
    assert {d.id: d.paragraphs for d in documents} == {
        "docstrings/pack/pack": ("The package does one thing and does it well.",),
        "docstrings/pack/pack.sub.mod": (
            "A class of things that are alike in some way.",
            "An inner function has a docstring as well.",
            "An array that C code made for us.",
            "Text that is shared among many.",
        ),
    }
    assert tally.counters["dropped_lines/repeated_paragraph"] == 1
    assert [(r.file, r.reason) for r in tally.unreadable] == [
        ("docstrings/pack/bad.py", "syntax_error")
    ]


def test_installed_packages_are_found_without_import():
    names = "numpy,scikit-learn,apache-beam,stdlib,numpy.linalg,typing_extensions"
    before = set(sys.modules)
    slices = {file_slice.name: file_slice for file_slice in reader.slices(names)}
    assert list(slices) == [
        "numpy",
        "sklearn",
        "apache_beam",
        "stdlib",
        "numpy.linalg",
        "typing_extensions",
    ]
    assert not {"sklearn", "apache_beam"} & (set(sys.modules) - before)
    stdlib = [name for name, _ in reader.files(slices["stdlib"])]
    assert {"json/decoder.py", "argparse.py"} <= set(stdlib)
    assert not [
        name for name in stdlib if "site-packages" in name or name.startswith(("test/", "idlelib/"))
    ]
    assert not [name for name, _ in reader.files(slices["numpy"]) if "/tests/" in name]
    assert slices["numpy"].size > slices["numpy.linalg"].size > 0


def test_prose_of_a_real_package():
    file_slice = reader.slices("json")[0]
    documents = list(reader.read(file_slice, options_of(reader), ReadCounters(slice=file_slice)))
    assert [d.id for d in documents] == [
        f"docstrings/json/json{name}" for name in ("", ".decoder", ".encoder", ".scanner", ".tool")
    ][: len(documents)]
    text = "\n".join(d.text for d in documents)
    assert ">>>" not in text
    assert "lightweight data interchange format" in text


@pytest.mark.parametrize("name", ["no_such_package_here", "numpy.no_such_module", " , "])
def test_what_is_not_installed(name):
    with pytest.raises(DataError, match=r"not installed|has no module|names no package"):
        reader.slices(name)


def test_a_directory_that_is_none(tmp_path):
    with pytest.raises(DataError, match="no directory"):
        reader.slices(str(tmp_path / "x"))
    with pytest.raises(DataError, match="contains no Python file"):
        reader.slices(str(tmp_path))


def test_a_directory_in_a_store_is_refused() -> None:
    storage.write_bytes("memory://packages/demo/a.py", b'"""Some words."""')
    with pytest.raises(
        DataError,
        match=(
            "memory://packages/demo is in a store, but source docstrings reads local directories"
        ),
    ):
        reader.slices("memory://packages/demo")


@pytest.mark.parametrize("name", ["stdlib", "json", "numpy"])
def test_of_a_package_python_files_alone_are_counted(name: str) -> None:
    """Not the packages that are installed below the standard library, and no compiled files."""
    slices, passed_over = reader.list_slices(name)
    paths = [Path(path).relative_to(slices[0].path) for _, path in passed_over]
    assert {path.suffix for path in paths} <= {".py"}
    assert not [path for path in paths if {"site-packages", "__pycache__"} & {*path.parts}]
    assert set(count_endings(name for name, _ in passed_over).elements()) <= {".py"}
    assert not {*map(str, paths)} & {name for name, _ in reader.files(slices[0])}


def test_a_distribution_of_several_packages_is_the_first_by_name(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "_packages_of", lambda name: ["wave", "numbers", "aaa", "json"])
    found = {name: str(tmp_path / name) for name in ("wave", "numbers", "json")}
    for path in found.values():
        Path(path).mkdir()
    monkeypatch.setattr(module, "_find", found.get)
    assert module._locate("some-distribution") == ("json", found["json"])
