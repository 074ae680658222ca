// Package signin has people sign in with an identity provider that speaks OpenID Connect: it leads a browser there,
// checks what comes back, and says who it is and what they may do. It keeps nothing but what the provider says of
// itself.
//
// Every text that comes from a provider is checked as OpenID Connect Core 1.0 (section 3.1.3.7) wants it: signature by
// the provider's keys, issuer, audience, times and nonce. A sign-in is an authorization code flow with PKCE (RFC 7636).
package signin

import (
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"
)

// Options say with which provider people sign in, and what for.
type Options struct {
	// Issuer is the URL of the provider, as it says it itself; required.
	Issuer string
	// ClientID is as what the provider knows this server; required.
	ClientID string
	// ClientSecretFile holds what the server shows the provider; it is read each time. Empty is a public client.
	ClientSecretFile string
	// Scopes are what is asked for; empty are openid, profile and email, and of groups and offline_access those that the
	// provider says that it has.
	Scopes []string
	// NameClaim is the claim with what people are called; empty is email, else preferred_username, else sub.
	NameClaim string
	// GroupsClaim is the claim with the groups of who signs in; empty is UsualGroupsClaim.
	GroupsClaim string
	// Roles are the rules, of which the first counts that somebody is in; required.
	Roles []Rule
	// CAFile holds the certificates, as PEM, of who has signed the provider's; empty are those that this machine trusts.
	CAFile string
	// Session is how long somebody stays signed in at most; 0 is UsualSession.
	Session time.Duration
	// Title is what the provider is called on the page; empty is the host of the issuer.
	Title string
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// Logger is told when nobody can sign in, and when they can again, once each time; nil discards.
	Logger *slog.Logger
}

const (
	// UsualGroupsClaim is the claim that most providers have for groups.
	UsualGroupsClaim = "groups"
	// UsualSession is how long somebody stays signed in where nothing else is said: a day's work.
	UsualSession = 12 * time.Hour
)

// Validate says why the options cannot be; nil where they can.
func (o *Options) Validate() error {
	if err := CheckIssuer(o.Issuer); err != nil {
		return err
	}
	switch {
	case o.ClientID == "":
		return errors.New("--oidc-client-id: say as what the identity provider knows this server")
	case len(o.Roles) == 0:
		return errors.New("--oidc-role: nobody could sign in; say which group has which role, such as ml-platform=admin, " +
			"or *=viewer for everybody")
	case len(o.Scopes) > 0 && !slices.Contains(o.Scopes, "openid"):
		return errors.New("--oidc-scope: openid is not among the scopes, and without it there is no ID token")
	}
	if _, err := o.secret(); err != nil {
		return err
	}
	_, err := o.roots()
	return err
}

// CheckIssuer says why a URL can be none of an issuer: what is secret goes to it, so it is reached over TLS, or on this
// machine.
func CheckIssuer(issuer string) error {
	const hint = "give the URL that the provider says itself, such as https://accounts.google.com"
	at, err := url.Parse(issuer)
	switch {
	case err != nil || at.Host == "" || at.RawQuery != "" || at.Fragment != "" || at.User != nil:
		return fmt.Errorf("--oidc-issuer: %.200q is no URL of an issuer; %s", issuer, hint)
	case !private(at):
		return fmt.Errorf("--oidc-issuer: %s is not reached over TLS; %s", issuer, hint)
	}
	return nil
}

// private says whether what is sent to an address is read by nobody else: over TLS, or on this machine.
func private(at *url.URL) bool {
	return at.Scheme == "https" && at.Host != "" || at.Scheme == "http" && loopback(at.Hostname())
}

func loopback(host string) bool {
	address := net.ParseIP(host)
	return host == "localhost" || address != nil && address.IsLoopback()
}

// secret reads the client's secret; empty of a public client.
func (o *Options) secret() (string, error) {
	if o.ClientSecretFile == "" {
		return "", nil
	}
	const most = 4 << 10
	text, err := os.ReadFile(o.ClientSecretFile)
	if err != nil {
		return "", fmt.Errorf("--oidc-client-secret-file: %w", err)
	}
	secret := strings.TrimSpace(string(text))
	if secret == "" || len(secret) > most || strings.ContainsAny(secret, "\r\n") {
		return "", fmt.Errorf("--oidc-client-secret-file: %s holds no secret: write it there, alone in one line",
			o.ClientSecretFile)
	}
	return secret, nil
}

// roots are whose certificates are believed; nil are those that this machine trusts.
func (o *Options) roots() (*x509.CertPool, error) {
	if o.CAFile == "" {
		return nil, nil //nolint:nilnil // those of the machine
	}
	text, err := os.ReadFile(o.CAFile)
	if err != nil {
		return nil, fmt.Errorf("--oidc-ca: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("--oidc-ca: %s holds no certificate in PEM", o.CAFile)
	}
	return pool, nil
}

// title is what the provider is called.
func (o *Options) title() string {
	if o.Title != "" {
		return o.Title
	}
	at, err := url.Parse(o.Issuer)
	if err != nil {
		return o.Issuer
	}
	return at.Hostname()
}

// client asks the provider.
func (o *Options) client() (*http.Client, error) {
	roots, err := o.roots()
	if err != nil {
		return nil, err
	}
	transport, is := http.DefaultTransport.(*http.Transport)
	if !is {
		return nil, errors.New("the transport of HTTP is another one")
	}
	transport = transport.Clone()
	if roots != nil {
		transport.TLSClientConfig.RootCAs = roots
	}
	return &http.Client{Transport: transport, Timeout: askFor, CheckRedirect: follow}, nil
}

// follow says why a redirect is not followed: what is secret goes there, too.
func follow(request *http.Request, via []*http.Request) error {
	const most = 10
	switch {
	case !private(request.URL):
		return fmt.Errorf("it leads to %s, which is not reached over TLS", request.URL.Redacted())
	case len(via) >= most:
		return fmt.Errorf("it leads elsewhere more than %d times", most)
	}
	return nil
}
