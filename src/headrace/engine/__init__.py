"""The turn of a server: decisions once per run, one commit group, timers, long work in steps. It knows no protocol."""
