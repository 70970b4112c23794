"""The Spark source on real stores."""
