package access

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// AuthorityFile holds the certificate and the key of the authority that signs the certificate of the TLS port.
const AuthorityFile = "keys/authority.pem"

const (
	// authorityLife is how long hosts believe in the authority that they joined; each knows it by its digest, so it is not
	// renewed.
	authorityLife = 20 * 365 * 24 * time.Hour
	// certificateLife is how long a certificate of the port counts. A new one is made when a third of it is left.
	certificateLife = 90 * 24 * time.Hour
	// skew is how far the clock of who connects may be behind.
	skew = time.Hour
	// lookEvery is how often the files of a user's certificate are looked at, at most.
	lookEvery = time.Second
)

// CertificateOptions says which certificate the TLS port shows.
type CertificateOptions struct {
	// Names are the names and addresses by which the port is reached; the certificate is good for each. They may be empty
	// where the certificate is the user's: then those that it has.
	Names []string
	// CertificateFile and KeyFile are the user's own, as PEM: the certificate first, then those above it, the last of
	// which is what hosts are to believe in. They are read again when they change. Both empty is a certificate of the
	// state directory's own authority, which renews itself.
	CertificateFile, KeyFile string
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// Logger is told when a certificate was renewed, or could not be; nil discards.
	Logger *slog.Logger
}

// Certificate is that of the TLS port. Its methods may be called concurrently. The zero value is not useful; use
// OpenCertificate.
type Certificate struct {
	options   CertificateOptions
	authority *x509.Certificate
	key       *ecdsa.PrivateKey // of the authority; nil where the certificate is the user's

	mu      sync.Mutex
	current *tls.Certificate // guarded by mu, as all below
	looked  time.Time        // when the user's files were looked at
	seen    [2]stamp         // what they were like
}

// stamp tells whether a file has changed.
type stamp struct {
	at   time.Time
	size int64
}

// OpenCertificate returns the certificate of the TLS port of the state directory dir, and makes the authority that is
// missing. It refuses, with an *Error that says what to do, files that cannot be read, a certificate that has expired,
// and one that is not good for one of the names.
func OpenCertificate(dir string, options CertificateOptions) (*Certificate, error) {
	c := &Certificate{options: options}
	if c.options.Now == nil {
		c.options.Now = time.Now
	}
	if c.options.Logger == nil {
		c.options.Logger = slog.New(slog.DiscardHandler)
	}
	if options.CertificateFile != "" || options.KeyFile != "" {
		return c, c.openOwn()
	}
	root, err := openOwn(dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }() // what was written has been synced
	if err := c.openAuthority(root, dir); err != nil {
		return nil, err
	}
	c.current, err = c.sign()
	return c, err
}

// openOwn reads the user's files.
func (c *Certificate) openOwn() (err error) {
	if c.options.CertificateFile == "" || c.options.KeyFile == "" {
		return errors.New("a certificate needs its key: give both --tls-certificate and --tls-key, or none for one of the " +
			"engine's own")
	}
	if c.current, c.seen, err = c.read(); err != nil {
		return err
	}
	last := c.current.Certificate[len(c.current.Certificate)-1]
	if c.authority, err = x509.ParseCertificate(last); err != nil {
		return fmt.Errorf("read %s: its last certificate: %w", c.options.CertificateFile, err)
	}
	return nil
}

// read reads the user's certificate, and refuses one that does not serve.
func (c *Certificate) read() (read *tls.Certificate, seen [2]stamp, err error) {
	path := c.options.CertificateFile
	for i, name := range []string{path, c.options.KeyFile} { // before they are read: a change meanwhile is seen
		info, err := os.Stat(name)
		if err != nil {
			return nil, seen, &Error{name, reason(err), "give --tls-certificate and --tls-key files that this user can read"}
		}
		seen[i] = stamp{info.ModTime(), info.Size()}
	}
	loaded, err := tls.LoadX509KeyPair(path, c.options.KeyFile)
	if err != nil {
		return nil, seen, &Error{path, reason(err), "give the certificate and its key, both as PEM, with --tls-certificate " +
			"and --tls-key"}
	}
	return &loaded, seen, c.serves(loaded.Leaf)
}

