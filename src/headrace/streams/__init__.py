"""The JetStream model: streams, consumers, their API. No I/O of its own: clock, exchange and volume are handed in."""
