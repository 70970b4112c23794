"""Something to read: makes the streams ORDERS and TOTALS on a server and publishes orders for some seconds."""

from __future__ import annotations

import argparse
import json
import time

import headrace
from headrace.client import Connection, Publisher, ServerVolume, read_access

REGIONS = ("eu", "us", "asia")
PER_SECOND = 50


def publish(url: str, seconds: int) -> int:
    """Orders at an even pace; returns how many are stored."""
    access = read_access(url)
    count = 0
    with Connection(
        access, patient=True
    ) as connection:  # a server that was started just now may not listen yet
        streams = ServerVolume(access)
        streams.create("ORDERS", subjects=["orders.>"])
        streams.create("TOTALS", subjects=["totals.>"])
        publisher = Publisher(connection)
        for _ in range(seconds):
            numbers = range(count, count + PER_SECOND)
            regions = [REGIONS[n % len(REGIONS)] for n in numbers]
            publisher.publish(
                headrace.batch(
                    [f"orders.{region}" for region in regions],
                    [
                        json.dumps({"id": n, "region": region, "amount": n / 4}).encode()
                        for n, region in zip(numbers, regions, strict=True)
                    ],
                )
            )
            publisher.flush()
            count += PER_SECOND
            time.sleep(1)
    return count


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="nats://127.0.0.1:4222")
    parser.add_argument("--seconds", type=int, default=12)
    given = parser.parse_args()
    print(publish(given.url, given.seconds), "orders published")
