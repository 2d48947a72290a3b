# SPDX-License-Identifier: MIT
"""scripts/bench: measures Verbena against others, on one machine, in one run.

measurements.py says what is measured, goals.py what is to be reached, and the rest carries it out:
process.py runs a pair of programs, parsers.py reads what they print, quiet.py tells whether the
machine is busy with something else, rounds.py interleaves, report.py prints, page.py and charts.py
draw. A new comparison is a Step in measurements.py and, where something is to be reached, a line in
goals.py.
"""
