"""The JetStream API: requests, endpoints, answers, events."""
