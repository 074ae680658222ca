package access

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// verify checks what a certificate shows, as a client does that believes in the authority alone.
func verify(t *testing.T, c *Certificate, name string, now time.Time) error {
	t.Helper()
	shown, err := c.Get(nil)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(c.Authority())) {
		t.Fatalf("the authority cannot be read: %s", c.Authority())
	}
	_, err = shown.Leaf.Verify(x509.VerifyOptions{DNSName: name, Roots: roots, CurrentTime: now})
	return err
}

func openCertificate(t *testing.T, dir string, options CertificateOptions) *Certificate {
	t.Helper()
	c, err := OpenCertificate(dir, options)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestACertificateOfTheEngineRenewsItselfAndItsAuthorityStays(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	open(t, dir)
	now := time.Now()
	options := CertificateOptions{
		Names: []string{"gpu.example.com", "10.0.0.7", "::1"}, Now: func() time.Time { return now },
	}
	c := openCertificate(t, dir, options)
	for _, name := range options.Names {
		if err := verify(t, c, name, now); err != nil {
			t.Errorf("for %s: %v", name, err)
		}
	}
	if err := verify(t, c, "other.example.com", now); err == nil {
		t.Error("it is good for a name that it was not made for")
	}
	first, _ := c.Get(nil)
	now = now.Add(certificateLife*2/3 - time.Minute)
	if same, _ := c.Get(nil); same != first {
		t.Error("it was renewed before a third of its life was left")
	}
	now = now.Add(2 * time.Minute)
	second, _ := c.Get(nil)
	if second == first || second.Leaf.NotAfter.Sub(now) != certificateLife.Truncate(time.Second) &&
		second.Leaf.NotAfter.Sub(now) < certificateLife-time.Second {
		t.Errorf("with a third left it was not renewed: it counts until %s, and now is %s", second.Leaf.NotAfter, now)
	}
	again := openCertificate(t, dir, options)
	if again.Digest() != c.Digest() {
		t.Error("a second start has another authority")
	}
	if info, err := os.Stat(filepath.Join(dir, AuthorityFile)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the authority's file: mode %v, error %v", info.Mode(), err)
	}
	now = now.Add(authorityLife)
	if _, err := OpenCertificate(dir, options); err == nil || !strings.Contains(err.Error(), "join again") {
		t.Errorf("with an authority that has expired: got %v, want to be told that hosts have to join again", err)
	}
}

func TestADamagedAuthorityIsTold(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	open(t, dir)
	path := filepath.Join(dir, AuthorityFile)
	if err := os.WriteFile(path, []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := OpenCertificate(dir, CertificateOptions{Names: []string{"a"}})
	if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "put it back from a copy") {
		t.Errorf("got %v", err)
	}
}

// writePair writes a certificate that counts from one time to another, with its key.
func writePair(t *testing.T, dir string, name string, from, until time.Time) (certificate, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	draft := &x509.Certificate{
		SerialNumber: big.NewInt(until.UnixNano()), NotBefore: from, NotAfter: until, DNSNames: []string{name},
		IPAddresses: []net.IP{net.IPv4(10, 0, 0, 7)},
	}
	raw, err := x509.CreateCertificate(rand.Reader, draft, draft, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	certificate, key = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	for path, block := range map[string]*pem.Block{
		certificate: {Type: "CERTIFICATE", Bytes: raw}, key: {Type: "PRIVATE KEY", Bytes: encoded},
	} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return certificate, key
}

func TestAUsersCertificateIsReadAgainWhenItChanges(t *testing.T) {
	t.Parallel()
	dir, now := newDir(t), time.Now()
	certificate, key := writePair(t, dir, "a.example.com", now.Add(-time.Hour), now.Add(time.Hour))
	var log bytes.Buffer
	options := CertificateOptions{
		Names: []string{"a.example.com", "10.0.0.7"}, CertificateFile: certificate, KeyFile: key,
		Now: func() time.Time { return now }, Logger: slog.New(slog.NewTextHandler(&log, nil)),
	}
	c := openCertificate(t, dir, options)
	if err := verify(t, c, "a.example.com", now); err != nil {
		t.Error(err)
	}
	first, _ := c.Get(nil)
	now = now.Add(2 * lookEvery)
	if same, _ := c.Get(nil); same != first {
		t.Error("it was read again though it has not changed")
	}
	if err := os.WriteFile(key, []byte("half of it"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		now = now.Add(2 * lookEvery)
		if same, _ := c.Get(nil); same != first {
			t.Error("a key that cannot be read took the place of the one before")
		}
	}
	if told := strings.Count(log.String(), "cannot be renewed"); told != 1 {
		t.Errorf("that it cannot be read was told %d times, want once: %s", told, &log)
	}
	writePair(t, dir, "a.example.com", now.Add(-time.Hour), now.Add(2*time.Hour))
	now = now.Add(2 * lookEvery)
	if second, _ := c.Get(nil); second == first || !second.Leaf.NotAfter.After(first.Leaf.NotAfter) {
		t.Errorf("the renewed one was not taken; the log says %s", &log)
	}
}

func TestAUsersCertificateThatDoesNotServeIsRefused(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for name, c := range map[string]struct {
		from, until time.Time
		names       []string
		without     string
		want        string
	}{
		"expired":         {now.Add(-2 * time.Hour), now.Add(-time.Hour), []string{"a.example.com"}, "", "has expired"},
		"not yet":         {now.Add(time.Hour), now.Add(2 * time.Hour), []string{"a.example.com"}, "", "not count before"},
		"another name":    {now.Add(-time.Hour), now.Add(time.Hour), []string{"b.example.com"}, "", "b.example.com"},
		"another address": {now.Add(-time.Hour), now.Add(time.Hour), []string{"10.0.0.8"}, "", "10.0.0.8"},
		"no key":          {now.Add(-time.Hour), now.Add(time.Hour), []string{"a.example.com"}, "tls.key", "tls.key"},
		"no certificate":  {now.Add(-time.Hour), now.Add(time.Hour), []string{"a.example.com"}, "tls.crt", "tls.crt"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := newDir(t)
			certificate, key := writePair(t, dir, "a.example.com", c.from, c.until)
			if c.without != "" {
				if err := os.Remove(filepath.Join(dir, c.without)); err != nil {
					t.Fatal(err)
				}
			}
			_, err := OpenCertificate(dir, CertificateOptions{Names: c.names, CertificateFile: certificate, KeyFile: key})
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v, want one line about %q", err, c.want)
			}
		})
	}
	if _, err := OpenCertificate(newDir(t), CertificateOptions{KeyFile: "tls.key"}); err == nil ||
		!strings.Contains(err.Error(), "--tls-certificate") {
		t.Errorf("a key alone: got %v", err)
	}
}
