module headrace/tests/client

go 1.24

require github.com/nats-io/nats.go v1.48.0
