// Package certificate looks into the X.509 certificates and keys that settings name, before they are used.
package certificate

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"
)

// mostBytes bounds the files.
const mostBytes = 1 << 20

// Error says what is wrong with a certificate, and what to do.
type Error struct{ Problem, Do string }

// Error is the problem.
func (e *Error) Error() string { return e.Problem }

// Advice is what to do.
func (e *Error) Advice() string { return e.Do }

func wrong(do, format string, args ...any) error { return &Error{fmt.Sprintf(format, args...), do} }

// Chain is a chain of certificates whose signatures were verified.
type Chain struct {
	// Subject is the name of the first.
	Subject string
	// NotBefore and NotAfter bound the time in which all of them are good.
	NotBefore, NotAfter time.Time
}

// ReadAuthority reads the certificates of authorities, each of which may sign others.
func ReadAuthority(file string) (Chain, error) {
	certificates, err := read(file)
	if err != nil {
		return Chain{}, err
	}
	for _, one := range certificates {
		if !one.IsCA {
			return Chain{}, wrong("give the certificate of the authority that has signed it",
				"%s: %s is the certificate of a server or client, and signs no others", file, subject(one))
		}
	}
	return chainOf(certificates), nil
}

// ReadPair reads a chain, the certificate of this side first, and its key: the key must fit, each certificate must be
// signed by the next, and the first must be good for the names, which are host names and addresses with or without a
// port. Whether somebody trusts the last of the chain is for the other side to say.
func ReadPair(file, key string, names []string) (Chain, error) {
	certificates, err := read(file)
	if err != nil {
		return Chain{}, err
	}
	if _, err := tls.LoadX509KeyPair(file, key); err != nil {
		// The library's words for a key that is of another certificate, or is none; they tell no part of it.
		return Chain{}, wrong("give the key that the certificate was made with, in PEM and without a passphrase",
			"%s and %s: %v", file, key, err)
	}
	for i, one := range certificates[1:] {
		if err := certificates[i].CheckSignatureFrom(one); err != nil {
			return Chain{}, wrong("put the certificates in order, each before the one that has signed it",
				"%s: %s is not signed by %s, which follows it: %v", file, subject(certificates[i]), subject(one), err)
		}
	}
	for _, name := range names {
		if host, _, err := net.SplitHostPort(name); err == nil {
			name = host
		}
		if err := certificates[0].VerifyHostname(strings.Trim(name, "[]")); err != nil {
			return Chain{}, wrong("have one made for it, or advertise only names that it has", "%s: %v", file, err)
		}
	}
	return chainOf(certificates), nil
}

// read reads the certificates of a file, at least one.
func read(file string) (certificates []*x509.Certificate, err error) {
	info, err := os.Stat(file)
	if err == nil && info.Size() > mostBytes {
		err = errors.New("it is no certificate: it has more than a mebibyte")
	}
	var text []byte
	if err == nil {
		text, err = os.ReadFile(file)
	}
	if err != nil {
		return nil, wrong("give a file that the user of the engine can read", "%v", err)
	}
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		one, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, wrong("have it made again", "%s: %v", file, err)
		}
		certificates = append(certificates, one)
	}
	if len(certificates) == 0 {
		return nil, wrong("give a file in PEM, which has a line BEGIN CERTIFICATE", "%s has no certificate", file)
	}
	return certificates, nil
}

func chainOf(certificates []*x509.Certificate) Chain {
	chain := Chain{
		Subject: subject(certificates[0]), NotBefore: certificates[0].NotBefore, NotAfter: certificates[0].NotAfter,
	}
	for _, one := range certificates[1:] {
		if one.NotBefore.After(chain.NotBefore) {
			chain.NotBefore = one.NotBefore
		}
		if one.NotAfter.Before(chain.NotAfter) {
			chain.NotAfter = one.NotAfter
		}
	}
	return chain
}

// subject is the name of a certificate: of a server without one, its first host name.
func subject(one *x509.Certificate) string {
	switch name := one.Subject.String(); {
	case name != "":
		return name
	case len(one.DNSNames) > 0:
		return one.DNSNames[0]
	case len(one.IPAddresses) > 0:
		return one.IPAddresses[0].String()
	default:
		return "a certificate without a name"
	}
}
