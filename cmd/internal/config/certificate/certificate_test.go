package certificate_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/cmd/internal/config/certificate"
)

// party is a certificate with its key.
type party struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	text, file  []byte // of the certificate and of the key, in PEM
}

// issue makes a certificate that by has signed; nil has it sign itself.
func issue(t *testing.T, name string, by *party, isCA bool, until time.Time, hosts ...string) *party {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: until.Add(-1000 * time.Hour),
		NotAfter: until, IsCA: isCA, BasicConstraintsValid: true, DNSNames: hosts, KeyUsage: x509.KeyUsageCertSign,
	}
	signer := &party{template, key, nil, nil}
	if by != nil {
		signer = by
	}
	der, err := x509.CreateCertificate(rand.Reader, template, signer.certificate, &key.PublicKey, signer.key)
	if err != nil {
		t.Fatal(err)
	}
	made, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return &party{
		made, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
	}
}

func write(t *testing.T, parts ...[]byte) string {
	t.Helper()
	var text []byte
	for _, part := range parts {
		text = append(text, part...)
	}
	file := filepath.Join(t.TempDir(), "file.pem")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestAPairIsReadOrToldWhatIsWrong(t *testing.T) {
	t.Parallel()
	later, sooner := time.Now().Add(2000*time.Hour).Truncate(time.Second).UTC(), time.Now().Add(100*time.Hour).
		Truncate(time.Second).UTC()
	root := issue(t, "root", nil, true, later)
	middle := issue(t, "middle", root, true, sooner)
	leaf := issue(t, "leaf", middle, false, later, "server.example.com")
	other := issue(t, "other", root, false, later)
	for name, test := range map[string]struct {
		chain, key []byte
		names      []string
		want       string // of the error; empty for none
	}{
		"a chain":            {append(append([]byte{}, leaf.text...), middle.text...), leaf.file, nil, ""},
		"with its name":      {leaf.text, leaf.file, []string{"server.example.com:7443"}, ""},
		"another name":       {leaf.text, leaf.file, []string{"server.example.com", "10.0.0.1:7443"}, "10.0.0.1"},
		"the key of another": {leaf.text, other.file, nil, "private key does not match public key"},
		"no key":             {leaf.text, leaf.text, nil, "found a certificate rather than a key"},
		"no certificate":     {leaf.file, leaf.file, nil, "has no certificate"},
		"a chain in the wrong order": {
			append(append([]byte{}, middle.text...), leaf.text...), middle.file, nil, "CN=middle is not signed by CN=leaf",
		},
		"a chain with a gap": {
			append(append([]byte{}, leaf.text...), root.text...), leaf.file, nil, "CN=leaf is not signed by CN=root",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			chain, err := certificate.ReadPair(write(t, test.chain), write(t, test.key), test.names)
			switch {
			case test.want == "" && err != nil, test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
				t.Errorf("got %v, want %q", err, test.want)
			case err == nil && chain.Subject != "CN=leaf":
				t.Errorf("got %+v", chain)
			case name == "a chain" && !chain.NotAfter.Equal(sooner):
				t.Errorf("it ends at %v, want %v, when the first of the chain does", chain.NotAfter, sooner)
			}
		})
	}
}

func TestAnAuthorityMaySignOthers(t *testing.T) {
	t.Parallel()
	later := time.Now().Add(2000 * time.Hour)
	root := issue(t, "root", nil, true, later)
	leaf := issue(t, "leaf", root, false, later)
	if chain, err := certificate.ReadAuthority(write(t, root.text)); err != nil || chain.Subject != "CN=root" {
		t.Errorf("got %+v and %v", chain, err)
	}
	if _, err := certificate.ReadAuthority(write(t, root.text, leaf.text)); err == nil ||
		!strings.Contains(err.Error(), "CN=leaf is the certificate of a server or client") {
		t.Errorf("got %v", err)
	}
	if _, err := certificate.ReadAuthority(filepath.Join(t.TempDir(), "none")); err == nil ||
		!strings.Contains(err.Error(), "no such file") {
		t.Errorf("got %v", err)
	}
}
