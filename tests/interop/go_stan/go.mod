module twinwire.test/go_stan

go 1.20

require github.com/nats-io/stan.go v0.10.4

require (
	github.com/gogo/protobuf v1.3.2 // indirect
	github.com/nats-io/nats.go v1.22.1 // indirect
	github.com/nats-io/nkeys v0.3.0 // indirect
	github.com/nats-io/nuid v1.0.1 // indirect
	golang.org/x/crypto v0.5.0 // indirect
)
