#!/usr/bin/env python3
"""Prints the table of docs/simulation.md#fleets: each scenario here with both kinds of hints, as `sluice simulate` finds it.

Usage: table.py [path of sluice]
"""

import json
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
sluice = sys.argv[1] if len(sys.argv) > 1 else "sluice"
print("| demand | clients | hints | attempts per admission | returns per admission | used | p50 | p99 |")
print("|---|---|---|---|---|---|---|---|")
for scenario in sorted(HERE.glob("demand-*.yaml")):
    demand = scenario.stem.removeprefix("demand-")
    rows = {}
    for hints in ["formula", "informed"]:
        command = [sluice, "simulate", "--config-dir", HERE / hints, "--json", scenario]
        report = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        used = {limit["key"]: limit["use"] for limit in report["limits"]}
        for it in report["populations"]:
            fleet, wait = it["name"].split()[0].rstrip(","), it["wait_ms"]
            rows.setdefault(it["name"], {})[hints] = (
                f"{it['attempts_per_admission']:.2f} | {it['returns_per_admission']:.2f} "
                f"| {used[f'fleet:fleet={fleet}:limit'] * 100:.1f} % "
                f"| {wait['p50'] / 1000:.1f} s | {wait['p99'] / 1000:.1f} s"
            )
    for name, found in rows.items():
        # Whoever obeys no hint is not concerned by what it says.
        if found["formula"] == found["informed"]:
            found = {"either": found["formula"]}
        for hints, row in found.items():
            print(f"| {demand} | {name} | {hints} | {row} |")
