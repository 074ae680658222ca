module github.com/spillway-ml/spillway/cmd/hostscheck

replace github.com/spillway-ml/spillway => ../..

go 1.26.8

require (
	github.com/google/go-cmp v0.7.0
	github.com/nats-io/nats.go v1.55.0
	golang.org/x/sys v0.49.0
)

require gonum.org/v1/gonum v0.17.0 // indirect

require (
	github.com/klauspost/compress v1.20.3 // indirect
	github.com/nats-io/nkeys v0.4.16 // indirect
	github.com/nats-io/nuid v1.0.1 // indirect
	github.com/spillway-ml/spillway v0.0.0-00010101000000-000000000000
	golang.org/x/crypto v0.58.0 // indirect
)
