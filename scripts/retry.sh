#!/usr/bin/env bash
# Run a command that uses the network: three tries, 5 and 15 seconds apart.
set -u
for pause in 5 15 last; do
    "$@" && exit 0
    code=$?
    [ "$pause" = last ] && break
    echo "headrace: '$1' failed (exit $code), trying again in $pause s" >&2
    sleep "$pause"
done
echo "headrace: gave up after 3 tries: $*" >&2
exit "$code"
