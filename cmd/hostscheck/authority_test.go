//go:build linux

package hostscheck_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// authority signs the certificates of servers that exist.
type authority struct {
	t           testing.TB
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	file        string // of its certificate, as PEM
}

// pair are the files of a certificate and of its key, as PEM.
type pair struct{ certificate, key string }

// pair are the files of a certificate of the host.
func (h *host) pair(file string) pair {
	return pair{filepath.Join(h.dir, file+".pem"), filepath.Join(h.dir, file+".key")}
}

func newAuthority(tb testing.TB, dir string) *authority {
	tb.Helper()
	a := &authority{t: tb, file: filepath.Join(dir, "authority.pem")}
	var err error
	if a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		tb.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "the authority of a test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key)
	if err != nil {
		tb.Fatal(err)
	}
	if a.certificate, err = x509.ParseCertificate(der); err != nil {
		tb.Fatal(err)
	}
	writePEM(tb, a.file, "CERTIFICATE", 0o644, der)
	return a
}

// issue writes a certificate of the host, for its address, its name and those given, with the authority's after it, and
// its key. As a file that others may read is one that a server runs on as another user, owner has both.
func (a *authority) issue(h *host, file string, life time.Duration, names ...string) (p pair) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		a.t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: h.name},
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(life),
		DNSNames: append([]string{h.name}, names...), IPAddresses: []net.IP{net.ParseIP(h.address), net.IPv4(127, 0, 0, 1)},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, a.certificate, &key.PublicKey, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	p = h.pair(file)
	writePEM(a.t, p.certificate, "CERTIFICATE", 0o644, der, a.certificate.Raw)
	writePEM(a.t, p.key, "PRIVATE KEY", 0o600, encoded)
	return p
}

// writePEM replaces a file whole: a server may read it at any time.
func writePEM(tb testing.TB, path, kind string, mode os.FileMode, blocks ...[]byte) {
	tb.Helper()
	var text []byte
	for _, block := range blocks {
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: block})...)
	}
	if err := os.WriteFile(path+".new", text, mode); err != nil {
		tb.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		tb.Fatal(err)
	}
}

// trust is how a client believes in the authority alone, and shows p.
func (a *authority) trust(name string, p pair) *tls.Config {
	a.t.Helper()
	own, err := tls.LoadX509KeyPair(p.certificate, p.key)
	if err != nil {
		a.t.Fatal(err)
	}
	trusted := x509.NewCertPool()
	trusted.AddCert(a.certificate)
	return &tls.Config{
		MinVersion: tls.VersionTLS12, ServerName: name, RootCAs: trusted, Certificates: []tls.Certificate{own},
	}
}
