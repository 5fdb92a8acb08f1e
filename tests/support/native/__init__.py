"""The broker's compiled functions that Python cannot call, wrapped and compiled for tests.

Each .pyx here cimports the broker's .pxd files, so the installed modules have no code for tests.
The first import after a change compiles them into build/ (see build.py). Start with the stubs.
Imported by tests only.
"""

from support.native.build import compiled

__path__.append(str(compiled()))
