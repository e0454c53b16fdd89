"""The texts of a repro folder: the script that runs the engine, the two tests, the page. Templates for str.format."""

RUN = """#!/bin/sh
# The engine as it was run, up to {candidate} of {step}, with the values that it reads put in place.
# ENGINE=... takes another build, PROGRAM=... another program file of the built-in engine.
cd "$(dirname "$0")" && here=$(pwd) || exit
export FIRSTBAD_SINK="$here/out.bin" FIRSTBAD_WANT='{step}/{candidate}' FIRSTBAD_STOP='{step}/{candidate}'
export FIRSTBAD_REPLACE="@$here/replace.txt" FIRSTBAD_REPLY="$here/answers.bin"
{environment}exec {command}
"""

SLICE = """    q = np.where(given == expected, 0, (given - expected) / allowed).reshape({outer}, {length}, {inner})
    assert (np.sqrt((q * q).mean(1)) <= {limit}).all()  # by {what}; a NaN fails"""

PATTERN = """    share = ((given - expected) / allowed * np.fromfile(here / "pattern.bin")).sum()
    assert abs(share) <= 0.5  # of the error's pattern ({what}): 1 is all of it; a NaN fails"""

PYTEST = '''"""{value} of {step}{source}: wrong given its own inputs. Fails until the engine computes it right."""
import subprocess
from pathlib import Path
import numpy as np


def test_{name}():
    here = Path(__file__).parent
    subprocess.run(["sh", here / "run"], check=True)
    given = np.frombuffer((here / "out.bin").read_bytes()[-{bytes} - {closing} : -{closing}], np.{item}).astype(float)
    expected, allowed = (np.fromfile(here / name) for name in ("expected.bin", "allowed.bin"))
{judge}
'''

C_TEST = """/* {value} of {step}{source}: wrong given its own inputs. Exits with 1 until it is right.
   cc repro.c -o repro -lm && ./repro          (run it in this folder) */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
enum {{ N = {count}, OUTER = {outer}, LENGTH = {length}, INNER = {inner}, PATTERN = {pattern} }};
static {ctype} given[N];
static double expected[N], allowed[N], pattern[N];
static void get(const char *name, void *at, size_t size, long from_end) {{
    FILE *file = fopen(name, "rb");
    if (!file || fseek(file, from_end, from_end ? SEEK_END : SEEK_SET) || fread(at, size, N, file) != N) exit(2);
    fclose(file);
}}
int main(void) {{
    double share = 0;
    if (system("sh ./run") != 0) return 2;
    get("out.bin", given, sizeof *given, -(long)sizeof given - {closing});
    get("expected.bin", expected, 8, 0);
    get("allowed.bin", allowed, 8, 0);
    if (PATTERN) get("pattern.bin", pattern, 8, 0);
    for (long o = 0; o < OUTER; o++)
        for (long i = 0; i < INNER; i++) {{
            double sum = 0;
            for (long n = 0; n < LENGTH; n++) {{
                long at = (o * LENGTH + n) * INNER + i;
                double q = given[at] == expected[at] ? 0 : (given[at] - expected[at]) / allowed[at];
                sum += q * q, share += q * pattern[at];
            }}
            if (!PATTERN && !(sqrt(sum / LENGTH) <= {limit})) return printf("wrong by {what}: %ld %ld\\n", o, i), 1;
        }}
    return PATTERN && !(fabs(share) <= 0.5);
}}
"""

README = """{value} of {step}{source} is wrong given its own inputs.

  expected.npy  what it should have been (float64), given the inputs below
  given.npy     what the engine gave
{inputs}

  pytest test_repro.py                        fails until the engine computes it right
  cc repro.c -o repro -lm && ./repro          the same in C
  ENGINE=path ./run                           runs another build; PROGRAM=path another program of the built-in engine
  expected.bin, allowed.bin                   float64; allowed is what one rounding may make of each element
"""
