package join

import (
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
)

// Token is what lets hosts join.
type Token struct {
	// Authority is the SHA-256 of the certificate of the server's authority, as it is encoded (DER).
	Authority [sha256.Size]byte
	// Secret is the join secret.
	Secret string
}

// String is the token as it is carried over: 64 hexadecimal digits, a dot, and the secret.
func (t Token) String() string { return hex.EncodeToString(t.Authority[:]) + "." + t.Secret }

// ParseToken reads a token. Its error does not repeat it.
func ParseToken(text string) (t Token, err error) {
	digest, secret, _ := strings.Cut(strings.TrimSpace(text), ".")
	decoded, err := hex.DecodeString(digest)
	if err != nil || len(decoded) != len(t.Authority) || secret == "" || strings.ContainsAny(secret, " \t\r\n") {
		return Token{}, errors.New("it is no token to join with: take the line that `spillway hosts token` prints on the " +
			"server, with --server where it is for one more server, as it is")
	}
	copy(t.Authority[:], decoded)
	t.Secret = secret
	return t, nil
}

// ErrOtherAuthority says that a server's certificate is not of the authority that a token names.
var ErrOtherAuthority = errors.New("the server has another certificate than the token was made for: either the token " +
	"is of another server, or somebody stands between; take it anew with `spillway hosts token` on the " +
	"server, with --server where it is for one more server")

// Trust returns the configuration of a client that connects to server, a name or an address, and believes in the
// certificate whose digest the token names, and in nothing else. The server's answer brings the certificate.
func (t Token) Trust(server string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, ServerName: server,
		//nolint:gosec // the connection is verified by what follows: there is no authority to verify it with yet
		InsecureSkipVerify: true,
		VerifyConnection: func(state tls.ConnectionState) error {
			authority := t.find(state.PeerCertificates)
			if authority == nil {
				return ErrOtherAuthority
			}
			trusted, between := x509.NewCertPool(), x509.NewCertPool()
			trusted.AddCert(authority)
			for _, certificate := range state.PeerCertificates[1:] {
				between.AddCert(certificate)
			}
			_, err := state.PeerCertificates[0].Verify(x509.VerifyOptions{
				DNSName: server, Roots: trusted, Intermediates: between,
			})
			return err
		},
	}
}

func (t Token) find(chain []*x509.Certificate) *x509.Certificate {
	for _, certificate := range chain {
		digest := sha256.Sum256(certificate.Raw)
		if subtle.ConstantTimeCompare(digest[:], t.Authority[:]) == 1 {
			return certificate
		}
	}
	return nil
}

// Trust returns the configuration of a client that connects to server, a name or an address, and believes in the
// answer's CA alone.
func (a Answer) Trust(server string) (*tls.Config, error) {
	trusted := x509.NewCertPool()
	block, _ := pem.Decode([]byte(a.CA))
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, errors.New("the certificate of the server's authority cannot be read: join again")
	}
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("the certificate of the server's authority cannot be read: %w; join again", err)
	}
	trusted.AddCert(certificate)
	return &tls.Config{MinVersion: tls.VersionTLS13, ServerName: server, RootCAs: trusted}, nil
}
