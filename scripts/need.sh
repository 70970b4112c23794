#!/usr/bin/env bash
# Say in one line which tool is missing, why it is needed and how to get it; exit 1 then.
#   scripts/need.sh python cargo go java      check these
#   scripts/need.sh --python                  print the interpreter to use (3.11 or newer, with venv)
#   scripts/need.sh --has-java                exit 0 if Java 17 or newer is there, silently
set -u

missing() { # tool, why, how
    echo "headrace: $1 is missing: $2. Install it: $3" >&2
    exit 1
}

find_python() {
    local name
    for name in ${PYTHON:-} python3 python3.13 python3.12 python3.11 python3.14; do
        if "$name" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            "$name" -c 'import sys; print(sys.executable)'
            return 0
        fi
    done
    return 1
}

has_java() {
    local text major
    text=$("${JAVA_HOME:+$JAVA_HOME/bin/}java" -version 2>&1) || return 1
    major=$(sed -n 's/.* version "\([0-9]*\).*/\1/p' <<<"$text" | head -n 1)
    [ -n "$major" ] && [ "$major" -ge 17 ]
}

has_go() {
    local minor
    minor=$(go version 2>/dev/null | sed -n 's/.*go1\.\([0-9]*\).*/\1/p')
    [ -n "$minor" ] && [ "$minor" -ge 26 ]
}

for tool in "$@"; do
    case $tool in
    --python)
        find_python || missing "Python 3.11 or newer with venv" "Headrace is a Python package" \
            "apt-get install python3 python3-venv, or see python.org"
        ;;
    --has-java) has_java || exit 1 ;;
    python)
        find_python >/dev/null || missing "Python 3.11 or newer with venv" "Headrace is a Python package" \
            "apt-get install python3 python3-venv, or see python.org"
        ;;
    cargo)
        cargo --version >/dev/null 2>&1 || missing "cargo (Rust 1.85 or newer)" "the core is written in Rust" \
            "see rustup.rs, then: rustup toolchain install stable"
        command -v cc >/dev/null || missing "cc (a C linker)" "Rust links with it" "apt-get install gcc libc6-dev"
        ;;
    rust-tools)
        cargo clippy --version >/dev/null 2>&1 && cargo fmt --version >/dev/null 2>&1 ||
            missing "clippy or rustfmt" "make check lints the Rust code" "rustup component add clippy rustfmt"
        ;;
    go)
        has_go || missing "go (1.26 or newer)" "the tests build real NATS servers to compare with" "see go.dev/doc/install"
        ;;
    node)
        node --version >/dev/null 2>&1 && npm --version >/dev/null 2>&1 ||
            missing "node with npm (20 or newer)" "a JavaScript client is tested" "apt-get install nodejs npm, or see nodejs.org"
        ;;
    java)
        has_java || missing "Java 17 or newer" "Spark runs on it" "apt-get install openjdk-17-jre-headless"
        ;;
    *)
        echo "headrace: need.sh does not know '$tool'" >&2
        exit 1
        ;;
    esac
done