// reason is what is wrong with a file, without the name that an *Error says already.
func reason(err error) string {
	if of, is := errors.AsType[*fs.PathError](err); is {
		return of.Err.Error()
	}
	return err.Error()
}

// serves says why a certificate does not serve.
func (c *Certificate) serves(leaf *x509.Certificate) error {
	const advice = "put the renewed one there, or leave --tls-certificate and --tls-key out for one of the engine's own"
	path, now := c.options.CertificateFile, c.options.Now()
	switch {
	case now.After(leaf.NotAfter):
		return &Error{path, "the certificate has expired, at " + leaf.NotAfter.UTC().Format(time.RFC3339), advice}
	case now.Before(leaf.NotBefore):
		return &Error{path, "the certificate does not count before " + leaf.NotBefore.UTC().Format(time.RFC3339), advice}
	}
	for _, name := range c.options.Names {
		if err := leaf.VerifyHostname(name); err != nil {
			return &Error{path, err.Error(), "name with --advertise what it is for, or give another certificate"}
		}
	}
	return nil
}

// openAuthority reads the authority, or makes it.
func (c *Certificate) openAuthority(root *os.Root, dir string) error {
	path := filepath.Join(dir, AuthorityFile)
	const advice = "put it back from a copy, or remove it: another one is made then, and every host has to join again"
	held, err := readOwn(root, dir, AuthorityFile)
	if errors.Is(err, fs.ErrNotExist) {
		if err := c.makeAuthority(); err != nil {
			return fmt.Errorf("make %s: %w", path, err)
		}
		encoded, err := encodeAuthority(c.authority, c.key)
		if err != nil {
			return fmt.Errorf("make %s: %w", path, err)
		}
		return write(root, dir, AuthorityFile, encoded)
	}
	if err != nil {
		return err
	}
	pair, err := tls.X509KeyPair(held, held)
	if err != nil {
		return &Error{path, reason(err), advice}
	}
	key, is := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !is || !pair.Leaf.IsCA {
		return &Error{path, "holds no authority of an engine", advice}
	}
	if now := c.options.Now(); now.After(pair.Leaf.NotAfter) || now.Before(pair.Leaf.NotBefore) {
		return &Error{
			path, "the authority counts from " + pair.Leaf.NotBefore.UTC().Format(time.RFC3339) + " to " +
				pair.Leaf.NotAfter.UTC().Format(time.RFC3339),
			"set the clock of this machine, or remove the file: another one is made then, and every host has to join again",
		}
	}
	c.authority, c.key = pair.Leaf, key
	return nil
}

func (c *Certificate) makeAuthority() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	number, err := serial()
	if err != nil {
		return err
	}
	now := c.options.Now()
	draft := &x509.Certificate{
		SerialNumber: number, Subject: pkix.Name{CommonName: "Spillway " + rand.Text()[:8]},
		NotBefore: now.Add(-skew), NotAfter: now.Add(authorityLife),
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		IsCA:     true, BasicConstraintsValid: true, MaxPathLenZero: true,
	}
	raw, err := x509.CreateCertificate(rand.Reader, draft, draft, key.Public(), key)
	if err != nil {
		return err
	}
	c.key = key
	c.authority, err = x509.ParseCertificate(raw)
	return err
}

func encodeAuthority(certificate *x509.Certificate, key *ecdsa.PrivateKey) ([]byte, error) {
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Raw})
	return append(text, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})...), nil
}

// serial is a random number of a certificate: 16 octets at most, and positive (RFC 5280, section 4.1.2.2).
func serial() (*big.Int, error) {
	return rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
}

