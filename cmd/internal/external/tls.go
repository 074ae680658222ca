package external

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"time"
)

// TLSConfig says how a server is known and how this engine is known to it. The zero value is no TLS.
type TLSConfig struct {
	// CAFile is a file of the certificates, in PEM, of those who may have signed the server's; empty means those that this
	// machine trusts.
	CAFile string
	// CertificateFile and KeyFile are the engine's own certificate and its key, in PEM, which are read again at each
	// connection, so that a certificate can be renewed under a running engine. Both or none.
	CertificateFile, KeyFile string
	// ServerName is the name that the server's certificate must be of; empty means that of its address.
	ServerName string
}

// IsZero reports whether nothing is set.
func (t TLSConfig) IsZero() bool { return t == TLSConfig{} }

// flagNames are what the flags of a TLSConfig are called, for messages.
type flagNames struct{ ca, certificate, key string }

func namesOf(server string) flagNames {
	return flagNames{"--" + server + "-tls-ca", "--" + server + "-tls-certificate", "--" + server + "-tls-key"}
}

// client returns the configuration of connections, at the time now. Its errors name the flags of server, "temporal" or
// "nats".
func (t TLSConfig) client(server string, now time.Time) (*tls.Config, error) {
	flags := namesOf(server)
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName}
	if t.CAFile != "" {
		roots, err := readRoots(t.CAFile)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", flags.ca, err)
		}
		config.RootCAs = roots
	}
	switch {
	case t.CertificateFile == "" && t.KeyFile == "":
		return config, nil
	case t.KeyFile == "":
		return nil, fmt.Errorf("%s %s comes without %s: give both, or none", flags.certificate, t.CertificateFile, flags.key)
	case t.CertificateFile == "":
		return nil, fmt.Errorf("%s %s comes without %s: give both, or none", flags.key, t.KeyFile, flags.certificate)
	}
	own := func() (*tls.Certificate, error) {
		certificate, err := tls.LoadX509KeyPair(t.CertificateFile, t.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("%s %s with %s %s: %w", flags.certificate, t.CertificateFile, flags.key, t.KeyFile, err)
		}
		return &certificate, nil
	}
	certificate, err := own()
	if err != nil {
		return nil, err
	}
	if err := inForce(certificate.Leaf, now); err != nil {
		return nil, fmt.Errorf("%s %s: %w", flags.certificate, t.CertificateFile, err)
	}
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return own() }
	return config, nil
}

// inForce refuses a certificate that is not valid at a time.
func inForce(certificate *x509.Certificate, now time.Time) error {
	switch {
	case now.After(certificate.NotAfter):
		return fmt.Errorf("the certificate expired on %s: renew it", certificate.NotAfter.UTC().Format(time.DateTime))
	case now.Before(certificate.NotBefore):
		return fmt.Errorf("the certificate is valid from %s on only, and it is %s: look at the clock of this machine",
			certificate.NotBefore.UTC().Format(time.DateTime), now.UTC().Format(time.DateTime))
	default:
		return nil
	}
}

// readRoots reads the certificates of those who sign.
func readRoots(path string) (*x509.CertPool, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s holds no certificate in PEM", path)
	}
	return roots, nil
}

// explainTLS says what to do about an error of a handshake with server; empty where err is none.
func explainTLS(server string, err error) string {
	flags := namesOf(server)
	if invalid, is := errors.AsType[x509.CertificateInvalidError](err); is && invalid.Reason == x509.Expired {
		return "the server's certificate is not valid at this time: renew it there, or look at the clock of this machine"
	}
	if _, is := errors.AsType[x509.UnknownAuthorityError](err); is {
		return "give the certificate of who has signed the server's with " + flags.ca
	}
	if _, is := errors.AsType[x509.HostnameError](err); is {
		return "give the name that the server's certificate is of with --" + server + "-tls-server-name, or its right address"
	}
	if _, is := errors.AsType[tls.RecordHeaderError](err); is {
		return "the server speaks no TLS there: look at the port, or leave out what asks for TLS"
	}
	if alert, is := errors.AsType[tls.AlertError](err); is {
		return fmt.Sprintf("the server does not take this engine's certificate (%v): give one that it does with %s and %s",
			alert, flags.certificate, flags.key)
	}
	return ""
}
