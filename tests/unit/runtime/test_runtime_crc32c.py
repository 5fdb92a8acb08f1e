"""The sums of records, as each C compiler of this machine makes them for x86-64 and for arm64."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

RUNTIME = Path(__file__).parents[3] / "broker" / "runtime"
ARM64 = "aarch64-linux-gnu"
EMULATOR = "qemu-aarch64-static"
PROGRAM = r"""
#include <stdio.h>
#include "core.h"
#include "crc32c.h"
static unsigned char data[5000];
int main(void)
{
    uint32_t x = 1;
    tw_crc_init();
    for (size_t i = 0; i < sizeof data; i++) {
        x = x * 1664525 + 1013904223;
        data[i] = (unsigned char)(x >> 24);
    }
    for (size_t at = 0; at < 9; at++)
        for (size_t n = 0; at + n <= sizeof data; n += n < 300 ? 1 : 37)
            if (tw_crc32c(7, data + at, n) != ~tw_crc_by_table(~7u, data + at, n))
                return printf("%zu bytes at %zu\n", n, at);
    printf("%08x", tw_crc32c(0, "123456789", 9));
    return 0;
}
"""


def compilers() -> list[list[str]]:
    """Those on the path: for this machine, and for arm64."""
    folders = os.environ["PATH"].split(os.pathsep)
    clangs = {path.name for folder in folders for path in Path(folder).glob("clang-[0-9]*")}
    clang = [shutil.which(name) for name in ["clang", *sorted(clangs)]]
    found = [[path] for path in (shutil.which("gcc"), *clang[:2]) if path]
    if cross := shutil.which(f"{ARM64}-gcc"):
        found.append([cross])
        include = f"/usr/{ARM64}/include"
        found += [[path, f"--target={ARM64}", "-isystem", include] for path in clang if path][:1]
    return found


@pytest.mark.parametrize("compiler", compilers(), ids=lambda words: Path(words[0]).name)
def test_each_way_to_sum_is_that_of_the_table(tmp_path: Path, compiler: list[str]) -> None:
    source, made, program = (tmp_path / name for name in ("sum.c", "sum.o", "sum"))
    source.write_text(PROGRAM)
    flags = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Wno-unused-function", "-Werror"]
    command = [*compiler, *flags, "-I", str(RUNTIME), "-c", str(source), "-o", str(made)]
    subprocess.run(command, check=True, timeout=60)
    is_cross = ARM64 in " ".join(compiler) and platform.machine() != "aarch64"
    if is_cross and not shutil.which(EMULATOR):
        return  # it compiles: there is nothing here to run it
    linker = [f"{ARM64}-gcc", "-static"] if is_cross else compiler
    subprocess.run([*linker, str(made), "-o", str(program)], check=True, timeout=60)
    command = [*([EMULATOR] if is_cross else []), str(program)]
    ran = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert ran.stdout == "e3069283"