// sign makes a certificate for the names. Its key is nowhere but in the memory of this process.
func (c *Certificate) sign() (*tls.Certificate, error) {
	fail := func(err error) error { return fmt.Errorf("make the certificate of the TLS port: %w", err) }
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fail(err)
	}
	number, err := serial()
	if err != nil {
		return nil, fail(err)
	}
	now := c.options.Now()
	draft := &x509.Certificate{
		SerialNumber: number, Subject: pkix.Name{CommonName: "spillway"},
		NotBefore: now.Add(-skew), NotAfter: now.Add(certificateLife),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, BasicConstraintsValid: true,
	}
	if draft.NotAfter.After(c.authority.NotAfter) {
		draft.NotAfter = c.authority.NotAfter
	}
	for _, name := range c.options.Names {
		if address := net.ParseIP(name); address != nil {
			draft.IPAddresses = append(draft.IPAddresses, address)
		} else {
			draft.DNSNames = append(draft.DNSNames, name)
		}
	}
	raw, err := x509.CreateCertificate(rand.Reader, draft, c.authority, key.Public(), c.key)
	if err != nil {
		return nil, fail(err)
	}
	leaf, err := x509.ParseCertificate(raw)
	if err != nil {
		return nil, fail(err)
	}
	return &tls.Certificate{Certificate: [][]byte{raw, c.authority.Raw}, PrivateKey: key, Leaf: leaf}, nil
}

// Get is for tls.Config.GetCertificate: it returns the certificate in force, and renews it when that is due. Where that
// cannot be, the one before stays.
func (c *Certificate) Get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var renewed *tls.Certificate
	var err error
	if c.key != nil {
		if left := c.current.Leaf.NotAfter.Sub(c.options.Now()); left < certificateLife/3 && !c.isLast() {
			renewed, err = c.sign()
		}
	} else {
		renewed, err = c.look()
	}
	switch {
	case err != nil:
		c.options.Logger.Error("the certificate of the TLS port cannot be renewed; the one before stays", "until",
			c.current.Leaf.NotAfter, "error", err)
	case renewed != nil:
		c.current = renewed
		c.options.Logger.Info("the TLS port has another certificate", "until", renewed.Leaf.NotAfter)
	}
	return c.current, nil
}

// isLast says whether no certificate counts for longer than this one: the authority ends with it.
func (c *Certificate) isLast() bool { return !c.current.Leaf.NotAfter.Before(c.authority.NotAfter) }

// look reads the user's files again where they have changed; nil where they have not. The caller holds mu.
func (c *Certificate) look() (*tls.Certificate, error) {
	now := c.options.Now()
	if since := now.Sub(c.looked); since >= 0 && since < lookEvery {
		return nil, nil //nolint:nilnil // nothing new is no mistake
	}
	c.looked = now
	changed := false
	for i, name := range []string{c.options.CertificateFile, c.options.KeyFile} {
		info, err := os.Stat(name)
		if err != nil { // it is being replaced, or lost
			return nil, nil //nolint:nilerr,nilnil // it is looked for again
		}
		changed = changed || !info.ModTime().Equal(c.seen[i].at) || info.Size() != c.seen[i].size
	}
	if !changed {
		return nil, nil //nolint:nilnil // nothing new is no mistake
	}
	read, seen, err := c.read()
	c.seen = seen // what is wrong with them is told once
	return read, err
}

// Names are the names and addresses that the certificate was opened for, or else those that it has, wildcards aside.
func (c *Certificate) Names() []string {
	if len(c.options.Names) > 0 {
		return c.options.Names
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var names []string
	for _, name := range c.current.Leaf.DNSNames {
		if !strings.Contains(name, "*") {
			names = append(names, name)
		}
	}
	for _, address := range c.current.Leaf.IPAddresses {
		names = append(names, address.String())
	}
	return names
}

// Authority is the certificate, as PEM, that who connects is to believe in: that of the engine's authority, or the last
// of the user's file.
func (c *Certificate) Authority() string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.authority.Raw}))
}

// Digest is the SHA-256 of that certificate, as it is encoded (DER).
func (c *Certificate) Digest() [sha256.Size]byte { return sha256.Sum256(c.authority.Raw) }
