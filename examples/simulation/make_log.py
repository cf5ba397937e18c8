#!/usr/bin/env python3
"""Writes access.log.gz: twenty minutes of a shop's API behind Envoy, in Envoy's JSON format. The same bytes every time.

Thirty tenants of very different sizes, whose traffic rises and falls. `nightly` runs an export that begins at minute 8.
`scraper` asks for the search page as fast as it is answered, from minute 12 to 15. One in a hundred lines has no tenant.
"""

import gzip
import io
import json
import math
import random
import sys

SEED = 22
BEGIN = 1794812400  # 2026-11-16T07:00:00Z
SECONDS = 20 * 60
TENANTS = 30
PATHS = [("/v1/items", 5), ("/v1/search", 3), ("/v1/orders", 2)]
# Milliseconds that a request takes, in the middle.
DURATION = {"/v1/items": 25, "/v1/search": 180, "/v1/orders": 60, "/v1/export": 900}


def arrivals(rng, rate, begin=0, end=SECONDS):
    """Times at which somebody comes, at a rate that depends on the time."""
    at, highest = begin, max(rate(begin + n) for n in range(int(end - begin)))
    while True:
        at += rng.expovariate(highest)
        if at >= end:
            return
        if rng.random() * highest <= rate(at):
            yield at


def requests(rng):
    for number in range(TENANTS):
        share = 1.6 / (number + 1) ** 0.9
        phase = rng.random() * 2 * math.pi
        wave = lambda at: share * (1 + 0.5 * math.sin(at / 180 + phase))
        for at in arrivals(rng, wave):
            path = rng.choices([path for path, _ in PATHS], [weight for _, weight in PATHS])[0]
            yield at, f"tenant{number:02}", path
    for at in arrivals(rng, lambda _: 2.5, begin=8 * 60, end=14 * 60):
        yield at, "nightly", "/v1/export"
    for at in arrivals(rng, lambda _: 6, begin=12 * 60, end=15 * 60):
        yield at, "scraper", "/v1/search"
    for at in arrivals(rng, lambda _: 0.08):
        yield at, "-", "/v1/items"


def start_time(at):
    ms = round((BEGIN + at) * 1000)
    minutes, seconds = divmod(ms // 1000 - BEGIN, 60)
    return f"2026-11-16T07:{minutes:02}:{seconds:02}.{ms % 1000:03}Z"


def main(name):
    rng = random.Random(SEED)
    text = io.StringIO()
    for at, tenant, path in sorted(requests(rng)):
        duration = round(rng.lognormvariate(math.log(DURATION[path]), 0.5))
        line = {
            "start_time": start_time(at),
            "method": "GET",
            "path": path,
            "response_code": 200,
            "duration": duration,
            "tenant": tenant,
        }
        text.write(json.dumps(line, separators=(",", ":")) + "\n")
    with open(name, "wb") as file:
        # Without the name and the time of the file, so that the bytes are the same.
        with gzip.GzipFile(filename="", mode="wb", fileobj=file, compresslevel=9, mtime=0) as packed:
            packed.write(text.getvalue().encode())


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "access.log.gz")
