package flag

import "github.com/spillway-ml/spillway/cmd/internal/engine"

// addServers adds the flags that say which Temporal and which NATS an engine runs on.
func (f *Stack) addServers() {
	f.Set.StringVar(&f.temporal.Address, "temporal-address", "",
		"`ADDRESS`, host and port, of a Temporal that exists, to run on in the place of one in this process")
	f.Set.StringVar(&f.temporal.Namespace, "temporal-namespace", "",
		"`NAME` of the namespace there that has the runs; it must exist (default \"default\")")
	f.Set.StringVar(&f.temporal.APIKeyFile, "temporal-api-key-file", "",
		"`FILE` that holds an API key for it; it is read again while the engine runs")
	f.Set.StringVar(&f.temporal.TLS.CAFile, "temporal-tls-ca", "",
		"`FILE` of the certificates, in PEM, of who has signed its certificate (default those that this machine trusts)")
	f.Set.StringVar(&f.temporal.TLS.CertificateFile, "temporal-tls-certificate", "",
		"`FILE` of the certificate, in PEM, by which it knows this engine")
	f.Set.StringVar(&f.temporal.TLS.KeyFile, "temporal-tls-key", "", "`FILE` of the key, in PEM, of that certificate")
	f.Set.StringVar(&f.temporal.TLS.ServerName, "temporal-tls-server-name", "",
		"`NAME` that its certificate is of (default the host of its address); with it alone there is TLS, too")
	f.Set.StringArrayVar(&f.nats.URLs, "nats-url", nil,
		"`URL` of a server of a NATS that exists, to run on in the place of one in this process; once for each server")
	f.Set.StringArrayVar(&f.nats.LeafURLs, "nats-leaf-url", nil,
		"`URL` where a server of it takes leaf nodes, through which the workers of apps reach it; commands and chains need "+
			"none")
	f.Set.StringVar(&f.nats.CredentialsFile, "nats-credentials", "",
		"`FILE` of a JWT and its seed, of an nkey seed, or of one line name:password for it")
	f.Set.Var(Count{&f.nats.Replicas, 1}, "nats-replicas",
		"how many of its servers keep each stream and bucket; 3 is usual in a cluster (default 1)")
	f.Set.StringVar(&f.nats.TLS.CAFile, "nats-tls-ca", "",
		"`FILE` of the certificates, in PEM, of who has signed its certificates (default those that this machine trusts)")
	f.Set.StringVar(&f.nats.TLS.CertificateFile, "nats-tls-certificate", "",
		"`FILE` of the certificate, in PEM, by which it knows this engine")
	f.Set.StringVar(&f.nats.TLS.KeyFile, "nats-tls-key", "", "`FILE` of the key, in PEM, of that certificate")
}

// Servers are the Temporal and the NATS to run on, as far as the flags say.
func (f *Stack) Servers() (engine.TemporalConfig, engine.NATSConfig) { return f.temporal, f.nats }
